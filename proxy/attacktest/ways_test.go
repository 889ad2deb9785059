package attacktest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// Fences as comments.
const (
	current = "/*wirefence.token='orders=34'*/"
	stale   = "/*wirefence.token='orders=33'*/"
	write   = "INSERT INTO t (token) VALUES (33)"
)

// ways are ways past the fence. What they come to must not be a row.
var ways = []struct {
	name string
	// login is the fence of the session variable at the beginning.
	login  string
	attack func(w *world, t *testing.T, c *stack.Client)
}{
	// The variable is set by what was stored, and a second statement of the message writes.
	{"EXECUTE sets the variable, simple", "orders=34", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Must("PREPARE p AS SELECT set_config('wirefence.token', 'orders=33', false)")
		c.Fails("EXECUTE p; "+write, "WF001")
	}},
	{"EXECUTE sets the variable, batch", "orders=34", func(_ *world, t *testing.T, c *stack.Client) {
		c.Must("PREPARE p AS SELECT set_config('wirefence.token', 'orders=33', false)")
		stack.WantState(t, c.Batch(cat(stack.Unnamed("EXECUTE p"), stack.Unnamed(write))...), "WF001")
	}},
	{"FETCH sets the variable", "orders=34", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Must("BEGIN", "DECLARE c CURSOR FOR SELECT set_config('wirefence.token', 'orders=33', false)")
		c.Fails("FETCH c; "+write+"; COMMIT", "WF001")
	}},
	{"a function sets the variable, simple", "", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Fails("SELECT enter('orders=33'); "+write, "WF001")
	}},
	{"a function sets the variable, batch", "", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(cat(stack.Unnamed("SELECT enter('orders=33')"), stack.Unnamed(write))...), "WF001")
	}},
	{"a view sets the variable", "", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Must("TABLE vset")
		c.Fails("SELECT 1", "WF001")
		c.Fails(write, "WF001")
	}},

	// A name means another statement than the one that the client has parsed.
	{"a name that DEALLOCATE has freed", "orders=33", func(_ *world, t *testing.T, c *stack.Client) {
		for _, harmless := range []string{"SHOW server_version", "BEGIN", "COMMIT", "LOCK TABLE t", "SET x.y = 1"} {
			c.Must("SET wirefence.token = 'orders=33'")
			stack.WantState(t, c.Batch(&pgproto3.Parse{Name: "p", Query: harmless}), "")
			c.Must("DEALLOCATE p", "SET wirefence.token = 'orders=34'", "PREPARE p AS "+write, "SET wirefence.token = 'orders=33'")
			stack.WantState(t, c.Batch(&pgproto3.Bind{PreparedStatement: "p"}, &pgproto3.Execute{}), "WF001", harmless)
			c.Must("DEALLOCATE p")
		}
	}},
	{"a name that is freed in a pipeline", "orders=34", func(_ *world, t *testing.T, c *stack.Client) {
		for _, frees := range []string{"DEALLOCATE ALL", "DISCARD ALL", "DEALLOCATE p", "DEALLOCATE PREPARE p"} {
			stack.WantState(t, c.Batch(&pgproto3.Parse{Name: "p", Query: "SHOW server_version"}), "")
			c.Send(&pgproto3.Query{String: frees}, &pgproto3.Query{String: "PREPARE p AS " + write}, &pgproto3.Query{String: "SET wirefence.token = 'orders=33'"},
				&pgproto3.Bind{PreparedStatement: "p"}, &pgproto3.Execute{}, &pgproto3.Sync{})
			c.Ready(4)
			c.Must("DISCARD ALL")
		}
	}},
	{"a name that Close frees in a pipeline", "orders=34", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(&pgproto3.Parse{Name: "p", Query: "SHOW server_version"}), "")
		c.Send(&pgproto3.Close{ObjectType: 'S', Name: "p"}, &pgproto3.Sync{}, &pgproto3.Query{String: "PREPARE p AS " + write}, &pgproto3.Query{String: "SET wirefence.token = 'orders=33'"},
			&pgproto3.Bind{PreparedStatement: "p"}, &pgproto3.Execute{}, &pgproto3.Sync{})
		c.Ready(4)
	}},
	{"a portal that is a cursor by now", "orders=34", func(_ *world, t *testing.T, c *stack.Client) {
		c.Must("BEGIN")
		stack.WantState(t, c.Batch(&pgproto3.Parse{Query: "SHOW server_version"}, &pgproto3.Bind{DestinationPortal: "c"}), "")
		c.Must("CLOSE c", "DECLARE c CURSOR FOR SELECT writes(33)", "SET LOCAL wirefence.token = 'orders=33'")
		stack.WantState(t, c.Batch(&pgproto3.Execute{Portal: "c"}), "WF001")
		c.Must("COMMIT")
	}},
	{"the proxy's own statement", "orders=34", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Extended("SELECT 1"), "")
		c.Must("DEALLOCATE _wirefence_check", "PREPARE _wirefence_check(text) AS SELECT ''::text", "SET wirefence.token = 'orders=33'")
		stack.WantState(t, c.Extended(write), "WF001")
	}},

	// The end of a block within a batch.
	{"ROLLBACK TO in a batch", "", func(_ *world, t *testing.T, c *stack.Client) {
		c.Must("BEGIN", "SAVEPOINT s")
		c.Fails("SELECT 1/0", "22012")
		stack.WantState(t, c.Batch(cat(stack.Unnamed("ROLLBACK TO s"), stack.Unnamed(write+stale))...), "WF001")
		c.Must("COMMIT")
	}},
	{"PREPARE TRANSACTION of a failed block", "", func(_ *world, t *testing.T, c *stack.Client) {
		c.Must("BEGIN")
		c.Fails("SELECT 1/0", "22012")
		stack.WantState(t, c.Batch(cat(stack.Unnamed("PREPARE TRANSACTION 'x'"), stack.Unnamed(write+stale))...), "WF001")
	}},
	{"ROLLBACK and more in a batch", "", func(_ *world, t *testing.T, c *stack.Client) {
		c.Must("BEGIN")
		c.Fails("SELECT 1/0", "22012")
		stack.WantState(t, c.Batch(cat(stack.Unnamed("ROLLBACK"), stack.Unnamed(write+stale), stack.Unnamed("COMMIT"))...), "WF001")
	}},

	// Code that runs before Execute.
	{"a planner that writes", "orders=33", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(&pgproto3.Parse{Query: "SELECT writes_immutably(33)"}, &pgproto3.Bind{}), "WF001")
	}},
	{"a parameter that writes", "orders=33", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(&pgproto3.Parse{Query: "SELECT $1::noted"}, &pgproto3.Bind{Parameters: [][]byte{[]byte("33")}}), "WF001")
	}},
	{"a literal that writes", "orders=33", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(&pgproto3.Parse{Query: "SELECT '{33}'::noted[]"}), "WF001")
	}},
	{"a parameter that writes, in a block", "orders=33", func(_ *world, t *testing.T, c *stack.Client) {
		c.Must("BEGIN")
		stack.WantState(t, c.Batch(&pgproto3.Parse{Query: "SELECT $1::noted"}, &pgproto3.Bind{Parameters: [][]byte{[]byte("33")}}), "WF001")
		c.Must("COMMIT")
	}},
	{"a CALL that is parsed behind a Close", "orders=33", func(w *world, t *testing.T, c *stack.Client) {
		w.Exec(t, "CREATE PROCEDURE takes(a noted[]) LANGUAGE sql AS 'SELECT 1'")
		stack.WantState(t, c.Batch(&pgproto3.Close{ObjectType: 'S'}, &pgproto3.Parse{Query: "CALL takes('{33}')"}), "WF001")
	}},
	{"a description that is read anew", "orders=34", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(&pgproto3.Parse{Name: "n", Query: "SELECT '{34}'::noted[]"}), "")
		c.Must("TRUNCATE t", "SET wirefence.token = 'orders=33'", "SET search_path = pg_catalog, public")
		stack.WantState(t, c.Batch(&pgproto3.Describe{ObjectType: 'S', Name: "n"}), "WF001")
	}},
	{"a description of EXECUTE that is read anew", "orders=34", func(_ *world, t *testing.T, c *stack.Client) {
		c.Must("PREPARE p AS SELECT '{34}'::noted[]")
		stack.WantState(t, c.Batch(&pgproto3.Parse{Name: "n", Query: "EXECUTE p"}), "")
		c.Must("TRUNCATE t", "SET wirefence.token = 'orders=33'", "SET search_path = pg_catalog, public")
		stack.WantState(t, c.Batch(&pgproto3.Describe{ObjectType: 'S', Name: "n"}), "WF001")
	}},
	{"a description that is parsed", "", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(&pgproto3.Parse{Name: "n", Query: "SELECT '{33}'::noted[] " + stale}, &pgproto3.Describe{ObjectType: 'S', Name: "n"}), "WF001")
	}},
}

func TestWaysPastTheFence(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				own := &world{suite.Database(t, w.Major), w.proxy}
				if strings.HasPrefix(way.name, "a function") || strings.HasPrefix(way.name, "a view") {
					own.Exec(t, setter, "CREATE VIEW vset AS SELECT set_config('wirefence.token', 'orders=33', false) AS a")
				}
				own.Seal(t, "orders", 34)
				way.attack(own, t, own.login(t, "options", "-c wirefence.token="+way.login))
				if n := own.rows(t); n != 0 {
					t.Errorf("%d stale rows", n)
				}
			})
		}
	})
}
