package fencingtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// ownLockBehindPooler is the chain application, proxy, pooler, PostgreSQL, where jobs is guarded by a lock of
// the application's own, whose fence a test sets.
func ownLockBehindPooler(t testing.TB) (*world, *lease) {
	t.Helper()
	l := newLease("")
	w := poolerBehind(t, two, proxy.Options{Guarded: l.Fence})
	w.Exec(t, "SELECT wirefence.protect('jobs', 'orders')")
	return w, l
}

// wantNothingLeft fails if a server connection of the pool has the fences of a lock.
func (w *world) wantNothingLeft(t testing.TB, about string) {
	t.Helper()
	direct := w.at(pgbouncer(t, w.Addr(), two))
	one, other := direct.connect(t), direct.connect(t)
	defer hangUp(one)
	defer hangUp(other)
	for _, c := range []*client{one, other} {
		c.Must("BEGIN") // both at once, so that each has one of the two
		if left := c.Value("SELECT COALESCE(current_setting('wirefence.lease', true), '')"); left != "" {
			t.Errorf("%s: the pool's connection has %q", about, left)
		}
		stack.WantState(t, c.Simple(insert), "WF002", about)
	}
}

// Behind a transaction pooler guards see the fences of the application's locks in each form of a write, but
// for those that share no transaction with what sets them, and no other client of the pool has them.
func TestBehindThePoolerGuardsSeeOwnLocks(t *testing.T) {
	w, l := ownLockBehindPooler(t)
	for name, write := range unfencedWrites {
		if name == "EXECUTE" {
			continue // another client of the pool has the statement
		}
		for _, c := range []struct{ fence, want string }{{"orders=34", ""}, {"orders=33", "WF001"}, {"", "WF002"}} {
			want := c.want
			switch name {
			case "FOR UPDATE":
				want = "" // no write
			case "FunctionCall", "DO":
				want = "WF002"
			}
			l.set(c.fence)
			conn := w.connect(t)
			stack.WantState(t, write(conn, w), want, name, c.fence)
			hangUp(conn)
			w.wantNothingLeft(t, name)
			w.Exec(t, "DELETE FROM cell")
		}
	}
}

// A DO and a FunctionCall have them behind a statement of their block.
func TestBehindThePoolerOwnLocksLastForTheirTransaction(t *testing.T) {
	w, l := ownLockBehindPooler(t)
	l.set("orders=34")
	const do, failing = "DO $$ BEGIN INSERT INTO jobs VALUES (34); END $$", "SELECT 1/0"
	for name, statements := range map[string][]string{
		"DO":                      {"BEGIN", do, "COMMIT"},
		"isolation":               {"BEGIN", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", insertOf(34), "COMMIT"},
		"LOCK":                    {"BEGIN ISOLATION LEVEL REPEATABLE READ", "LOCK jobs", insertOf(34), "COMMIT"},
		"COMMIT":                  {"BEGIN; " + insertOf(34) + "; COMMIT; " + insertOf(34)},
		"AND CHAIN":               {"BEGIN", insertOf(34), "COMMIT AND CHAIN", insertOf(34), "ROLLBACK"},
		"RESET":                   {"BEGIN", insertOf(34), "RESET ALL", insertOf(34), "COMMIT"},
		"COPY":                    {"BEGIN", "CREATE TEMP TABLE c ON COMMIT DROP AS SELECT 34", "COPY c TO STDOUT", insertOf(34), "COMMIT"},
		"a SAVEPOINT ahead":       {"BEGIN", "SAVEPOINT a", insertOf(34), "ROLLBACK TO a", insertOf(34), "RELEASE a", insertOf(34), "COMMIT"},
		"an error":                {"BEGIN", "SAVEPOINT a", insertOf(34), failing, "ROLLBACK TO a", insertOf(34), "COMMIT"},
		"an error in a text":      {failing + "; BEGIN", insertOf(34)},
		"the client's own fence":  {insertOf(34) + comment(34), insertOf(34)},
		"behind a ROLLBACK":       {"BEGIN", insertOf(34), "ROLLBACK; " + insertOf(34)},
		"a text that has nothing": {"", insertOf(34)},
	} {
		for _, p := range protocols[:2] {
			if p.name == "extended" && strings.Contains(strings.Join(statements, ""), ";") && name != "DO" {
				continue // texts of several statements
			}
			c := w.connect(t)
			for _, sql := range statements {
				want := ""
				if sql == failing || sql == failing+"; BEGIN" {
					want = "22012"
				}
				stack.WantState(t, p.run(c, sql), want, name, p.name, sql)
			}
			hangUp(c)
			w.wantNothingLeft(t, name)
		}
	}
	c := w.connect(t)
	c.Must("BEGIN", "SELECT 1")
	stack.WantState(t, stack.Err(c.Exchange(1, w.call(t, "writes(int)", "34"))), "", "a FunctionCall in a block")
	hangUp(c)
}

// A transaction keeps the fence that it began with, from its BEGIN on.
func TestBehindThePoolerATransactionKeepsItsOwnLock(t *testing.T) {
	w, l := ownLockBehindPooler(t)
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			for name, ahead := range map[string]string{"nothing": "", "a read": "SELECT 1", "a SAVEPOINT": "SAVEPOINT a"} {
				w.Exec(t, "UPDATE wirefence.resource_locks SET last_token = 34")
				l.set("orders=34")
				c := w.connect(t)
				c.Must("BEGIN")
				if ahead != "" {
					c.Must(ahead)
				}
				l.set("orders=35")
				w.Seal(t, "orders", 35)
				stack.WantState(t, p.run(c, insertOf(34)), "WF001", name)
				c.Must("ROLLBACK")
				stack.WantState(t, p.run(c, insertOf(35)), "", name)
				c.Close()
			}
		})
	}
	w.wantNothingLeft(t, "")
}

// What sets them goes with the client's own message: a client that pipelines without waiting gets the
// answers to its own messages alone.
func TestBehindThePoolerOwnLocksInPipelines(t *testing.T) {
	w, l := ownLockBehindPooler(t)
	l.set("orders=34")
	c, direct := w.connect(t), w.at(pgbouncer(t, w.Addr(), each)).connect(t)
	for name, messages := range map[string][]pgproto3.FrontendMessage{
		"texts":   {&pgproto3.Query{String: "BEGIN"}, &pgproto3.Query{String: "SELECT 1"}, &pgproto3.Query{String: "SELECT 2"}, &pgproto3.Query{String: "COMMIT"}, &pgproto3.Query{String: "SELECT 3; SELECT 4"}},
		"a batch": pipelined("BEGIN", "SELECT 1", "SELECT 2", "COMMIT", "SELECT 3", ""),
		"batches": pipelined("BEGIN", "SELECT 1", "", "SELECT 2", "COMMIT", "", "SELECT 3", "", "SELECT 1/0", "SELECT 5", ""),
	} {
		n := 0
		for _, m := range messages {
			switch m.(type) {
			case *pgproto3.Query, *pgproto3.Sync:
				n++
			}
		}
		if got, want := stack.Types(c.Exchange(n, messages...)), stack.Types(direct.Exchange(n, messages...)); got != want {
			t.Errorf("%s: answers %s, without the proxy %s", name, got, want)
		}
	}
}
