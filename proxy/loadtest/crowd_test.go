package loadtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
)

// crowd is all clients of one run, and what they found.
type crowd struct {
	pg        *servers.Postgres
	database  string
	proxy     string
	seed      uint64
	resources []*resource
	journal   *journal
	sought    string // a fault that says so ends the run; if empty, the fifth of any does
	end       context.CancelFunc

	mu         sync.Mutex
	faults     []string
	dumped     bool
	outcomes   map[string]int
	durations  []time.Duration // of transactions
	takeovers  []time.Duration
	mostTries  int
	sideBySide int // the most transactions that held one resource at a time
}

func (c *crowd) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := fmt.Sprintf(format, args...)
	c.faults = append(c.faults, found)
	if c.sought == "" && len(c.faults) == 5 || c.sought != "" && strings.Contains(found, c.sought) {
		c.end()
	}
}

// url is a role's connection string, direct or through the proxy.
func (c *crowd) url(role string, proxied bool) string {
	if proxied {
		return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", role, c.proxy, c.database)
	}
	return c.pg.URLFor(role, c.database)
}

func (c *crowd) count(p plan, f fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[strings.Join([]string{fates[f], ways[p.way()], p.isolation}, ", ")]++
	c.outcomes[fates[f]]++
}

var fates = map[fate]string{committed: "committed", refused: "refused", conflict: "40001", ended: "ended", faulty: "faulty"}

func (c *crowd) took(d time.Duration, tries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.durations = append(c.durations, d)
	c.mostTries = max(c.mostTries, tries)
}

func (c *crowd) tookOver(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takeovers = append(c.takeovers, d)
}

// run lets writers and takers work until each has done its part, or time is up.
func (c *crowd) run(ctx context.Context, load load) error {
	workers, stop := context.WithCancel(ctx)
	defer stop()
	c.end = stop
	var writers, takers, watchers sync.WaitGroup
	for n := range load.writers {
		writers.Go(func() {
			w := newWriter(c, n+1)
			defer w.close()
			for i := 0; workers.Err() == nil && load.goOn(i, load.transactions); i++ {
				w.transact(workers)
			}
		})
	}
	for n := range load.takers {
		takers.Go(func() {
			k := newTaker(c, n+1)
			defer k.close()
			for i := 0; workers.Err() == nil && load.goOn(i, load.takeovers); i++ {
				k.takeOver(workers)
			}
		})
	}
	watched, watching := context.WithCancel(ctx)
	errs := make(chan error, 2)
	watchers.Go(func() { errs <- c.follow(watched) })
	watchers.Go(func() { errs <- c.watch(watched) })
	writers.Wait()
	takers.Wait()
	watching()
	watchers.Wait()
	for range 2 {
		if err := <-errs; err != nil {
			return err
		}
	}
	for more := true; more; {
		var err error
		if more, err = c.journal.read(ctx); err != nil {
			return err
		}
	}
	c.journal.compare()
	return nil
}

// follow reads what is committed while it is, until there is no end of a run to be
// waited for.
func (c *crowd) follow(ctx context.Context) error {
	for ticks := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			ticks.Stop()
			return nil
		case <-ticks.C:
		}
		if _, err := c.journal.read(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
}

const sideBySide = `SELECT coalesce(max(n), 0) FROM (
	SELECT count(DISTINCT pid) AS n FROM wirefence.lock_holders WHERE NOT exclusive GROUP BY key) AS held`

// watch looks how many hold one resource together.
func (c *crowd) watch(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, c.pg.URL(c.database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for ticks := time.NewTicker(100 * time.Millisecond); ; {
		var n int
		if err := conn.QueryRow(context.WithoutCancel(ctx), sideBySide).Scan(&n); err != nil {
			return err
		}
		c.mu.Lock()
		c.sideBySide = max(c.sideBySide, n)
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			ticks.Stop()
			return nil
		case <-ticks.C:
		}
	}
}

const whoWaits = `SELECT concat_ws(' ', a.pid, a.usename, a.state, now() - a.xact_start, 'waits for', pg_blocking_pids(a.pid)::text,
		(SELECT string_agg(concat_ws('/', l.locktype, l.classid, l.objid, l.objsubid, l.mode), ',') FROM pg_locks AS l WHERE l.pid = a.pid AND NOT l.granted),
		left(a.query, 300))
	FROM pg_stat_activity AS a WHERE a.datname = current_database() AND a.xact_start IS NOT NULL ORDER BY a.xact_start`

// hung records who waits for whom, once.
func (c *crowd) hung() {
	c.mu.Lock()
	first := !c.dumped
	c.dumped = true
	c.mu.Unlock()
	if !first {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.pg.URL(c.database))
	if err != nil {
		c.fault("who waits: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, whoWaits)
	if err != nil {
		c.fault("who waits: %v", err)
		return
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	c.fault("who waits (%v):\n  %s", err, strings.Join(lines, "\n  "))
}

// report is the run in figures.
func (c *crowd) report() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c.outcomes)) {
		fmt.Fprintf(&b, "%7d %s\n", c.outcomes[name], name)
	}
	fmt.Fprintf(&b, "transactions took %s, with at most %d retries\n", spread(c.durations), c.mostTries)
	fmt.Fprintf(&b, "%d takeovers by seal or revocation took %s\n", len(c.takeovers), spread(c.takeovers))
	fmt.Fprintf(&b, "%d tokens recorded, %d rows decoded, up to %d transactions at one resource\nsteps: %v\n", c.journal.takeovers, c.journal.decoded, c.sideBySide, c.journal.steps.Counts())
	return b.String()
}

// spread says how durations are spread. It sorts them.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "no time"
	}
	slices.Sort(all)
	at := func(permille int) time.Duration {
		return all[min(len(all)*permille/1000, len(all)-1)].Round(time.Millisecond)
	}
	return fmt.Sprintf("%v (half of them), %v (99 %%), %v (the longest)", at(500), at(990), at(1000))
}
