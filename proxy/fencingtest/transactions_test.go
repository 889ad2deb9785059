package fencingtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// An isolated session has a check in each message that needs one. A busy one takes its hold
// from time to time, more often on a slow machine.
func TestHowOftenIsChecked(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for _, p := range protocols {
			c := w.connect(t)
			before, isolated, got := w.checks(t), 0, 0
			want := func(checks int, why string) {
				t.Helper()
				n := w.checks(t) - before
				before, isolated, got = before+n, isolated+checks, got+n
				if !w.busy && n != checks {
					t.Errorf("%s, %s: %d checks, want %d", why, p.name, n, checks)
				}
			}
			stack.WantState(t, p.run(c, "insert into jobs values (34)"), "")
			c.Must("begin", "insert into jobs values (34)", "savepoint a", "insert into jobs values (34)", "rollback to a", "commit")
			if n := w.checks(t) - before; n != 0 {
				t.Errorf("%d checks without a fence", n)
			}
			c.Must("set wirefence.token = 'orders=34'", "show work_mem", "reset work_mem", "begin", "rollback")
			want(0, "nothing to check")
			if w.busy {
				w.warm("", c)
				before = w.checks(t)
			}
			for range 5 {
				stack.WantState(t, p.run(c, "insert into jobs values (34)"), "")
			}
			each := 1
			if p.name == "prepared" {
				each = 2 // its Parse, too
			}
			want(5*each, "five writes")
			stack.WantState(t, p.run(c, "begin"), "")
			want(0, "BEGIN")
			for range 5 {
				stack.WantState(t, p.run(c, "insert into jobs values (34)"), "")
			}
			want(5*each, "five writes in a block")
			c.Must("savepoint a")
			want(1, "SAVEPOINT")
			c.Must("rollback to a", "release a", "commit")
			want(0, "ends")
			c.Must("insert into jobs values (34); insert into jobs values (34); commit; insert into jobs values (34)")
			want(2, "two transactions in a message")
			all := c.Exchange(2, pipelined("insert into jobs values (34)", "insert into jobs values (34)", "", "insert into jobs values (34)", "")...)
			stack.WantState(t, stack.Err(all), "")
			want(2, "two batches")
			if w.busy && got > isolated/2 {
				t.Errorf("%s: %d checks under holds, %d without", p.name, got, isolated)
			}
		}
	})
}

// A takeover waits for a transaction that has written until preempt_after, then ends it.
func TestZombieInAnOpenTransactionIsEnded(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for i, isolation := range isolations {
			resource := fmt.Sprintf("orders:%d", i)
			w.Seal(t, resource, 33)
			w.preempt(t, "200 ms")
			c := w.connect(t, "user", "app")
			c.Must("set wirefence.token = '"+resource+"=33'", "begin isolation level "+isolation, insert)
			began := time.Now()
			w.Seal(t, resource, 34)
			if took := time.Since(began); took < 200*time.Millisecond || took > 10*time.Second {
				t.Errorf("%s: sealed after %v", isolation, took)
			}
			if err := c.Simple("commit"); err == nil {
				t.Errorf("%s: the zombie's COMMIT succeeded", isolation)
			}
		}
		w.wantRows(t, 0)
	})
}

// A transaction that gets its first fence is refused if that is stale, even if its snapshot is
// older than the newer token.
//
// Evidence: I4
func TestTokenThatWentStaleInAnOpenTransaction(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for i, isolation := range isolations {
			for _, p := range protocols[:2] {
				resource := fmt.Sprintf("%s:%d", p.name, i)
				w.Seal(t, resource, 33)
				c := w.connect(t)
				c.Must("begin isolation level "+isolation, "select * from cell")
				w.Seal(t, resource, 34)
				c.Must("set local wirefence.token = '" + resource + "=33'")
				got := stack.State(p.run(c, insert))
				if got != "WF001" && (got != "40001" || i == 0) {
					t.Errorf("%s, %s: got %q", isolation, p.name, got)
				}
				c.Must("rollback", "set wirefence.token = '"+resource+"=33'", "begin isolation level "+isolation)
				stack.WantState(t, p.run(c, insert), "WF001", isolation, p.name)
				c.Must("rollback")
			}
		}
		w.wantRows(t, 0)
	})
}

// A READ ONLY transaction is refused too if its snapshot is older than the newer token.
func TestTokenThatWentStaleInAReadOnlyTransaction(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		for i, isolation := range isolations[1:] {
			for _, p := range protocols[:2] {
				for _, sql := range []string{"select 1", "notify news", "select pg_logical_emit_message(true, 'stale', 'stale')", "select count(*) from cell"} {
					resource := fmt.Sprintf("%s:%d", p.name, i)
					token := stack.Value[int64](t, w.DB, "select coalesce(max(last_token), 33) + 1 from wirefence.resource_locks where resource_id = $1", resource)
					w.Seal(t, resource, token)
					c := w.begins(t)
					c.Must("begin isolation level "+isolation+" read only", "select * from cell")
					w.Seal(t, resource, token+1)
					c.Must(fmt.Sprintf("set local wirefence.token = '%s=%d'", resource, token))
					stack.WantState(t, p.run(c, sql), "40001", isolation, p.name, sql)
					c.Must("rollback", fmt.Sprintf("begin isolation level %s read only; set local wirefence.token = '%s=%d'", isolation, resource, token+1))
					stack.WantState(t, p.run(c, sql), "", isolation, p.name, sql)
					c.Must("commit")
					c.Close()
				}
			}
		}
	})
}

