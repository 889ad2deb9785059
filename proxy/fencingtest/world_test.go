package fencingtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// world is a database of a test's own, and the proxy that its clients use. The current
// token of orders is 34.
type world struct {
	*stack.DB
	proxy   string               // its address
	server  *stack.Running       // the proxy, if it is the test's own
	metrics *prometheus.Registry // of such a proxy
	busy    bool                 // sessions hold
	follows *servers.Link        // the network by which a standby follows its primary
}

func newWorld(t testing.TB, major int) *world {
	t.Helper()
	return &world{DB: suite.Database(t, major), proxy: suite.Proxy(t, major)}
}

// bareWorld is one without the schema.
func bareWorld(t testing.TB, major int) *world {
	t.Helper()
	return &world{DB: suite.Bare(t, major), proxy: suite.Proxy(t, major)}
}

// onEach runs a test on some versions, each with a world of its own.
func onEach(t *testing.T, versions []int, test func(t *testing.T, w *world)) {
	t.Helper()
	stack.OnEach(t, versions, func(t *testing.T, major int) { test(t, newWorld(t, major)) })
}

// onBoth runs a test on some versions, each with a world for either way of enforcement: in
// isolated sessions the proxy checks each transaction, in busy ones it holds.
func onBoth(t *testing.T, versions []int, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	for _, major := range stack.Some(t, versions) {
		for _, way := range []string{"isolated", "busy"} {
			t.Run(fmt.Sprintf("%d/%s", major, way), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, major)
				w.busy = way == "busy"
				test(t, w.own(t, proxy.Options{Hold: w.period()}))
			})
		}
	}
}

// period is the period of the proxy's holds in onBoth.
func (w *world) period() time.Duration {
	if w.busy {
		return time.Second
	}
	return -1
}

// own is the world behind a proxy of the test's own, by default before the database's server.
func (w *world) own(t testing.TB, o proxy.Options) *world {
	t.Helper()
	own := *w
	own.metrics = prometheus.NewRegistry()
	o.Registerer = own.metrics
	if o.Upstream == "" {
		o.Upstream = "postgres://" + w.Addr() + "/"
	}
	o.DrainTimeout = time.Second
	own.server = stack.Serve(t, o)
	own.proxy = own.server.Addr
	return &own
}

// at is the world whose clients use another address.
func (w *world) at(addr string) *world {
	other := *w
	other.proxy = addr
	return &other
}

// checks is how many checks the proxy has put in.
func (w *world) checks(t testing.TB) int { return w.metric(t, "wirefence_checks_total", nil) }

// metric is a metric of the test's own proxy.
func (w *world) metric(t testing.TB, name string, labels map[string]string) int {
	t.Helper()
	return int(stack.Metric(t, w.metrics, name, labels))
}

// count is the one number of a query by the superuser.
func (w *world) count(t testing.TB, sql string, args ...any) int {
	t.Helper()
	return stack.Value[int](t, w.DB, sql, args...)
}

// rows is how many rows jobs has.
func (w *world) rows(t testing.TB) int { t.Helper(); return w.count(t, "select count(*) from jobs") }

func (w *world) wantRows(t testing.TB, want int) {
	t.Helper()
	if got := w.rows(t); got != want {
		t.Errorf("%d rows were written, want %d", got, want)
	}
}

// rowsOf is how many rows of jobs were written with a token.
func (w *world) rowsOf(t testing.TB, token int) int {
	t.Helper()
	return w.count(t, "select count(*) from jobs where token = $1", token)
}

func (w *world) wantRowsOf(t testing.TB, token, want int) {
	t.Helper()
	if got := w.rowsOf(t, token); got != want {
		t.Errorf("%d rows were written with token %d, want %d", got, token, want)
	}
}

// unseal forgets all resources.
func (w *world) unseal(t testing.TB) { t.Helper(); w.Exec(t, "delete from wirefence.resource_locks") }

// preempt sets how long takeovers wait for open transactions; nil is without end.
func (w *world) preempt(t testing.TB, after any) {
	t.Helper()
	stack.MustExec(t, w.Admin, "update wirefence.resource_locks set preempt_after = $1", after)
}

// function is the object id of a function.
func (w *world) function(t testing.TB, signature string) uint32 {
	t.Helper()
	return stack.Value[uint32](t, w.DB, "select $1::regprocedure::oid", signature)
}

// call is a FunctionCall of a function of one argument, as text.
func (w *world) call(t testing.TB, function, argument string) *pgproto3.FunctionCall {
	t.Helper()
	return &pgproto3.FunctionCall{Function: w.function(t, function), Arguments: [][]byte{[]byte(argument)}}
}

// connect logs in through the proxy, with parameters of the startup packet.
func (w *world) connect(t testing.TB, params ...string) *client {
	t.Helper()
	return w.connectTo(t, w.proxy, params...)
}

func (w *world) connectTo(t testing.TB, addr string, params ...string) *client {
	t.Helper()
	return &client{Client: stack.Login(t, addr, w.Name, params...)}
}

// fenced logs in with a fence in the startup packet; "" is none.
func (w *world) fenced(t testing.TB, fence string, params ...string) *client {
	t.Helper()
	if fence != "" {
		params = append(params, "options", "-c wirefence.token="+fence)
	}
	return w.connect(t, params...)
}

// begins logs in. Where sessions are busy, the new one holds the current token of orders, and
// its session variable is empty.
func (w *world) begins(t testing.TB) *client {
	t.Helper()
	c := w.connect(t)
	if w.busy {
		w.warm(behindGood, c)
	}
	return c
}

// warm makes sessions busy until all of them hold. Behind their statements stands a comment,
// or nothing.
func (w *world) warm(comment string, sessions ...*client) {
	t := sessions[0].T
	t.Helper()
	stack.Eventually(t, "the sessions hold", func() bool {
		for _, c := range sessions {
			c.Must("select 1" + comment)
		}
		for _, c := range sessions {
			if !w.holds(c) {
				return false
			}
		}
		return true
	})
}

// heldLocks are the locks of the holds in a database.
const heldLocks = `from pg_locks where locktype = 'advisory' and granted and mode = 'ShareLock' and objsubid = 1
	and database = (select oid from pg_database where datname = current_database())`

// holds reports whether the session of a client holds locks for its fence.
func (w *world) holds(c *client) bool {
	c.T.Helper()
	pid, _ := c.Key()
	return stack.Value[bool](c.T, w.DB, "select exists(select "+heldLocks+" and pid = $1)", int32(pid))
}

// held is how many locks the sessions of the database hold.
func (w *world) held(t testing.TB) int { t.Helper(); return w.count(t, "select count(*) "+heldLocks) }
