package attacktest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

const unlock = "SELECT pg_advisory_unlock_all()"

// Ways to make the session's lock go while a transaction is open that wrote under it:
// by then the hold counts for nothing, or the message carries another fence.
var releases = []struct {
	name    string
	release func(w *world, t *testing.T, c *stack.Client)
}{
	{"SET LOCAL", func(_ *world, _ *testing.T, c *stack.Client) { c.Must("SET LOCAL wirefence.token = ''", unlock) }},
	{"SET LOCAL in one message", func(_ *world, _ *testing.T, c *stack.Client) { c.Must("SET LOCAL wirefence.token = ''; " + unlock) }},
	{"SET to another fence", func(_ *world, _ *testing.T, c *stack.Client) { c.Must("SET wirefence.token = 'other=7'", unlock) }},
	{"RESET", func(_ *world, _ *testing.T, c *stack.Client) { c.Must("RESET wirefence.token", unlock) }},
	{"RESET ALL", func(_ *world, _ *testing.T, c *stack.Client) { c.Must("RESET ALL", unlock) }},
	{"RESET ALL in one message", func(_ *world, _ *testing.T, c *stack.Client) { c.Must("RESET ALL; " + unlock) }},
	{"set_config, extended", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Extended("SELECT set_config('wirefence.token', '', true)"), "")
		stack.WantState(t, c.Extended(unlock), "")
	}},
	{"one batch", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(cat(stack.Unnamed("SET LOCAL wirefence.token = ''"), stack.Unnamed(unlock))...), "")
	}},
	{"a block of code", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Must("DO $$ BEGIN PERFORM set_config('wirefence.token', '', true); END $$", unlock)
	}},
	{"FunctionCall of set_config", func(_ *world, t *testing.T, c *stack.Client) {
		c.Send(&pgproto3.FunctionCall{Function: 2078, ArgFormatCodes: []uint16{0}, Arguments: [][]byte{[]byte("wirefence.token"), {}, []byte("t")}})
		stack.WantState(t, stack.Err(c.Ready(1)), "")
		c.Must(unlock)
	}},
	{"a comment of another fence", func(_ *world, _ *testing.T, c *stack.Client) { c.Must(unlock + " /*wirefence.token='other=7'*/") }},
	{"a savepoint and a comment of another fence", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Must("SAVEPOINT s /*wirefence.token='other=7'*/", unlock, "ROLLBACK TO s")
	}},
	{"a savepoint without the fence", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Must("SAVEPOINT s", "SET LOCAL wirefence.token = ''", unlock, "ROLLBACK TO s")
	}},
	{"a savepoint, rolled back in one message", func(_ *world, _ *testing.T, c *stack.Client) {
		c.Must("SAVEPOINT s; " + unlock + "; ROLLBACK TO s")
	}},
	{"a function that another session makes just now", func(w *world, t *testing.T, c *stack.Client) {
		w.login(t).Must("CREATE FUNCTION unlocks() RETURNS void LANGUAGE sql AS '" + unlock + "'")
		c.Must("SELECT unlocks()")
	}},
	{"a portal that was bound before", func(_ *world, t *testing.T, c *stack.Client) {
		stack.WantState(t, c.Batch(&pgproto3.Parse{Query: unlock}, &pgproto3.Bind{DestinationPortal: "p"}), "")
		c.Must("SET LOCAL wirefence.token = ''")
		stack.WantState(t, c.Batch(&pgproto3.Execute{Portal: "p"}), "")
	}},
}

func TestLocksThatGoInATransaction(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		for _, way := range releases {
			for _, by := range []string{"the variable", "a comment"} {
				t.Run(way.name+", by "+by, func(t *testing.T) {
					t.Parallel()
					w.release(t, by == "a comment", way.release)
				})
			}
		}
	})
}

func (w *world) release(t *testing.T, comment bool, release func(*world, *testing.T, *stack.Client)) {
	t.Helper()
	own := &world{suite.Database(t, w.Major), w.proxy}
	own.Seal(t, "orders", 34)
	own.Seal(t, "other", 7)
	stack.MustExec(t, own.Admin, "UPDATE wirefence.resource_locks SET preempt_after = NULL")
	c, by := own.login(t), ""
	if comment {
		by = current
	} else {
		c.Must("SET wirefence.token = 'orders=34'")
	}
	stack.Eventually(t, "the session holds", func() bool {
		c.Must("SELECT 1 "+by, "SELECT 2 "+by, "SELECT 3 "+by)
		return own.held(t) == 1
	})
	c.Must("BEGIN", "INSERT INTO t (token) VALUES (34) "+by)
	release(own, t, c)
	rival := own.Direct(t)
	over := make(chan error, 1)
	go func() {
		_, err := rival.Exec(t.Context(), "SELECT wirefence.seal('orders', 35, 'the next')")
		over <- err
	}()
	stack.Eventually(t, "the rival waits", func() bool {
		return len(over) > 0 || own.count(t, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") > 0
	})
	if len(over) > 0 {
		t.Error("the seal returned while an older transaction was open")
	}
	c.Must("COMMIT")
	stack.WantState(t, <-over, "")
}

// A name that SQL gives to another statement while the session carries nothing.
func TestNamesThatChangeUnfenced(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		for _, name := range []string{"p", "P", strings.Repeat("long", 20), "with space", `quo"te`} {
			quoted := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
			for _, current := range []string{"", "SET wirefence.token = 'orders=34'"} {
				c := w.login(t)
				if current != "" {
					c.Must(current)
				}
				stack.WantState(t, c.Batch(&pgproto3.Parse{Name: name, Query: "SHOW server_version"}), "")
				c.Must("DEALLOCATE "+quoted, "PREPARE "+quoted+" AS "+write, "SET wirefence.token = 'orders=33'")
				stack.WantState(t, c.Batch(&pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}), "WF001", name, current)
				c.Close()
			}
		}
		if n := w.rows(t); n != 0 {
			t.Errorf("%d stale rows", n)
		}
	})
}

// Texts that may read differently under other settings are no different in a batch.
func TestBatchesBeyondASCII(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		for _, fence := range []string{"", "orders=34"} {
			c := w.login(t, "options", "-c wirefence.token="+fence)
			for _, sql := range []string{"SELECT 'é'", `SELECT '\'`, "INSERT INTO t (what) VALUES ('naïve')"} {
				stack.WantState(t, c.Batch(cat(stack.Unnamed(sql), stack.Unnamed(sql), stack.Unnamed(sql))...), "", fence, sql)
			}
		}
	})
}