// A stale session gets no lock on a table: it is refused at once.
func TestLockOfAStaleSession(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		holder := w.connect(t, "wirefence.token", "orders=34")
		for _, isolation := range isolations {
			for _, p := range protocols {
				for _, before := range []string{"", "savepoint s"} {
					c := w.begins(t)
					c.Must("set wirefence.token = '"+stale+"'", "begin isolation level "+isolation)
					err := error(nil)
					if before != "" {
						err = c.Simple(before)
					}
					if err == nil {
						err = p.run(c, "lock table jobs in access exclusive mode")
					}
					if got := stack.State(err); got != "WF001" && (got != "40001" || isolation == isolations[0]) {
						t.Errorf("%s, %s: got %q", isolation, p.name, got)
					}
					holder.Patience = 10 * time.Second
					holder.Must("insert into jobs values (34)")
					c.Must("rollback")
					c.Close()
				}
			}
		}
		c := w.begins(t)
		c.Must("set wirefence.token = '" + stale + "'")
		stack.WantState(t, c.Simple("begin; lock table jobs; select 1; commit"), "WF001")
		c.Must("rollback")
		stack.WantState(t, c.Batch(pipelined("begin", "lock table jobs")...), "WF001")
		c.Must("rollback")
		holder.Must("insert into jobs values (34)")
	})
}

// Rolling back to a savepoint releases the lock of a check behind it, so the next write is
// checked again. A check ahead of the savepoint keeps its lock.
//
// Evidence: I4
func TestSavepointsLoseTheirCheck(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for i, end := range []string{"rollback to a", "rollback to savepoint a; release savepoint a", "rollback work to a", "release a"} {
			resource := fmt.Sprintf("orders:%d", i)
			behind := " /*wirefence.token='" + resource + "=33'*/"
			w.Seal(t, resource, 33)
			c := w.connect(t)
			c.Must("begin", "savepoint a")
			if end == "release a" {
				c.Must("savepoint b", insert+behind, "rollback to b")
			} else {
				c.Must(insert + behind)
			}
			c.Must(end)
			w.Seal(t, resource, 34)
			stack.WantState(t, c.Extended(insert+behind), "WF001", end)
			c.Must("commit")
			c.Close()

			w.Seal(t, resource, 35)
			w.Exec(t, "select wirefence.set_resource('"+resource+"', 'why', preempt_after => '100 ms')")
			c = w.connect(t, "user", "app")
			c.Must("set wirefence.token = '"+resource+"=35'", "begin", "savepoint a", "insert into jobs values (35)", "rollback to a")
			began := time.Now()
			w.Seal(t, resource, 36)
			if waited := time.Since(began); waited < 100*time.Millisecond {
				t.Errorf("%s: the takeover waited %v", end, waited)
			}
			if err := c.Simple("commit"); err == nil {
				t.Errorf("%s: the former holder's COMMIT succeeded", end)
			}
		}
		w.wantRows(t, 0)
	})
}

