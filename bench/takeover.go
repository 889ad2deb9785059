package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

const (
	// preemptAfter is the policy of the resource whose holder has an open transaction.
	preemptAfter = time.Second
	// takenOverWithin bounds every wait for what must come at once.
	takenOverWithin = 30 * time.Second
	// busyFor is how long sessions go on with a token before the next seal: several
	// times what a hold lasts.
	busyFor        = 150 * time.Millisecond
	frozenSessions = 8
)

// crowd is so many sessions that insert, with a pause between two inserts of each. Without
// one they keep two cores busy, and a takeover waits for the machine, too.
type crowd struct {
	sessions int
	pause    time.Duration
}

var (
	crowds  = []crowd{{16, 0}, {64, 0}, {64, 10 * time.Millisecond}}
	busiest = crowds[1]
)

func (c crowd) String() string {
	if c.pause == 0 {
		return fmt.Sprintf("%d busy sessions", c.sessions)
	}
	return fmt.Sprintf("%d sessions, an insert each %v", c.sessions, c.pause)
}

// takeovers are the times of wirefence.seal, in ascending order.
type takeovers struct {
	busy         map[crowd][]time.Duration
	beside       []time.Duration // the busiest sessions work for another resource
	frozen, open []time.Duration
}

func (w *world) measureTakeovers(ctx context.Context, rounds, seconds int) (*takeovers, error) {
	issuer, err := pgx.Connect(ctx, w.postgres.URL(database))
	if err != nil {
		return nil, err
	}
	defer issuer.Close(ctx)
	all := &takeovers{busy: map[crowd][]time.Duration{}}
	for _, c := range crowds {
		log.Printf("takeover: %v", c)
		if all.busy[c], err = w.takeOverBusy(ctx, issuer, c, "", 10*rounds*seconds); err != nil {
			return nil, fmt.Errorf("takeover, %v: %w", c, err)
		}
	}
	log.Print("takeover: another resource than the sessions'")
	if all.beside, err = w.takeOverBusy(ctx, issuer, busiest, "beside", 10*rounds*seconds); err != nil {
		return nil, fmt.Errorf("takeover of another resource: %w", err)
	}
	for i := range int64(rounds) {
		log.Printf("takeover: frozen proxy, round %d of %d", i+1, rounds)
		took, err := w.takeOverFrozen(ctx, issuer, 2*i+1)
		if err != nil {
			return nil, fmt.Errorf("takeover, frozen proxy: %w", err)
		}
		all.frozen = append(all.frozen, took)
		if took, err = w.takeOverOpen(ctx, issuer, 2*i+1); err != nil {
			return nil, fmt.Errorf("takeover, open transaction: %w", err)
		}
		all.open = append(all.open, took)
	}
	slices.Sort(all.frozen)
	slices.Sort(all.open)
	return all, nil
}

// seal records a grant and returns how long that took.
func seal(ctx context.Context, issuer *pgx.Conn, resource string, token int64) (time.Duration, error) {
	began := time.Now()
	var granted bool
	err := issuer.QueryRow(ctx, "SELECT wirefence.seal($1, $2, 'bench')", resource, token).Scan(&granted)
	if err == nil && !granted {
		err = fmt.Errorf("token %d of %s was not granted", token, resource)
	}
	return time.Since(began), err
}

// workerURL is for a role that is no superuser: a takeover may not end a superuser's
// session.
func workerURL(port int) string {
	return strings.Replace(url(port), "postgres@", "worker@", 1)
}

// worker is a session that inserts without a pause. When its token is stale it goes on
// with the present one.
type worker struct {
	conn     *pgconn.PgConn
	resource string
	variable bool // the fence is in the session variable, otherwise in a comment
	pause    time.Duration
	present  *atomic.Int64
	done     atomic.Int64 // the token of its last insert
}

// work ends without an error when over is closed.
func (w *worker) work(ctx context.Context, over <-chan struct{}) error {
	const sql = "INSERT INTO entries (worker, amount) VALUES (17, 42)"
	if w.variable {
		if _, err := w.conn.Prepare(ctx, "insert", sql, nil); err != nil {
			return err
		}
	}
	var token int64
	for {
		select {
		case <-over:
			return nil
		default:
		}
		time.Sleep(w.pause)
		var err error
		if now := w.present.Load(); now != token {
			if token = now; w.variable {
				err = w.conn.Exec(ctx, fmt.Sprintf("SET wirefence.token = '%s=%d'", w.resource, token)).Close()
			}
		}
		switch {
		case err != nil:
		case w.variable:
			err = w.conn.ExecPrepared(ctx, "insert", nil, nil, nil).Read().Err
		default:
			err = w.conn.Exec(ctx, fmt.Sprintf("%s /*wirefence.token='%s=%d'*/", sql, w.resource, token)).Close()
		}
		if err == nil {
			w.done.Store(token)
		} else if failed := (*pgconn.PgError)(nil); !errors.As(err, &failed) || failed.Code != string(fence.StaleToken) {
			return err
		}
	}
}

// takeOverBusy seals n times against sessions that insert with the token before. If
// another resource is named, that one is sealed, and the sessions keep their token.
func (w *world) takeOverBusy(ctx context.Context, issuer *pgx.Conn, c crowd, another string, n int) (times []time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resource := fmt.Sprintf("busy:%d:%d%s", c.sessions, c.pause, another)
	var present atomic.Int64
	if _, err := seal(ctx, issuer, resource, 1); err != nil {
		return nil, err
	}
	present.Store(1)
	workers, all, over, err := start(ctx, w.ports[wirefence], resource, c, &present)
	if err != nil {
		return nil, err
	}
	for token := int64(2); token <= int64(n)+1 && err == nil; token++ {
		time.Sleep(busyFor)
		if err = working(ctx, workers, present.Load()); err != nil {
			break
		}
		var took time.Duration
		took, err = seal(ctx, issuer, cmp.Or(another, resource), token)
		times = append(times, took)
		if another == "" {
			present.Store(token)
		}
	}
	close(over)
	slices.Sort(times)
	return times, all.wait(err)
}

