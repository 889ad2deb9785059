package fencingtest

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/model"
	"github.com/wirefence/wirefence/proxy"
)

var (
	length = flag.Duration("traffic", 0, "how long random traffic meets takeovers in each run; 0 is 5s, with -short 1s")
	seed   = flag.Uint64("seed", 0, "of random traffic; 0 takes another each time")
)

//go:embed testdata/traffic.sql
var trafficObjects string

const (
	// trafficClients is how many clients send random traffic at once.
	trafficClients = 8
	// first is the token that is sealed from the beginning.
	first = 34
)

// TestNoStaleWriteUnderRandomTraffic lets clients send random statements in all forms of
// the protocol, under the current token and the one before, while the token moves on.
// Once a seal has returned, no more rows of older tokens may appear. With the proxy off
// they must.
//
// Evidence: I1, I2
func TestNoStaleWriteUnderRandomTraffic(t *testing.T) {
	for _, major := range stack.Some(t, everyVersion) {
		for _, c := range []struct {
			name   string
			o      proxy.Options
			behind upstreamKind
			want   []string // SQLSTATEs that clients must get
			walked []model.Kind
		}{
			{"a fence is allowed", proxy.Options{}, server, []string{"WF001", "WF006"}, nil},
			{"a fence is required", proxy.Options{UnfencedWrites: proxy.Reject}, server, []string{"WF001", "WF002", "WF006"}, walked},
			{"no holds", proxy.Options{Hold: -1}, server, []string{"WF001", "WF006"}, walked[:6]},
			{"holds that nobody asks for", proxy.Options{}, serverAlone, []string{"WF001", "WF006"}, walked},
			{"before a transaction pooler", proxy.Options{}, pooler, []string{"WF001", "WF006"}, nil},
			{"before another proxy", proxy.Options{}, anotherProxy, []string{"WF001", "WF006"}, nil},
			{"the proxy is off", proxy.Options{Mode: proxy.Off}, server, nil, walked},
		} {
			t.Run(fmt.Sprint(major, " ", c.name), func(t *testing.T) {
				tr := newTraffic(t, major, c.o, c.behind)
				if c.walked != nil {
					tr.steps = stack.TellSteps(t, tr.Admin, "written", "orders")
				}
				begun, lasts := time.Now(), trafficLength()
				lacks := func() bool { return !tr.saw(c.want) }
				if c.o.Mode == proxy.Off {
					lasts, lacks = 0, func() bool { return len(tr.stale(t, first)) == 0 }
				}
				tr.run(t, func() bool {
					passed := time.Since(begun)
					return (passed < lasts || passed < stack.Patience && lacks()) && (c.o.Mode == proxy.Off || len(tr.stale(t, tr.current.Load()-1)) == 0 && tr.follow(t, false) == nil)
				})
				t.Logf("it took %s", time.Since(begun).Round(100*time.Millisecond))
				tr.judge(t, c.o.Mode == proxy.Off, c.want)
				tr.walk(t, c.o.Mode == proxy.Off, c.walked)
			})
		}
	}
}

// walked are the kinds of steps that a run must have, which is walked through the model.
var walked = []model.Kind{model.Wanted, model.Sealed, model.Granted, model.Checked, model.Ran, model.Commits, model.Held, model.Unheld}

// follow walks the steps so far, and returns what is wrong with the first that can't be.
func (tr *traffic) follow(t *testing.T, last bool) error {
	t.Helper()
	if tr.steps != nil && tr.cannotBe == nil {
		var err error
		if tr.cannotBe, err = tr.steps.Follow(t.Context(), tr.Admin, last); err != nil {
			t.Fatal(err)
		}
	}
	return tr.cannotBe
}

// walk looks at the steps of a run that tells them. unfenced says that one of them can't be.
func (tr *traffic) walk(t *testing.T, unfenced bool, kinds []model.Kind) {
	t.Helper()
	if tr.steps == nil {
		return
	}
	wrong := tr.follow(t, true)
	t.Logf("steps: %v, and then %v", tr.steps.Counts(), wrong)
	switch missing := tr.steps.Missing(slices.Clone(kinds)...); {
	case unfenced && wrong == nil:
		t.Error("the model has each step, though nothing fences")
	case unfenced:
	case wrong != nil:
		var pid uint32
		_, _ = fmt.Sscanf(wrong.Error(), "ran %d/", &pid)
		t.Errorf("%v\n%s\nits last rows: %s", wrong, strings.Join(tr.stories[pid], "\n"), stack.Value[string](t, tr.DB,
			"SELECT coalesce(string_agg(how || ' ' || token || ' at ' || at, ', '), '') FROM (SELECT * FROM written WHERE pid = $1 ORDER BY at DESC LIMIT 5) AS w", pid))
	case len(missing) > 0:
		t.Errorf("no step is %v", missing)
	}
}

func trafficLength() time.Duration {
	switch {
	case *length > 0:
		return *length
	case testing.Short():
		return time.Second
	}
	return 5 * time.Second
}

// upstreamKind is what is behind the proxy.
type upstreamKind int

const (
	server       upstreamKind = iota
	serverAlone               // the proxy has no connection on which it asks whether holds are wanted
	pooler                    // a transaction pooler
	anotherProxy              // which asks, too
)

