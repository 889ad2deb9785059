package fencingtest

import (
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// lease is one whose fence a test sets.
type lease struct {
	mu      sync.Mutex
	fence   string
	changed chan struct{}
}

func newLease(fence string) *lease { return &lease{fence: fence, changed: make(chan struct{})} }

func (l *lease) set(fence string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence = fence
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *lease) Fence() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence
}

func (l *lease) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *lease) Resource() fence.Resource { return "orders" }
func (l *lease) Holder() string           { return "worker-b" }

// unfencedWrites are forms of a write that carries no fence.
var unfencedWrites = map[string]func(c *client, w *world) error{
	"simple":          func(c *client, _ *world) error { return c.Simple(insert) },
	"extended":        func(c *client, _ *world) error { return c.Extended(insert) },
	"in a block":      texts("begin", "select 1", insert),
	"behind a COMMIT": texts("begin; select 1; commit; " + insert),
	"function":        texts("select writes(33)"),
	"FOR UPDATE":      texts("select * from cell for update"),
	"COPY":            func(c *client, _ *world) error { return c.CopyIn("copy jobs from stdin", "33\tx") },
	"COPY, extended":  func(c *client, _ *world) error { return c.CopyInExtended("", "copy jobs from stdin", "33\tx") },
	"FunctionCall": func(c *client, w *world) error {
		return stack.Err(c.Exchange(1, w.call(c.T, "writes(int)", "33")))
	},
	"prepared before": func(c *client, _ *world) error {
		c.Exchange(1, parseOf("w", insert), &pgproto3.Sync{})
		return c.Batch(bindOf("", "w"), executeOf(""))
	},
	"EXECUTE":            texts("prepare w as "+insert, "execute w"),
	"behind a savepoint": texts("begin", "savepoint a", "insert into cell values (60, 0)", "rollback to a", insert),
	"cursor":             texts("begin", "declare c cursor for select writes(33)", "fetch c"),
	"pipeline": func(c *client, _ *world) error {
		return stack.Err(c.Exchange(1, pipelined("begin", "select 1", insert, "commit", "")...))
	},
	"DO": texts("do $$ begin insert into jobs values (33); end $$"),
}

func TestUnfencedWritesAreStamped(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		l := newLease("")
		own := w.own(t, proxy.Options{Lease: l})
		for name, write := range unfencedWrites {
			for _, c := range []struct{ stamp, want string }{
				{"orders=34", ""}, {"orders=33", "WF001"}, {"orders=35", "WF003"}, {"", "WF007"},
			} {
				l.set(c.stamp)
				conn := own.connect(t)
				conn.attempt = c.want != ""
				err := write(conn, own)
				if conn.refusal != nil {
					err = conn.refusal
				}
				if got := stack.State(err); got != c.want {
					t.Errorf("%s, stamped %q: got %q, want %q (%v)", name, c.stamp, got, c.want, err)
				}
				if c.want == "" {
					_ = conn.Simple("commit")
				}
				_ = conn.Simple("rollback")
				if rows := own.rows(t); c.want != "" && rows != 0 {
					t.Errorf("%s, stamped %q: %d rows", name, c.stamp, rows)
				}
				own.Exec(t, "truncate jobs")
				own.Exec(t, "delete from cell")
			}
		}
	})
}

// A client's own fence overrides the stamp. A standby serves reads.
func TestOwnFencesGoBeforeTheStamp(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.Seal(t, "lease", 7)
		for _, stamp := range []string{"lease=7", "lease=6", ""} {
			own := w.own(t, proxy.Options{Lease: newLease(stamp), Resource: "orders"})
			unfenced := map[string]string{"lease=7": "", "lease=6": "WF001", "": "WF007"}[stamp]
			for _, p := range protocols {
				for token, want := range map[string]string{"34": "", "33": "WF001"} {
					c := own.connect(t)
					stack.WantState(t, p.run(c, insert+" /*wirefence.token='"+token+"'*/"), want, stamp, p.name, "comment")
					stack.WantState(t, p.run(c, insert), unfenced, stamp, p.name, "behind a comment")
					c.Must("set wirefence.token = '" + token + "'")
					stack.WantState(t, p.run(c, insert), want, stamp, p.name, "SET")
					c.Must("reset wirefence.token")
					stack.WantState(t, p.run(c, insert), unfenced, stamp, p.name, "RESET")
					c.Must("begin", "set local wirefence.token = '"+token+"'")
					stack.WantState(t, p.run(c, insert), want, stamp, p.name, "SET LOCAL")
					c.Must("rollback")
					stack.WantState(t, p.run(c, insert), unfenced, stamp, p.name, "behind the ROLLBACK")
					read := strings.Replace(unfenced, "WF007", "", 1)
					stack.WantState(t, p.run(c, "select count(*), now(), upper('x') from jobs"), read, stamp, p.name, "a read")
					s := own.connect(t, "options", "-c wirefence.token="+token)
					stack.WantState(t, p.run(s, insert), want, stamp, p.name, "startup options")
				}
			}
		}
		w.Exec(t, "alter role app in database "+w.Name+" set wirefence.token = 'orders=34'")
		c := w.own(t, proxy.Options{Lease: newLease("")}).connect(t, "user", "app")
		stack.WantState(t, c.Simple(insert), "", "ALTER ROLE")
		stack.WantState(t, c.Extended(insert), "", "ALTER ROLE")
	})
}

