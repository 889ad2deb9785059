//go:build linux

package faulttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/proxy"
)

// clientVariable makes the test binary a client: its value is settings as JSON.
const clientVariable = "FAULTTEST_CLIENT"

// resource is the resource for which all clients compete.
const resource fence.Resource = "orders"

// settings are the settings of a client.
type settings struct {
	Name    string // unique among all that ever lived
	Store   string // the kind
	URL     string // of the store
	Sealer  string // URL of PostgreSQL, or none
	Journal string // URL of PostgreSQL; the client puts a proxy of its own before it
	TTL     time.Duration
	Seed    uint64
	Defect  defect
}

// defect is an error of a client or of the server, which the checks must find.
type defect string

const (
	none        defect = ""
	unsealed    defect = "unsealed"     // acquires without a Sealer
	unchecked   defect = "unchecked"    // writes without a check
	doubleGrant defect = "double grant" // a store that grants a lease which is held
	sealsEarly  defect = "seals early"  // a seal returns early
	jumpsByOne  defect = "jumps by one" // a token that jumps by one behind a promotion
)

// serverDefects are those of the server, in SQL.
var serverDefects = map[defect]string{sealsEarly: stack.SealsEarly, jumpsByOne: stack.JumpsByOne}

// record is one line of a client's report. The client writes it before each call and
// after it, so that the calls of a killed client are known.
type record struct {
	At    int64 // when, in nanoseconds of CLOCK_MONOTONIC, which all processes share
	What  event
	Round int          `json:",omitempty"` // of the acquire
	Write int          `json:",omitempty"`
	Token fence.Token  `json:",omitempty"` // granted, or that of the write
	Rows  int64        `json:",omitempty"` // that the new holder saw of older tokens
	Fate  writeOutcome `json:",omitempty"`
	// Current is the token that a refusal names as the resource's.
	Current fence.Token `json:",omitempty"`
	Error   string      `json:",omitempty"`
}

type event string

const (
	acquiring event = "acquiring"
	granted   event = "granted"
	failed    event = "failed"
	looked    event = "looked" // the new holder's first read
	held      event = "held"   // the lease had not ended at that moment
	writing   event = "writing"
	wrote     event = "wrote"
)

// client is a process that acquires leases and writes under them.
type client struct {
	settings
	store   lockclient.Store
	sealers []lockclient.Sealer
	random  *rand.Rand

	mu     sync.Mutex // guards the output and writes
	out    *json.Encoder
	writes int
}

// runClient lives until its standard input ends.
func runClient() int {
	c := &client{out: json.NewEncoder(os.Stdout)}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	err := json.Unmarshal([]byte(os.Getenv(clientVariable)), &c.settings)
	if err == nil {
		err = c.run(ctx, stop)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, c.Name+":", err)
		return 1
	}
	return 0
}

func (c *client) run(ctx context.Context, stop func()) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	c.random = rand.New(rand.NewPCG(c.Seed, 0))
	store, closeStore, err := openStore(ctx, c.settings)
	if err != nil {
		return err
	}
	defer closeStore()
	c.store = store
	if c.Defect == doubleGrant {
		c.store = doubleGrantStore{store}
	}
	if c.Sealer != "" {
		pool, err := pgxpool.New(ctx, c.Sealer)
		if err != nil {
			return err
		}
		defer pool.Close()
		c.sealers = []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool}}
	}
	stopProxy, err := c.startProxy()
	if err != nil {
		return err
	}
	defer stopProxy()
	ghosts := make(chan fence.Fence, 1)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { c.writeAsZombie(ctx, ghosts, rand.New(rand.NewPCG(c.Seed, 1))) })
	w := &writer{client: c}
	defer w.close()
	for round := 1; ctx.Err() == nil; round++ {
		c.round(ctx, round, w, ghosts)
	}
	return nil
}

