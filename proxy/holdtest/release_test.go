package holdtest

import (
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

const unlock = "SELECT pg_advisory_unlock_all()"

// releases are ways to release what a session holds. prepare comes before the session
// is busy.
var releases = []struct {
	name    string
	prepare func(c *stack.Client)
	release func(w *world, t *testing.T, c *stack.Client) error
}{
	{name: "text", release: func(_ *world, _ *testing.T, c *stack.Client) error { return c.Simple(unlock) }},
	{name: "text with a comment of another fence", release: func(_ *world, _ *testing.T, c *stack.Client) error {
		return c.Simple(unlock + " /*wirefence.token='other=7'*/")
	}},
	{name: "extended", release: func(_ *world, _ *testing.T, c *stack.Client) error { return c.Extended(unlock) }},
	{name: "key by key", release: func(_ *world, _ *testing.T, c *stack.Client) error {
		return c.Simple("SELECT pg_advisory_unlock_shared((classid::bigint << 32) | objid::bigint), pg_advisory_unlock_shared((classid::bigint << 32) | objid::bigint) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'")
	}},
	{
		name: "prepared by the protocol",
		prepare: func(c *stack.Client) {
			stack.WantState(c.T, c.Batch(&pgproto3.Parse{Name: "unlocks", Query: unlock}), "")
		},
		release: func(_ *world, _ *testing.T, c *stack.Client) error {
			return c.Batch(&pgproto3.Bind{PreparedStatement: "unlocks"}, &pgproto3.Execute{})
		},
	},
	{
		name: "prepared by the protocol, EXECUTE",
		prepare: func(c *stack.Client) {
			stack.WantState(c.T, c.Batch(&pgproto3.Parse{Name: "unlocks", Query: unlock}), "")
		},
		release: func(_ *world, _ *testing.T, c *stack.Client) error { return c.Simple("EXECUTE unlocks") },
	},
	{
		name:    "PREPARE and EXECUTE",
		prepare: func(c *stack.Client) { c.Must("PREPARE unlocks AS " + unlock) },
		release: func(_ *world, _ *testing.T, c *stack.Client) error { return c.Simple("EXECUTE unlocks") },
	},
	{
		name:    "PREPARE, then Bind",
		prepare: func(c *stack.Client) { c.Must("PREPARE unlocks AS " + unlock) },
		release: func(_ *world, _ *testing.T, c *stack.Client) error {
			return c.Batch(&pgproto3.Bind{PreparedStatement: "unlocks"}, &pgproto3.Execute{})
		},
	},
	{name: "cursor", release: func(_ *world, _ *testing.T, c *stack.Client) error {
		if c.TxStatus() == 'I' {
			return c.Simple("BEGIN; DECLARE unlocks CURSOR FOR " + unlock + "; FETCH unlocks; COMMIT")
		}
		if err := c.Simple("DECLARE unlocks CURSOR FOR " + unlock); err != nil {
			return err
		}
		return c.Simple("FETCH unlocks")
	}},
	{name: "suspended portal", release: func(_ *world, _ *testing.T, c *stack.Client) error {
		return c.Batch(&pgproto3.Parse{Query: "SELECT pg_advisory_unlock_all() FROM generate_series(1, 2)"},
			&pgproto3.Bind{DestinationPortal: "p"}, &pgproto3.Execute{Portal: "p", MaxRows: 1}, &pgproto3.Execute{Portal: "p", MaxRows: 1})
	}},
	{name: "FunctionCall", release: func(w *world, t *testing.T, c *stack.Client) error {
		return c.Call(uint32(w.number(t, "SELECT 'pg_advisory_unlock_all()'::regprocedure::oid::int")))
	}},
	{name: "block of code", release: func(_ *world, _ *testing.T, c *stack.Client) error {
		return c.Simple("DO $$ BEGIN PERFORM pg_advisory_unlock_all(); END $$")
	}},
	{name: "DISCARD ALL", release: func(_ *world, _ *testing.T, c *stack.Client) error { return c.Simple("DISCARD ALL") }},
	{name: "what asyncpg sends", release: func(_ *world, _ *testing.T, c *stack.Client) error {
		return c.Simple(unlock + "; CLOSE ALL; UNLISTEN *; RESET ALL")
	}},
	{name: "name in escapes", release: func(_ *world, _ *testing.T, c *stack.Client) error {
		return c.Simple(`SELECT U&"pg\005fadvisory\005funlock\005fall"()`)
	}},
}

// carriers of the fence of a session that writes.
var carriers = []struct {
	name    string
	comment string
	login   func(w *world, t *testing.T, token string) *stack.Client
}{
	{"variable", "", func(w *world, t *testing.T, token string) *stack.Client { return w.client(t, "orders="+token) }},
	{"comment", " /*wirefence.token='orders=34'*/", func(w *world, t *testing.T, _ string) *stack.Client { return stack.Login(t, w.proxy, w.Name) }},
}

// Whatever releases the lock of a hold, no seal returns while a transaction that wrote
// under it is open, and none is forgotten by the next statement.
func TestWhatReleasesAHold(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.seal(t, "other", 7)
		w.never(t)
		for _, way := range releases {
			for _, by := range carriers {
				w.release(t, way.name+" by "+by.name, by.comment, by.login(w, t, "34"), way.prepare, way.release)
			}
		}
	})
}