// When the lease ends in a transaction, that may commit what it has written, but can't write
// more. With a new grant it is checked again. A session that is idle then stays.
func TestTheLeaseEndsInATransaction(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		l := newLease("orders=34")
		own := w.own(t, proxy.Options{Lease: l})
		c := own.connect(t)
		c.Must("begin", insert)
		l.set("")
		c.Must("select count(*) from jobs", "commit")
		own.wantRows(t, 1)

		l.set("orders=34")
		c.Must("begin", insert)
		l.set("")
		all := c.Exchange(1, &pgproto3.Query{String: "select 1; " + insert})
		if codes := stack.States(all); len(codes) != 1 || codes[0] != "WF007" || string(c.TxStatus()) != "E" {
			t.Errorf("%v, status %s", codes, string(c.TxStatus()))
		}
		refusal := stack.Err(all).(*pgconn.PgError)
		if text := refusal.Message + refusal.Detail + refusal.Hint; refusal.Severity != "ERROR" || !strings.Contains(text, "worker-b") || !strings.Contains(text, "role=leader") {
			t.Errorf("the refusal says %+v", refusal)
		}
		c.Must("rollback")
		own.wantRows(t, 1)

		l.set("orders=34")
		c.Must("begin", insert)
		l.set("orders=36") // never granted
		c.Fails(insert, "WF003")
		c.Must("rollback")
		l.set("")
		c.Fails(insert, "WF007")
		c.Must("select 1")
		own.wantRows(t, 1)
	})
}

// Commands that no check can cover run under a hold of the stamp. A text that the proxy does
// not read is refused. Shadow mode lets both pass.
func TestWhatCannotBeStamped(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		l := newLease("orders=34")
		own := w.own(t, proxy.Options{Lease: l, MaxStatement: 4 << 10})
		large := insert + " -- " + strings.Repeat("x", 5<<10)
		for stamp, want := range map[string]string{"orders=34": "", "orders=33": "WF001", "": "WF007"} {
			l.set(stamp)
			for _, p := range protocols[:2] {
				conn := own.connect(t)
				stack.WantState(t, p.run(conn, large), "WF006", stamp, p.name)
				for _, sql := range []string{"create index concurrently i on jobs (token)", "drop index concurrently i", "vacuum jobs", "call committing()"} {
					stack.WantState(t, p.run(conn, sql), want, stamp, p.name, sql)
				}
			}
			replication := own.connect(t, "replication", "database")
			stack.WantState(t, replication.Simple(insert), want, stamp, "on a replication connection")
			replication.Must("IDENTIFY_SYSTEM")
		}
		own.wantRows(t, 2*2+1)
		shadow := w.own(t, proxy.Options{Lease: newLease(""), Mode: proxy.Shadow})
		conn := shadow.connect(t)
		conn.Must(insert, "insert into cell values (61, 0)")
		stack.WantState(t, conn.Extended(insert), "")
		if n := shadow.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": "WF007", "shadow": "true"}); n != 3 {
			t.Errorf("%d refusals counted, want 3", n)
		}
	})
}

// Before a pooler, the stamp overrides what another client has left in the session variable,
// and the client's own fence overrides the stamp.
func TestBehindThePoolerStampsGoBeforeForeignSettings(t *testing.T) {
	w := poolerBehind(t, one, proxy.Options{})
	for _, c := range []struct{ stamp, unfenced, read string }{{"orders=34", "", ""}, {"orders=33", "WF001", "WF001"}, {"", "WF007", ""}} {
		w := w.beforePooler(t, one, proxy.Options{Lease: newLease(c.stamp)})
		early := w.connect(t)
		for _, left := range []string{"orders=34", "orders=33"} {
			w.leave(t, left)
			for name, conn := range map[string]*client{"logged in before": early, "logged in behind": w.connect(t)} {
				for _, p := range protocols[:2] {
					stack.WantState(t, p.run(conn, insertOf(0)), c.unfenced, c.stamp, left, name, p.name, "unfenced")
					stack.WantState(t, p.run(conn, insertOf(34)+comment(34)), "", c.stamp, left, name, p.name, "comment")
					stack.WantState(t, p.run(conn, insertOf(33)+comment(33)), "WF001", c.stamp, left, name, p.name, "comment")
					conn.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=33'")
					stack.WantState(t, p.run(conn, insertOf(33)), "WF001", c.stamp, left, name, p.name, "SET LOCAL")
					conn.Must("ROLLBACK", "BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
					stack.WantState(t, p.run(conn, insertOf(34)), "", c.stamp, left, name, p.name, "SET LOCAL")
					conn.Must("COMMIT")
					stack.WantState(t, p.run(conn, "SELECT count(*) FROM jobs"), c.read, c.stamp, left, name, p.name, "a read")
				}
			}
		}
	}
	w.wantRowsOf(t, 33, 0)
	w.wantRowsOf(t, 0, 2*2*2)
	w.wantRowsOf(t, 34, 3*2*2*2*2)
}