// traffic is one run.
type traffic struct {
	*stack.DB
	addr    string
	pooled  bool // there is a transaction pooler behind the proxy
	chained bool // there is another proxy
	seed    uint64

	steps    *stack.Steps // nil where they aren't told
	cannotBe error        // what is wrong with one of them
	current  atomic.Int64 // the token that was sealed last
	answered atomic.Int64 // what clients sent in one go

	mu       sync.Mutex
	outcomes map[string]int      // by SQLSTATE
	stories  map[uint32][]string // of sessions, by backend
	faults   []string            // answers that no client may get
}

func newTraffic(t *testing.T, major int, o proxy.Options, behind upstreamKind) *traffic {
	t.Helper()
	tr := &traffic{DB: suite.Database(t, major), pooled: behind == pooler, chained: behind == anotherProxy, seed: *seed, outcomes: map[string]int{}, stories: map[uint32][]string{}}
	if tr.seed == 0 {
		tr.seed = rand.Uint64()
	}
	tr.Exec(t, trafficObjects)
	tr.current.Store(first)
	o.DrainTimeout = time.Second
	o.Upstream = "postgres://" + tr.Addr() + "/"
	switch behind {
	case server:
		o.DatabaseURL = tr.URL(tr.Name)
	case pooler:
		cfg := servers.PgBouncerConfig{PoolSize: trafficClients / 2, PoolMode: "transaction", Passwords: map[string]string{"app": ""}}
		o.Upstream = "postgres://" + pgbouncer(t, tr.Addr(), cfg) + "/"
	case anotherProxy:
		o.DatabaseURL = tr.URL(tr.Name)
		o.Upstream = "postgres://" + stack.Serve(t, o).Addr + "/"
	}
	tr.addr = stack.Serve(t, o).Addr
	return tr
}

// run lets clients send, and the token move on, for as long as more says.
func (tr *traffic) run(t *testing.T, more func() bool) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for n := range trafficClients {
		draw := rand.New(rand.NewPCG(tr.seed, uint64(n)))
		clients.Go(func() {
			for ctx.Err() == nil {
				tr.session(ctx, t, draw)
			}
		})
	}
	draw := rand.New(rand.NewPCG(tr.seed, trafficClients))
	for more() {
		enough := tr.answered.Load() + int64(draw.IntN(5*trafficClients))
		stack.Eventually(t, "the clients go on", func() bool { return tr.answered.Load() >= enough })
		next := tr.current.Load() + 1
		tr.Seal(t, "orders", next)
		if tr.steps != nil {
			tr.steps.Granted(t, tr.Admin, next)
		}
		stack.MustExec(t, tr.Admin, "INSERT INTO sealed SELECT $1, count(*) FROM written WHERE token < $1", next)
		tr.current.Store(next)
	}
}

// staleSQL lists the rows of older tokens that weren't there when a token had been sealed: as
// many as there are, of those that were committed last. It has them for the first such token only,
// from $1 on.
const staleSQL = `
WITH late AS (
    SELECT s.token, count(*) - s.older AS rows FROM sealed AS s JOIN written AS w ON w.token < s.token
    WHERE s.token >= $1 GROUP BY s.token, s.older HAVING count(*) > s.older ORDER BY s.token LIMIT 1
)
SELECT format('seal of %s, then row %s of token %s by a %s of backend %s at %s', late.token, w.id, w.token, w.how, w.pid, w.at), w.pid
FROM late CROSS JOIN LATERAL (
    SELECT * FROM written WHERE written.token < late.token ORDER BY pg_xact_commit_timestamp(xmin) DESC LIMIT late.rows
) AS w`

// stale lists stale rows, by the backends that wrote them. A row that is too late for a token is so
// for the next ones, too, until these are sealed: who asks after each seal needs the last two alone.
func (tr *traffic) stale(t *testing.T, since int64) map[string]uint32 {
	t.Helper()
	rows, err := tr.Admin.Query(t.Context(), staleSQL, since)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]uint32{}
	var what string
	var pid uint32
	if _, err := pgx.ForEachRow(rows, []any{&what, &pid}, func() error { found[what] = pid; return nil }); err != nil {
		t.Fatal(err)
	}
	return found
}

// saw reports whether clients have got errors of all these SQLSTATEs.
func (tr *traffic) saw(states []string) bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return !slices.ContainsFunc(states, func(state string) bool { return tr.outcomes[state] == 0 })
}

// judge looks at what there is in the end. unfenced says that there must be stale rows.
func (tr *traffic) judge(t *testing.T, unfenced bool, want []string) {
	t.Helper()
	t.Logf("-seed %d: %d seals, %d exchanges, errors %v", tr.seed, tr.current.Load()-first, tr.answered.Load(), tr.outcomes)
	found := tr.stale(t, first)
	switch {
	case unfenced && len(found) == 0:
		t.Error("no stale row was found, though nothing fences")
	case !unfenced:
		for row, pid := range found {
			t.Errorf("%s\n%s", row, strings.Join(tr.stories[pid], "\n"))
		}
	}
	for _, fault := range tr.faults {
		t.Error(fault)
	}
	if !tr.saw(want) {
		t.Errorf("not all of %v came", want)
	}
	kinds := stack.Value[string](t, tr.DB, "SELECT coalesce(string_agg(how || ': ' || n, ', ' ORDER BY n DESC), '') FROM (SELECT how, count(*) AS n FROM written GROUP BY how) AS k")
	if t.Logf("rows written by %s", kinds); kinds == "" {
		t.Error("no row was ever written")
	}
}