// The proxy asks a database at its first login whether code stored in it releases locks.
func TestStoredCodeThatReleasesAHold(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.never(t)
		w.exec(t, "CREATE FUNCTION unlocks() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_unlock_all()'")
		w.exec(t, "CREATE VIEW unlocking AS SELECT pg_advisory_unlock_all() IS NULL AS a")
		for _, sql := range []string{"SELECT unlocks()", "TABLE unlocking"} {
			for _, by := range carriers {
				w.release(t, sql+" by "+by.name, by.comment, by.login(w, t, "34"), nil, func(_ *world, _ *testing.T, c *stack.Client) error {
					return c.Simple(sql)
				})
			}
		}
	})
}

func (w *world) release(t *testing.T, about, comment string, c *stack.Client, prepare func(*stack.Client), release func(*world, *testing.T, *stack.Client) error) {
	t.Helper()
	defer c.Close()
	if prepare != nil {
		prepare(c)
	}
	insert := "INSERT INTO t (token) VALUES (34)" + comment
	c.Must(insert, insert, insert)

	// Within a transaction.
	c.Must("BEGIN", insert)
	failed := release(w, t, c)
	r := w.rival(t)
	if failed != nil { // which released the lock of a check
		c.Must("ROLLBACK")
	} else {
		r.waits(t, about)
		if err := c.Simple("COMMIT"); err != nil {
			t.Errorf("%s: COMMIT: %v", about, err)
		}
	}
	r.succeeds(t)
	w.wantRefused(t, about, c, insert)

	// Between two writes.
	w.back(t)
	c.Must(insert, insert)
	if err := release(w, t, c); err != nil && stack.State(err) != "WF006" {
		t.Errorf("%s, outside of a transaction: %v", about, err)
	}
	w.rival(t).succeeds(t)
	w.wantRefused(t, about, c, insert)
	w.back(t)
}

// back makes 34 the current token again.
func (w *world) back(t *testing.T) {
	t.Helper()
	w.exec(t, "UPDATE wirefence.resource_locks SET last_token = 34 WHERE resource_id = 'orders'")
}

// wantRefused fails the test if a stale session's insert goes through.
func (w *world) wantRefused(t *testing.T, about string, c *stack.Client, insert string) {
	t.Helper()
	before := w.number(t, "SELECT count(*) FROM t")
	stack.WantState(t, c.Simple(insert), "WF001", about)
	stack.WantState(t, c.Extended(insert), "WF001", about)
	if after := w.number(t, "SELECT count(*) FROM t"); after != before {
		t.Errorf("%s: %d stale rows", about, after-before)
	}
}