func TestPipelines(t *testing.T) {
	const good, bad = " /*wirefence.token='orders=34'*/", " /*wirefence.token='orders=33'*/"
	const write = "insert into jobs values (34)"
	for _, c := range []struct {
		name  string
		sql   []string // "" is a Sync
		codes []string
		rows  int
	}{
		{"one batch", []string{write + good, write + good, ""}, nil, 2},
		{"an error of the client's behind a write", []string{write + good, "select 1/0", write + good, ""}, []string{"22012"}, 0},
		{"a refusal behind an unfenced write", []string{write, write + bad, write, ""}, []string{"WF001"}, 0},
		{"a refusal behind a write", []string{write + good, write + bad, write + good, ""}, []string{"WF001"}, 0},
		{"the first batch fails", []string{"select 1/0", write + good, "", write + good, "", write + bad, ""}, []string{"22012", "WF001"}, 1},
		{"the first batch is refused", []string{write + bad, "", write + good, "", write + bad, ""}, []string{"WF001", "WF001"}, 1},
		{"malformed in the middle", []string{write + good, "", write, write + " /*wirefence.token='x'*/", "", write + good, ""}, []string{"WF004"}, 2},
		{"a block over batches", []string{"begin", "", write + good, "", write + good, "", "commit", ""}, nil, 2},
		{"a refused block over batches", []string{"begin", "", write + good, "", write + bad, "", "commit", ""}, []string{"WF001"}, 0},
		{"a block that fails and its successor", []string{"begin", "select 1/0", "", "rollback", "", write + bad, "", write + good, ""}, []string{"22012", "WF001"}, 1},
		{"a block that ends in the batch", []string{"begin", write + good, "commit", write + bad, ""}, []string{"WF001"}, 1},
		{"a variable that is set on the way", []string{"set wirefence.token = 'orders=33'", "", write, ""}, []string{"WF001"}, 0},
		{"a variable that is set in the batch", []string{"set wirefence.token = 'orders=33'", write, "", write, ""}, []string{"WF001"}, 1},
		{"a variable that is reset on the way", []string{"set wirefence.token = 'orders=33'", "", "reset wirefence.token", "", write, ""}, nil, 1},
		{"DISCARD ALL between writes", []string{write + good, "", "discard all", "", write + good, "", write + bad, ""}, []string{"WF001"}, 2},
		{"DEALLOCATE ALL between writes", []string{write + good, "", "deallocate all", write + good, "", write + bad, ""}, []string{"WF001"}, 2},
		{"VACUUM between writes", []string{write + good, "", "vacuum cell", "", write + bad, ""}, []string{"WF001"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, oldAndNew, func(t *testing.T, w *world) {
				syncs := 0
				for _, sql := range c.sql {
					if sql == "" {
						syncs++
					}
				}
				client := w.connect(t)
				all := client.Exchange(syncs, pipelined(c.sql...)...)
				if got := stack.States(all); !slices.Equal(got, c.codes) {
					t.Errorf("got %q, want %q", got, c.codes)
				}
				w.wantRows(t, c.rows)
				client.Must("rollback", "reset wirefence.token")
				client.Fails(insert+bad, "WF001")
			})
		})
	}
}

// A client that drops all prepared statements drops the proxy's check too, which is prepared
// again.
func TestDroppedCheck(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		const behindAnError = "insert into later values (1); set transaction read only; deallocate all" // whose COMMIT fails
		for _, drop := range []string{"discard all", "deallocate all", "deallocate prepare all", "select 1; deallocate all", behindAnError, "do $$ begin execute 'deallocate all'; end $$"} {
			c := w.connect(t)
			for _, p := range protocols[:2] {
				if p.name == "extended" && (drop[0] == 's' || drop == behindAnError) || drop[:2] == "do" && !w.busy {
					continue
				}
				c.Must("set wirefence.token = 'orders=34'")
				stack.WantState(t, c.Extended("insert into jobs values (34)"), "", drop)
				stack.WantState(t, p.run(c, drop), map[string]string{behindAnError: "25006"}[drop], drop)
				c.Must("set wirefence.token = 'orders=34'")
				if drop[0] == 'd' && drop[1] == 'o' {
					// The proxy cannot foresee this: the write may fail, but not pass.
					_ = c.Extended("insert into jobs values (34)")
				}
				stack.WantState(t, c.Extended("insert into jobs values (34)"), "", drop)
				c.Must("set wirefence.token = '" + stale + "'")
				stack.WantState(t, c.Extended(insert), "WF001", drop)
			}
		}
	})
}

// The proxy judges statements and portals at each execution.
func TestStatementsAreCheckedAtEachExecution(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.unseal(t)
		w.Seal(t, "orders", 33)
		c := w.connect(t)
		sync := &pgproto3.Sync{}
		c.Exchange(1, &pgproto3.Parse{Name: "w", Query: insert}, &pgproto3.Parse{Name: "f", Query: insert + " /*wirefence.token='orders=33'*/"}, sync)
		w.Seal(t, "orders", 34)
		run := func(name, want string) {
			t.Helper()
			stack.WantState(t, stack.Err(c.Exchange(1, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}, sync)), want, name)
		}
		run("f", "WF001")
		c.Must("set wirefence.token = '" + stale + "'")
		run("w", "WF001")
		run("f", "WF001")
		c.Must("begin")
		run("w", "WF001")
		c.Must("rollback", "set wirefence.token = 'orders=34'")
		run("f", "WF001")
		w.wantRows(t, 0)
		run("w", "")
		w.wantRows(t, 1)
		w.Seal(t, "orders", 35)
		run("w", "WF001")
		// A portal that is suspended and goes on behind a savepoint.
		c.Must("set wirefence.token = 'orders=35'", "begin", "savepoint a")
		all := c.Exchange(1, &pgproto3.Parse{Query: "select writes(a) from generate_series(1, 4) a"}, &pgproto3.Bind{DestinationPortal: "p"},
			&pgproto3.Execute{Portal: "p", MaxRows: 2}, sync)
		if !strings.Contains(stack.Types(all), "s") {
			t.Errorf("got %v", all)
		}
		c.Must("set local wirefence.token = '" + stale + "'")
		stack.WantState(t, stack.Err(c.Exchange(1, &pgproto3.Execute{Portal: "p", MaxRows: 1}, sync)), "WF001")
		c.Must("rollback")
		w.wantRows(t, 1)
	})
}