// start lets sessions work through a proxy until over is closed.
func start(ctx context.Context, port int, resource string, c crowd, present *atomic.Int64) (workers []*worker, all *tasks, over chan struct{}, err error) {
	conns, err := open(ctx, workerURL(port), c.sessions)
	if err != nil {
		for _, conn := range conns {
			_ = conn.Close(ctx)
		}
		return nil, nil, nil, err
	}
	all, over = &tasks{}, make(chan struct{})
	for i, conn := range conns {
		one := &worker{conn: conn, resource: resource, variable: i%2 == 0, pause: c.pause, present: present}
		workers = append(workers, one)
		all.run(func() error {
			defer conn.Close(context.WithoutCancel(ctx))
			return one.work(ctx, over)
		})
	}
	return workers, all, over, nil
}

// working waits until all have inserted with a token.
func working(ctx context.Context, workers []*worker, token int64) error {
	ctx, cancel := context.WithTimeout(ctx, takenOverWithin)
	defer cancel()
	for _, one := range workers {
		for one.done.Load() < token {
			select {
			case <-ctx.Done():
				return fmt.Errorf("a session doesn't insert with token %d: %w", token, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// takeOverFrozen stops a proxy of whose sessions some hold, without a transaction.
func (w *world) takeOverFrozen(ctx context.Context, issuer *pgx.Conn, token int64) (took time.Duration, err error) {
	const resource = "frozen"
	p, err := w.startProxy(ctx, w.postgres.Addr(), launch{w.binary, []string{w.issuer()}})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	var present atomic.Int64
	if _, err := seal(ctx, issuer, resource, token); err != nil {
		return 0, err
	}
	present.Store(token)
	workers, all, over, err := start(ctx, p.Port, resource, crowd{sessions: frozenSessions}, &present)
	if err != nil {
		return 0, err
	}
	for holders := 0; holders == 0 && err == nil; {
		if err = working(ctx, workers, token); err != nil {
			break
		}
		time.Sleep(busyFor)
		if err = p.Pause(); err == nil {
			holders, err = idleHolders(ctx, issuer)
		}
		if holders == 0 && err == nil {
			err = p.Resume()
		}
	}
	if err == nil {
		took, err = seal(ctx, issuer, resource, token+1)
	}
	close(over)
	p.Close()
	_ = all.wait(nil) // the sessions have broken with their proxy
	return took, err
}

// idleHolders counts the sessions that have an advisory lock and no transaction.
func idleHolders(ctx context.Context, issuer *pgx.Conn) (n int, err error) {
	err = issuer.QueryRow(ctx, `SELECT count(DISTINCT pid) FROM pg_catalog.pg_locks JOIN pg_catalog.pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND granted AND state = 'idle'`).Scan(&n)
	return n, err
}

// takeOverOpen stops a proxy of which a session has an open transaction.
func (w *world) takeOverOpen(ctx context.Context, issuer *pgx.Conn, token int64) (time.Duration, error) {
	const resource = "open"
	p, err := w.startProxy(ctx, w.postgres.Addr(), launch{w.binary, []string{w.issuer()}})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	if _, err := seal(ctx, issuer, resource, token); err != nil {
		return 0, err
	}
	if _, err := issuer.Exec(ctx, "UPDATE wirefence.resource_locks SET preempt_after = $2 WHERE resource_id = $1", resource, preemptAfter); err != nil {
		return 0, err
	}
	conn, err := pgconn.Connect(ctx, workerURL(p.Port))
	if err != nil {
		return 0, err
	}
	defer conn.Conn().Close() // without a farewell, which nobody would read
	text := fmt.Sprintf("BEGIN; INSERT INTO entries (worker, amount) VALUES (17, 42) /*wirefence.token='%s=%d'*/", resource, token)
	if err := conn.Exec(ctx, text).Close(); err != nil {
		return 0, err
	}
	if err := p.Pause(); err != nil {
		return 0, err
	}
	return seal(ctx, issuer, resource, token+1)
}

// takeoverTable shows how long wirefence.seal takes.
func (b *book) takeoverTable(p *page) {
	t := b.takeovers
	if t == nil {
		return
	}
	p.section("## Takeovers",
		fmt.Sprintf("How long `wirefence.seal` takes while sessions have the token before. Busy sessions insert without a pause through the proxy, one half with the fence in the session variable, one half with it in a comment. A frozen proxy was stopped by SIGSTOP: with %d such sessions, or with an open transaction, where `preempt_after` is %v. A seal of another resource waits for no session: its time is what the busy machine adds.", frozenSessions, preemptAfter),
		"| against | takeovers | p50 ms | p95 ms | p99 ms | worst ms |",
		"|---|---:|---:|---:|---:|---:|")
	row := func(name string, times []time.Duration) {
		p.line("| %s | %d | %s | %s | %s | %s |", name, len(times), ms(percentile(times, 50)), ms(percentile(times, 95)), ms(percentile(times, 99)), ms(percentile(times, 100)))
	}
	for _, c := range crowds {
		row(c.String(), t.busy[c])
	}
	row(busiest.String()+" of another resource", t.beside)
	row("a frozen proxy, idle sessions", t.frozen)
	row("a frozen proxy, an open transaction", t.open)
}
