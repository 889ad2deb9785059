//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/model"
)

const (
	seats = 5 // clients at a time
	// preemptAfter is the resource's: a takeover must not outlast a lease.
	preemptAfter = 100 * time.Millisecond
	// Clients are no superusers, whose transactions nobody else can end.
	writerRole, issuerRole = "writer", "issuer"
	// recovery bounds how long it may take after the last fault until somebody
	// is granted the lease and writes.
	recovery = time.Minute
)

// world is one run: servers, clients in their seats, and faults.
type world struct {
	kind   kind
	fault  fault
	seed   uint64
	defect defect

	pg       *servers.Postgres // the judge
	database string
	store    store
	toStore  []*servers.Link // by seat; none where clients find the servers themselves
	toSealer []*servers.Link // by seat; none where the store is the judge

	mu     sync.Mutex
	bySeat []*process // by seat
	lived  []*process // all that ever were
	closed bool

	// Owned by what strikes at the servers.
	strikes     int
	revocations []revocation

	steps    *stack.Steps // nil where tokens aren't sealed
	progress chan record  // grants and commits, as they are told
}

// open creates the database and the store, and the networks between the seats and them,
// but no clients.
func open(t *testing.T, k kind, f fault, d defect, seed uint64) *world {
	t.Helper()
	w := &world{kind: k, fault: f, defect: d, seed: seed, progress: make(chan record, 1)}
	if f.hitsJudge {
		w.pg = stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: suite.Settings})).EndWith(t)
	} else {
		w.pg = suite.Server(t, 0)
	}
	var err error
	if w.database, err = stack.CreateDatabase(t.Context(), w.pg, suite.Objects); err != nil {
		t.Fatal(err)
	}
	w.prepare(t)
	w.store = k.start(t, w)
	link := func(addr string) *servers.Link {
		return stack.Started(servers.StartLink(addr)).EndWith(t)
	}
	for seat := range seats {
		if addr := w.store.addr(seat); addr != "" {
			w.toStore = append(w.toStore, link(addr))
		}
		if !k.judges && d != unsealed {
			w.toSealer = append(w.toSealer, link(w.pg.Addr()))
		}
	}
	return w
}

