package fencingtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// lists is one run: holders of a lock who follow each other without a word, and the networks
// between them, their proxies, and the primary.
type lists struct {
	primary, standby *world
	promoting        func(l *lists) // the standby, in the midst of the run; nil if it stays one
	promoted         atomic.Bool
	until            context.Context
	links            []*servers.Link

	mu      sync.Mutex
	appends []appended
	reads   []seen
	counts  map[string]int
}

// Holders append to a list under their tokens, and read it, on the primary in all isolation levels;
// others read it on a standby. Networks, the standby's too, are cut, stall in one direction or in
// both, and heal. No append is lost, comes late or twice, and each holder sees all that was written before its grant.
// With the proxy off that isn't so.
//
// Evidence: I1, I2, I5
func TestHistoriesOfLists(t *testing.T) {
	onOwnServer(t, func(t *testing.T, primary, standby *world) {
		random := listSeed(t)
		l := &lists{primary: primary, standby: standby}
		l.create(t)
		l.play(t, "", trafficLength(), random)
		if faults := l.judge(t); faults != nil {
			t.Error(strings.Join(faults, "\n"))
		}
		if l.lacks("WF001") {
			t.Errorf("too little happened: %v", l.counts)
		}
		for range 10 {
			primary.Exec(t, "update list set items = '{}'")
			l = &lists{primary: primary, standby: standby}
			if l.play(t, proxy.Off, time.Second, random); l.judge(t) != nil {
				return
			}
		}
		t.Errorf("nothing is wrong without the proxy: %v", l.counts)
	})
}

// create makes the list.
func (l *lists) create(t *testing.T) {
	t.Helper()
	l.primary.Exec(t, "create table list (items text[] not null)", "insert into list values ('{}')", "grant select, update on list to app",
		"select wirefence.seal('list', 1, 'nobody')", "update wirefence.resource_locks set preempt_after = '100 ms'")
}

func listSeed(t *testing.T) uint64 {
	random := *seed
	if random == 0 {
		random = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", random)
	return random
}

// lacks reports whether something has not happened yet that a run should have.
func (l *lists) lacks(refusals ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(append(refusals, "grants", "appended", "read", "read on the standby", "faults", "cut off"), func(what string) bool { return l.counts[what] == 0 })
}

// play lets four holders and two readers run, with proxies in one mode, and for longer where a slow
// machine needs that. If the standby is promoted, two of the proxies know it.
func (l *lists) play(t *testing.T, mode proxy.Mode, length time.Duration, seed uint64) {
	t.Helper()
	var end func()
	l.until, end = context.WithCancel(t.Context())
	defer end()
	l.counts = map[string]int{}
	primary, standby := l.primary, l.standby
	network := func(addr string) string {
		link := stack.Started(servers.StartLink(addr)).EndWith(t)
		l.links = append(l.links, link)
		return link.Addr()
	}
	var all sync.WaitGroup
	for n := range 4 {
		hosts, issuing, moves := network(primary.Addr()), primary.Addr(), l.promoting != nil && n < 2
		if moves {
			hosts, issuing = hosts+","+standby.Addr(), issuing+","+standby.Addr()
		}
		o := proxy.Options{Mode: mode, Upstream: "postgres://" + hosts + "/?target_session_attrs=read-write"}
		if n%2 == 0 {
			o.DatabaseURL = "postgres://postgres@" + issuing + "/" + primary.Name + "?sslmode=disable&target_session_attrs=read-write"
		}
		h := &holder{lists: l, name: fmt.Sprint("h", n), addr: network(primary.own(t, o).proxy), moves: moves, random: rand.New(rand.NewPCG(seed, uint64(n)))}
		all.Go(h.run)
	}
	addr := standby.own(t, proxy.Options{}).proxy
	for n := range 2 {
		all.Go(func() { l.readStandby(fmt.Sprint("r", n), addr) })
	}
	if l.promoting == nil {
		l.links = append(l.links, standby.follows)
	}
	all.Go(func() { l.disturb(rand.New(rand.NewPCG(seed, 99))) })
	begun := time.Now()
	var refusals []string
	if mode != proxy.Off {
		refusals = []string{"WF001"}
	}
	for time.Since(begun) < length || time.Since(begun) < stack.Patience && l.lacks(refusals...) {
		time.Sleep(10 * time.Millisecond)
		if l.promoting != nil && time.Since(begun) > length/2 && !l.promoted.Load() {
			l.promoting(l)
			l.promoted.Store(true)
			refusals = append(refusals, "appended behind the promotion", "read behind the promotion")
		}
	}
	end()
	all.Wait()
}

func (l *lists) judge(t *testing.T) []string {
	t.Helper()
	list := stack.Value[[]string](t, l.primary.DB, "select items from list")
	t.Logf("%d items: %v", len(list), l.counts)
	return judgeList(list, l.appends, l.reads)
}

// disturb breaks networks.
func (l *lists) disturb(r *rand.Rand) {
	for l.until.Err() == nil {
		link := l.links[r.IntN(len(l.links))]
		[]func(){link.Cut, link.Hold, link.HoldAnswers, link.HoldRequests}[r.IntN(4)]()
		time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		link.Restore()
		l.count("faults")
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
	}
}

func (l *lists) count(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[what]++
}

const (
	readList   = "select cardinality(items), md5(array_to_string(items, ',')) from list"
	appendItem = "update list set items = items || $1::text"
)

func (l *lists) readStandby(name, addr string) {
	for n := 0; l.until.Err() == nil; n++ {
		_ = l.on(addr, func(ctx context.Context, conn *pgx.Conn) error {
			for ; l.until.Err() == nil; n++ {
				r := seen{by: name}
				sql := readList
				if n%2 == 0 {
					sql += "/*wirefence.token='list=1'*/" // which a standby can't judge
				}
				if err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}[n/2%2]}, func(tx pgx.Tx) error {
					return tx.QueryRow(ctx, sql).Scan(&r.length, &r.sum)
				}); err != nil {
					return err
				}
				l.mu.Lock()
				l.reads = append(l.reads, r)
				l.mu.Unlock()
				l.count("read on the standby")
				time.Sleep(2 * time.Millisecond)
			}
			return nil
		})
	}
}

