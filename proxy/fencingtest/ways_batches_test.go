package fencingtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// In bypassesByMessages one message changes the meaning of another, or code runs before
// Execute.
var bypassesByMessages = []bypass{
	// A stored statement sets the variable, and the next statement of the message writes.
	{"EXECUTE sets the variable, simple", "", "orders=34", func(c *client, _ *world) {
		c.Must("PREPARE p AS SELECT set_config('wirefence.token', 'orders=33', false)")
		c.Fails("EXECUTE p; "+insert, "WF001")
	}},
	{"EXECUTE sets the variable, batch", "", "orders=34", func(c *client, _ *world) {
		c.Must("PREPARE p AS SELECT set_config('wirefence.token', 'orders=33', false)")
		c.batchFails("WF001", "EXECUTE p", insert)
	}},

	// A name means another statement than the one that the client has parsed.
	{"a name that DEALLOCATE has freed", "", "orders=33", func(c *client, _ *world) {
		for _, harmless := range []string{"SHOW server_version", "BEGIN", "COMMIT", "LOCK TABLE jobs", "SET x.y = 1"} {
			c.Must("SET wirefence.token = 'orders=33'")
			stack.WantState(c.T, c.Batch(parseOf("p", harmless)), "")
			c.Must("DEALLOCATE p", "SET wirefence.token = 'orders=34'", "PREPARE p AS "+insert, "SET wirefence.token = 'orders=33'")
			stack.WantState(c.T, c.Batch(bindOf("", "p"), executeOf("")), "WF001", harmless)
			c.Must("DEALLOCATE p")
			stack.WantState(c.T, c.Batch(parseOf("p", harmless)), "")
			c.Must("DEALLOCATE p", "SET wirefence.token = 'orders=34'")
			stack.WantState(c.T, c.Batch(parseOf("", "PREPARE p AS "+insert), bindOf("", ""), executeOf("")), "")
			c.Must("SET wirefence.token = 'orders=33'")
			stack.WantState(c.T, c.Batch(bindOf("", "p"), executeOf("")), "WF001", harmless)
			c.Must("DEALLOCATE p")
		}
	}},
	{"a name that is freed in a pipeline", "", "orders=34", func(c *client, _ *world) {
		for _, frees := range []string{"DEALLOCATE ALL", "DISCARD ALL", "DEALLOCATE p", "DEALLOCATE PREPARE p"} {
			stack.WantState(c.T, c.Batch(parseOf("p", "SHOW server_version")), "")
			c.Send(&pgproto3.Query{String: frees}, &pgproto3.Query{String: "PREPARE p AS " + insert}, &pgproto3.Query{String: "SET wirefence.token = 'orders=33'"},
				bindOf("", "p"), executeOf(""), &pgproto3.Sync{})
			c.Ready(4)
			c.Must("DISCARD ALL")
		}
	}},
	{"a name that Close frees in a pipeline", "", "orders=34", func(c *client, _ *world) {
		stack.WantState(c.T, c.Batch(parseOf("p", "SHOW server_version")), "")
		c.Send(&pgproto3.Close{ObjectType: 'S', Name: "p"}, &pgproto3.Sync{}, &pgproto3.Query{String: "PREPARE p AS " + insert}, &pgproto3.Query{String: "SET wirefence.token = 'orders=33'"},
			bindOf("", "p"), executeOf(""), &pgproto3.Sync{})
		c.Ready(4)
	}},

	// A function has the name of one of PostgreSQL's.
	{"a set_config that writes", "", "orders=33", func(c *client, w *world) {
		w.Exec(c.T, "CREATE SCHEMA text", "CREATE FUNCTION text.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'INSERT INTO public.jobs (token) VALUES (33) RETURNING NULL::text'")
		for _, sql := range []string{"SELECT text.set_config('a.b', 'c', true)", `SELECT "text".set_config('a.b', 'c', true)`, "SELECT text . set_config('a.b', 'c', true)"} {
			c.Fails(sql, "WF001")
			stack.WantState(c.T, c.Extended(sql), "WF001", sql)
			strict := w.own(c.T, proxy.Options{UnfencedWrites: proxy.Reject}).connect(c.T)
			strict.Fails(sql, "WF002")
			stack.WantState(c.T, strict.Extended(sql), "WF002", sql)
		}
	}},

	// The end of a block within a batch.
	{"ROLLBACK TO in a batch", "", "", func(c *client, _ *world) {
		c.Must("BEGIN", "SAVEPOINT s")
		c.Fails("SELECT 1/0", "22012")
		c.batchFails("WF001", "ROLLBACK TO s", insert+behindStale)
		c.Must("COMMIT")
	}},
	{"PREPARE TRANSACTION of a failed block", "", "", func(c *client, _ *world) {
		c.Must("BEGIN")
		c.Fails("SELECT 1/0", "22012")
		c.batchFails("WF001", "PREPARE TRANSACTION 'x'", insert+behindStale)
	}},
	{"ROLLBACK and more in a batch", "", "", func(c *client, _ *world) {
		c.Must("BEGIN")
		c.Fails("SELECT 1/0", "22012")
		c.batchFails("WF001", "ROLLBACK", insert+behindStale, "COMMIT")
	}},

	{"a check ahead of the COMMIT of a batch", "", "orders=33", func(c *client, _ *world) {
		for _, sql := range []string{insert, "SELECT writes(33)"} {
			c.Must("BEGIN")
			c.batchFails("WF001", "SET LOCAL wirefence.token = 'orders=34'", "COMMIT", sql)
		}
	}},
	{"a check ahead of the SET of a batch", "", "orders=34", func(c *client, _ *world) {
		for _, first := range []string{"VACUUM jobs", "SELECT 1", "SHOW work_mem"} {
			c.Must("SET wirefence.token = 'orders=34'", "SELECT 1", "SELECT 2", "SELECT 3")
			c.batchFails("WF001", first, "SET wirefence.token = 'orders=33'", insert)
		}
	}},
	{"a batch that begins to chain", "", "orders=34", func(c *client, _ *world) {
		c.Must("SELECT 1", "SELECT 2", "SELECT 3", "BEGIN", "SELECT 4", "SET LOCAL wirefence.token = 'orders=34'")
		c.Must("SET wirefence.token = 'orders=33'")
		c.batchFails("WF001", "COMMIT AND CHAIN", insert, "COMMIT")
	}},

	// Code that runs before Execute.
	{"a planner that writes", "", "orders=33", func(c *client, _ *world) {
		stack.WantState(c.T, c.Batch(parseOf("", "SELECT folded(33)"), &pgproto3.Bind{}), "WF001")
	}},
	{"a parameter that writes", "", "orders=33", func(c *client, _ *world) {
		stack.WantState(c.T, c.Batch(parseOf("", "SELECT $1::noted"), &pgproto3.Bind{Parameters: [][]byte{[]byte("33")}}), "WF001")
	}},
	{"a literal that writes", "", "orders=33", func(c *client, _ *world) {
		stack.WantState(c.T, c.Batch(parseOf("", "SELECT '{33}'::noted[]")), "WF001")
	}},
	{"a parameter that writes, in a block", "", "orders=33", func(c *client, _ *world) {
		c.Must("BEGIN")
		stack.WantState(c.T, c.Batch(parseOf("", "SELECT $1::noted"), &pgproto3.Bind{Parameters: [][]byte{[]byte("33")}}), "WF001")
		c.Must("COMMIT")
	}},
	{"a CALL that is parsed behind a Close", "", "orders=33", func(c *client, w *world) {
		w.Exec(c.T, "CREATE PROCEDURE takes(a noted[]) LANGUAGE sql AS 'SELECT 1'")
		stack.WantState(c.T, c.Batch(&pgproto3.Close{ObjectType: 'S'}, parseOf("", "CALL takes('{33}')")), "WF001")
	}},
	{"a description that is read anew", "", "orders=34", func(c *client, _ *world) {
		stack.WantState(c.T, c.Batch(parseOf("n", "SELECT '{34}'::noted[]")), "")
		c.Must("TRUNCATE jobs", "SET wirefence.token = 'orders=33'", "SET search_path = pg_catalog, public")
		stack.WantState(c.T, c.Batch(&pgproto3.Describe{ObjectType: 'S', Name: "n"}), "WF001")
	}},
	{"a description of EXECUTE that is read anew", "", "orders=34", func(c *client, _ *world) {
		c.Must("PREPARE p AS SELECT '{34}'::noted[]")
		stack.WantState(c.T, c.Batch(parseOf("n", "EXECUTE p")), "")
		c.Must("TRUNCATE jobs", "SET wirefence.token = 'orders=33'", "SET search_path = pg_catalog, public")
		stack.WantState(c.T, c.Batch(&pgproto3.Describe{ObjectType: 'S', Name: "n"}), "WF001")
	}},
	{"a description that is parsed", "", "", func(c *client, _ *world) {
		stack.WantState(c.T, c.Batch(parseOf("n", "SELECT '{33}'::noted[] "+behindStale), &pgproto3.Describe{ObjectType: 'S', Name: "n"}), "WF001")
	}},
}

// SQL gives a name to another statement while the session carries no fence.
func TestNamesThatChangeUnfenced(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		for _, name := range []string{"p", "P", strings.Repeat("long", 20), "with space"} {
			quoted := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
			for _, carried := range []string{"", "SET wirefence.token = 'orders=34'"} {
				c := w.connect(t)
				if carried != "" {
					c.Must(carried)
				}
				stack.WantState(t, c.Batch(parseOf(name, "SHOW server_version")), "")
				c.Must("DEALLOCATE "+quoted, "PREPARE "+quoted+" AS "+insert, "SET wirefence.token = 'orders=33'")
				stack.WantState(t, c.Batch(bindOf("", name), executeOf("")), "WF001", name, carried)
				c.Close()
			}
		}
		w.wantRows(t, 0)
	})
}

// A batch may hold texts whose meaning depends on settings.
func TestBatchesBeyondASCII(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		for _, fence := range []string{"", "orders=34"} {
			c := w.fenced(t, fence)
			for _, sql := range []string{"SELECT 'é'", `SELECT '\'`, "INSERT INTO jobs (note) VALUES ('naïve')"} {
				c.batchFails("", sql, sql, sql)
			}
		}
	})
}
