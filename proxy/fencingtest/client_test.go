package fencingtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// database is one of a test's own, and the address of the proxy that its clients
// use.
type database struct {
	*stack.DB
	proxy   string
	metrics *prometheus.Registry // of that proxy, if the test reads them
	busy    bool                 // its sessions hold
}

// rows is how many rows jobs has.
func (db *database) rows(t *testing.T) int {
	t.Helper()
	return stack.Value[int](t, db.DB, "select count(*) from jobs")
}

func (db *database) wantRows(t *testing.T, want int) {
	t.Helper()
	if got := db.rows(t); got != want {
		t.Errorf("%d rows were written, want %d", got, want)
	}
}

// function is the object id of a function.
func (db *database) function(t stack.TB, signature string) uint32 {
	t.Helper()
	return stack.Value[uint32](t, db.DB, "select $1::regprocedure::oid", signature)
}

// call is a FunctionCall of a function of one argument, as text.
func (db *database) call(t stack.TB, function, argument string) *pgproto3.FunctionCall {
	t.Helper()
	return &pgproto3.FunctionCall{Function: db.function(t, function), Arguments: [][]byte{[]byte(argument)}}
}

// client is a client of the proxy.
type client struct {
	*stack.Client
	attempt bool  // what is refused on the way is noted; behind it anything may fail
	refusal error // the first of these
}

// connect connects through the proxy, with parameters of the startup packet.
func (db *database) connect(t stack.TB, params ...string) *client {
	t.Helper()
	return db.connectTo(t, db.proxy, params...)
}

func (db *database) connectTo(t stack.TB, addr string, params ...string) *client {
	t.Helper()
	return &client{Client: stack.Login(t, addr, db.Name, params...)}
}

// holds reports whether the session of a client holds locks for its fence.
func (db *database) holds(c *client) bool {
	c.T.Helper()
	pid, _ := c.Key()
	return stack.Value[bool](c.T, db.DB, `select exists(select from pg_locks
		where locktype = 'advisory' and granted and mode = 'ShareLock' and objsubid = 1 and pid = $1)`, int32(pid))
}

// begins connects; where sessions are busy, the new one holds the current token of
// orders, and its session variable is empty.
func (db *database) begins(t *testing.T) *client {
	t.Helper()
	c := db.connect(t)
	if db.busy {
		db.warm(c, behindGood)
	}
	return c
}

// period is the period of the proxy's holds.
func (db *database) period() time.Duration {
	if db.busy {
		return time.Second
	}
	return -1
}

// warm makes a session busy until it holds. Behind its statements stands a comment, or
// nothing.
func (db *database) warm(c *client, behind string) {
	c.T.Helper()
	stack.Eventually(c.T, "the session holds", func() bool {
		c.Must("select 1" + behind)
		return db.holds(c)
	})
}

// protocol is a way to run one statement.
type protocol struct {
	name string
	run  func(c *client, sql string) error
}

var protocols = []protocol{
	{"simple", func(c *client, sql string) error { return c.Simple(sql) }},
	{"extended", func(c *client, sql string) error { return c.Extended(sql) }},
	{"prepared", func(c *client, sql string) error { return c.Prepared(sql) }},
}

// note takes in an error on the way of an attempt, and says whether it may be.
func (c *client) note(err error) bool {
	if c.attempt && c.refusal == nil && (fence.IsRefusal(err) || stack.State(err) == "40001") {
		c.refusal = err
	}
	return err == nil || c.refusal != nil
}

// Must runs statements that succeed, as simple queries.
func (c *client) Must(statements ...string) {
	c.T.Helper()
	for _, sql := range statements {
		if err := c.Simple(sql); !c.note(err) {
			c.T.Fatalf("%s: %v", sql, err)
		}
	}
}

// Exchange sends messages and takes what comes up to the n-th ReadyForQuery.
func (c *client) Exchange(n int, messages ...pgproto3.FrontendMessage) []stack.Message {
	c.T.Helper()
	all := c.Client.Exchange(n, messages...)
	c.note(stack.Err(all))
	return all
}