// on connects as app and does something.
func (l *lists) on(addr string, do func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://app@%s/%s?sslmode=disable", addr, l.primary.Name))
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	return do(context.Background(), conn)
}

// holder takes the lock from the present holder, and goes on under its token until it is refused.
type holder struct {
	*lists
	name   string
	addr   string
	moves  bool // to a standby that was promoted
	random *rand.Rand
	items  int
	last   string // the item that was appended last
	used   int64  // the token under which it was
}

func (h *holder) run() {
	pause := 200 * time.Millisecond
	for h.until.Err() == nil {
		token, err := h.acquire()
		if err != nil {
			h.count("no grant")
			continue
		}
		h.count("grants")
		for refused := false; !refused && h.until.Err() == nil; {
			err := h.on(h.addr, func(ctx context.Context, conn *pgx.Conn) error {
				for h.until.Err() == nil {
					if err := h.step(ctx, conn, token); err != nil {
						return err
					}
					time.Sleep(time.Duration(h.random.IntN(10)) * time.Millisecond)
				}
				return nil
			})
			if refused = fence.IsStale(err); err != nil && !refused {
				h.count("cut off")
				time.Sleep(10 * time.Millisecond)
			}
		}
		// On a slow machine holders would take the lock from each other before one of them has used it.
		if pause = min(2*pause, 5*time.Second); h.used == token {
			pause = 200 * time.Millisecond
		}
		time.Sleep(time.Duration(h.random.Int64N(int64(pause))))
	}
}

// acquire seals the next token.
func (h *holder) acquire() (token int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	at := h.primary
	if h.moves && h.promoted.Load() {
		at = h.standby
	}
	conn, err := pgx.Connect(ctx, at.URL(h.primary.Name))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	var sealed bool
	err = conn.QueryRow(ctx, "select last_token + 1, wirefence.seal('list', last_token + 1, $1) from wirefence.resource_locks where resource_id = 'list'", h.name).Scan(&token, &sealed)
	if err == nil && !sealed {
		err = errors.New("a newer one was sealed")
	}
	return token, err
}

// step reads, appends, or does both in one transaction. It returns an error behind which the
// connection is no good, or the holder none any more.
func (h *holder) step(ctx context.Context, conn *pgx.Conn, token int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	f, err := fence.New(fence.Pair{Resource: "list", Token: fence.Token(token)})
	if err != nil {
		return err
	}
	a := appended{by: h.name, item: fmt.Sprintf("%d/%s.%d", token, h.name, h.items), token: token}
	r := seen{by: h.name, token: token, after: h.last, length: -1}
	h.items++
	reads := func(q interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}, sql string) error {
		return q.QueryRow(ctx, sql).Scan(&r.length, &r.sum)
	}
	appends := h.random.IntN(3) > 0
	switch h.random.IntN(3) {
	case 0: // in comments
		if err = reads(conn, readList+f.Comment()); err == nil && appends {
			_, err = conn.Exec(ctx, appendItem+f.Comment(), pgx.QueryExecModeSimpleProtocol, a.item)
		}
	case 1: // by the session variable
		if _, err = conn.Exec(ctx, f.Session()); err == nil {
			err = reads(conn, readList)
		}
		if err == nil && appends {
			_, err = conn.Exec(ctx, appendItem, a.item)
		}
	default:
		level := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}[h.random.IntN(3)]
		err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, f.Transaction()); err != nil {
				return err
			}
			if err := reads(tx, readList); err != nil || !appends {
				return err
			}
			_, err := tx.Exec(ctx, appendItem, a.item)
			time.Sleep(time.Duration(h.random.IntN(5)) * time.Millisecond)
			return err
		})
	}
	answer := (*pgconn.PgError)(nil)
	switch {
	case err == nil:
		a.fate = committed
	case errors.As(err, &answer) && answer.Code[:2] != "57" && answer.Code[:2] != "08":
		a.fate = aborted
		h.count(answer.Code)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if appends {
		h.appends = append(h.appends, a)
	}
	if err == nil {
		where := ""
		if token >= jump {
			where = " behind the promotion"
		}
		h.reads = append(h.reads, r)
		h.counts["read"+where]++
		if appends {
			h.last, h.used = a.item, token
			h.counts["appended"+where]++
		}
	}
	if a.fate == aborted && answer.Code[:2] == "40" {
		return nil
	}
	return err
}