// startProxy starts a proxy before the journal in this process: it stalls and dies with
// the client, as the containers of a pod do, and may leave a hold behind.
func (c *client) startProxy() (stop func(), err error) {
	journal, err := url.Parse(c.Journal)
	if err != nil {
		return nil, err
	}
	running, err := stack.Start(proxy.Options{Upstream: "postgres://" + journal.Host + "/"})
	if err != nil {
		return nil, err
	}
	journal.Host = running.Addr
	c.Journal = journal.String()
	return func() { _ = running.Stop() }, nil
}

// round acquires the lease once. Every round has a lock client of its own, so the
// holder's name shows for which round a grant was sealed.
func (c *client) round(ctx context.Context, n int, w *writer, ghosts chan<- fence.Fence) {
	holder := fmt.Sprintf("%s.%d", c.Name, n)
	locks, err := lockclient.New(c.store, lockclient.Options{
		Holder: holder, TTL: c.TTL, Sealers: c.sealers, Unsealed: c.sealers == nil,
		RetryMin: 5 * time.Millisecond, RetryMax: 100 * time.Millisecond,
	})
	if err != nil {
		panic(err) // the options don't come from outside
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.TTL)
		defer cancel()
		_ = locks.Close(ctx)
	}()
	c.tell(record{What: acquiring, Round: n})
	patient, cancel := context.WithTimeout(ctx, 5*c.TTL)
	defer cancel()
	lease, err := locks.Acquire(patient, resource)
	if err != nil {
		c.tell(record{What: failed, Round: n, Error: err.Error()})
		c.pause(ctx, c.random, 20*time.Millisecond)
		return
	}
	c.tell(record{What: granted, Round: n, Token: lease.Token()})
	if rows, err := w.older(ctx, lease.Fence(), holder); err == nil {
		c.tell(record{What: looked, Round: n, Rows: rows})
	}
	until := time.Now().Add(20*time.Millisecond + time.Duration(c.random.Int64N(int64(250*time.Millisecond))))
	for time.Now().Before(until) && ctx.Err() == nil {
		at := now()
		if lease.Err() != nil {
			break
		}
		c.record(record{At: at, What: held, Round: n})
		w.write(ctx, lease.Fence(), c.random)
		c.pause(ctx, c.random, 10*time.Millisecond)
	}
	select { // a zombie begins with the end of the hold, or before it
	case ghosts <- lease.Fence():
	default:
	}
}

// writeAsZombie writes with tokens of leases that were released or lost.
func (c *client) writeAsZombie(ctx context.Context, ghosts <-chan fence.Fence, random *rand.Rand) {
	w := &writer{client: c}
	defer w.close()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-ghosts:
			for range 3 + random.IntN(20) {
				w.write(ctx, f, random)
				c.pause(ctx, random, 30*time.Millisecond)
			}
		}
	}
}

// pause lets some time pass, up to the longest.
func (c *client) pause(ctx context.Context, random *rand.Rand, longest time.Duration) {
	select {
	case <-time.After(time.Duration(random.Int64N(int64(longest)))):
	case <-ctx.Done():
	}
}

func (c *client) tell(r record) {
	r.At = now()
	c.record(r)
}

func (c *client) record(r record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.out.Encode(r); err != nil {
		os.Exit(2) // nobody listens any more
	}
}

// nextWrite numbers the client's writes.
func (c *client) nextWrite() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	return c.writes
}

func now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // Linux has this clock
	}
	return ts.Nano()
}

// doubleGrantStore is a broken store: it takes the lease from its holder.
type doubleGrantStore struct{ lockclient.Store }

func (g doubleGrantStore) Acquire(ctx context.Context, r fence.Resource, holder string, ttl time.Duration) (lockclient.Attempt, error) {
	attempt, err := g.Store.Acquire(ctx, r, holder, ttl)
	if err != nil || attempt.Won() {
		return attempt, err
	}
	if _, err := g.Store.(lockclient.Looker).Free(ctx, r, attempt.Holder); err != nil {
		return attempt, err
	}
	return g.Store.Acquire(ctx, r, holder, ttl)
}

var errNoStore = errors.New("no such store")