// prepare creates the tables. The resource is declared before, since it has a policy.
func (w *world) prepare(t *testing.T) {
	t.Helper()
	url := w.pg.URL(w.database)
	stack.Exec(t, url, schema, "GRANT SELECT, INSERT ON journal TO "+writerRole, "GRANT wirefence_issuer TO "+issuerRole)
	if w.defect != unsealed { // else tokens advance on their use
		stack.Exec(t, url,
			fmt.Sprintf("SELECT wirefence.seal('%s', 1, 'the test')", resource),
			fmt.Sprintf("UPDATE wirefence.resource_locks SET preempt_after = '%d ms'", preemptAfter.Milliseconds()))
	}
	conn := stack.Connect(t, url)
	stack.MustExec(t, conn, serverDefects[w.defect])
	if w.defect != unsealed {
		w.steps = stack.TellStepsAlone(t, conn, "journal", string(resource))
	}
	if err := watchCommits(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
}

// startInSeat starts a new client in a seat.
func (w *world) startInSeat(seat int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	life := len(w.lived)
	s := settings{
		Name: fmt.Sprintf("c%d", life+1), Store: w.kind.store, TTL: w.kind.ttl, Defect: w.defect,
		Journal: w.pg.URLFor(writerRole, w.database), Seed: w.seed + uint64(life),
	}
	addr := ""
	if len(w.toStore) > 0 {
		addr = w.toStore[seat].Addr()
	}
	s.URL = w.store.url(addr)
	if len(w.toSealer) > 0 {
		s.Sealer = w.issuerURL(w.toSealer[seat].Addr()) + "&connect_timeout=2"
	}
	p, err := startClient(s, life, w.reportProgress)
	if err != nil {
		return err
	}
	w.lived = append(w.lived, p)
	if seat == len(w.bySeat) {
		w.bySeat = append(w.bySeat, p)
	} else {
		w.bySeat[seat] = p
	}
	return nil
}

// issuerURL returns the connection string of an issuer.
func (w *world) issuerURL(addr string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", issuerRole, addr, w.database)
}

// clientIn returns the client in a seat.
func (w *world) clientIn(seat int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bySeat[seat]
}

// reportProgress passes on records that show progress. If the channel is full, it drops
// the record: the next is enough.
func (w *world) reportProgress(r record) {
	if r.What == granted || r.What == wrote && r.Fate == committed {
		select {
		case w.progress <- r:
		default:
		}
	}
}

// awaitProgress waits for a grant and a commit from now on.
func (w *world) awaitProgress(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	since := now()
	grant, commit := false, false
	for !grant || !commit {
		select {
		case r := <-w.progress:
			if r.At > since {
				grant = grant || r.What == granted
				commit = commit || r.What == wrote
			}
		case <-ctx.Done():
			return fmt.Errorf("in %v there was a grant: %v, a commit: %v", recovery, grant, commit)
		}
	}
	return nil
}

// run lets clients run and faults strike for a while, repairs everything, and waits until
// the clients make progress again. It returns the history.
func (w *world) run(ctx context.Context, length time.Duration) (*history, error) {
	defer w.end()
	for seat := range seats {
		if err := w.startInSeat(seat); err != nil {
			return nil, err
		}
	}
	if err := w.awaitProgress(ctx); err != nil {
		return nil, fmt.Errorf("before any fault: %w", err)
	}
	err := w.injectFaults(ctx, length)
	if err == nil {
		err = w.awaitProgress(ctx)
	}
	if err != nil {
		return nil, err
	}
	w.end()
	return w.readHistory(ctx)
}

// injectFaults lets faults strike for a while and returns when all are repaired. A repair
// may take longer; until then clients continue to stall and die.
func (w *world) injectFaults(ctx context.Context, length time.Duration) error {
	while, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	untilMended, mended := context.WithCancel(ctx)
	defer mended()
	var both sync.WaitGroup
	var clients, servers error
	both.Go(func() { clients = w.injectClientFaults(untilMended, rand.New(rand.NewPCG(w.seed, 1))) })
	both.Go(func() {
		servers = w.injectServerFaults(while, rand.New(rand.NewPCG(w.seed, 2)))
		<-while.Done()
		mended()
	})
	both.Wait()
	return errors.Join(clients, servers)
}

// injectServerFaults lets the fault come and go.
func (w *world) injectServerFaults(ctx context.Context, r *rand.Rand) error {
	if w.fault.strike == nil {
		return nil
	}
	ttl := w.kind.ttl
	for pause := between(r, ttl/2, 3*ttl/2); wait(ctx, pause); pause = between(r, ttl, 5*ttl) {
		mend, err := w.fault.strike(w, r)
		if err != nil {
			return fmt.Errorf("%s: %w", w.fault.name, err)
		}
		w.strikes++
		wait(ctx, between(r, ttl/4, 2*ttl))
		if err := mend(); err != nil {
			return fmt.Errorf("mending %s: %w", w.fault.name, err)
		}
	}
	return nil
}

// injectClientFaults stalls clients, often for longer than a lease lasts, and kills
// some, in whose place others come.
func (w *world) injectClientFaults(ctx context.Context, r *rand.Rand) error {
	ttl := w.kind.ttl
	var stalls sync.WaitGroup
	defer stalls.Wait()
	for wait(ctx, between(r, ttl/2, 3*ttl/2)) {
		seat := r.IntN(seats)
		if r.IntN(3) == 0 {
			w.clientIn(seat).kill()
			if err := w.startInSeat(seat); err != nil {
				return err
			}
			continue
		}
		p, length := w.clientIn(seat), between(r, ttl/4, 2*ttl)
		p.stall()
		stalls.Go(func() {
			wait(ctx, length)
			p.resume()
		})
	}
	return nil
}

// end ends the clients. It may be called twice.
func (w *world) end() {
	w.mu.Lock()
	w.closed = true
	all := w.bySeat
	w.mu.Unlock()
	var ends sync.WaitGroup
	for _, p := range all {
		ends.Go(p.stop)
	}
	ends.Wait()
}

// readHistory combines the reports of the clients and the commits of PostgreSQL.
func (w *world) readHistory(ctx context.Context) (*history, error) {
	h := &history{revocations: w.revocations}
	if w.defect != unsealed {
		h.first = 1
	}
	for _, p := range w.lived {
		if p.err != nil {
			return nil, p.err
		}
		if err := h.add(p.Name, p.lane, p.records); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.Connect(ctx, w.pg.URL(w.database))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	err = h.readCommits(ctx, conn, w.steps)
	if w.steps != nil {
		h.cannotBe = missing(w.steps, h.cannotBe, model.Wanted, model.Sealed, model.Granted, model.Checked, model.Ran, model.Commits)
	}
	return h, err
}

// wait lets time pass, and is false when ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}
