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

// In an isolated session a check stands in each message that needs one; a busy one asks
// for its hold from time to time.
func TestHowOftenIsChecked(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		for _, p := range protocols {
			c := db.connect(t)
			before := db.checks(t)
			want := func(checks int, why string) {
				t.Helper()
				n := db.checks(t) - before
				switch before += n; {
				case !db.busy && n != checks:
					t.Errorf("%s, %s: %d checks, want %d", why, p.name, n, checks)
				case db.busy && n > 2:
					t.Errorf("%s, %s: %d checks under a hold", why, p.name, n)
				}
			}
			stack.WantState(t, p.run(c, "insert into jobs values (34)"), "")
			c.Must("begin", "insert into jobs values (34)", "savepoint a", "insert into jobs values (34)", "rollback to a", "commit")
			if n := db.checks(t) - before; n != 0 {
				t.Errorf("%d checks without a fence", n)
			}
			c.Must("set wirefence.token = 'orders=34'", "show work_mem", "reset work_mem", "begin", "rollback")
			want(0, "nothing to check")
			if db.busy {
				db.warm(c, "")
				before = db.checks(t)
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
		}
	})
}

// A takeover waits for a transaction that has written, but not for ever.
func TestZombieInAnOpenTransactionIsEnded(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		for i, isolation := range isolations {
			resource := fmt.Sprintf("orders:%d", i)
			db.Seal(t, resource, 33)
			db.Exec(t, "update wirefence.resource_locks set preempt_after = '200ms'")
			c := db.connect(t, "user", "app")
			c.Must("set wirefence.token = '"+resource+"=33'", "begin isolation level "+isolation, insert)
			began := time.Now()
			db.Seal(t, resource, 34)
			if took := time.Since(began); took < 200*time.Millisecond || took > 10*time.Second {
				t.Errorf("%s: sealed after %v", isolation, took)
			}
			if err := c.Simple("commit"); err == nil {
				t.Errorf("%s: the zombie's COMMIT succeeded", isolation)
			}
		}
		db.wantRows(t, 0)
	})
}

// A transaction that has carried nothing yet is refused when it does, however
// old its snapshot is.
func TestTokenThatWentStaleInAnOpenTransaction(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		for i, isolation := range isolations {
			for _, p := range protocols[:2] {
				resource := fmt.Sprintf("%s:%d", p.name, i)
				db.Seal(t, resource, 33)
				c := db.connect(t)
				c.Must("begin isolation level "+isolation, "select * from cell")
				db.Seal(t, resource, 34)
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
		db.wantRows(t, 0)
	})
}

// A check in a savepoint that is rolled back has let go of its lock: the next
// write is checked again. A check ahead of the savepoint keeps it.
func TestSavepointsLoseTheirCheck(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, db *database) {
		for i, end := range []string{"rollback to a", "rollback to savepoint a; release savepoint a", "rollback work to a", "release a"} {
			resource := fmt.Sprintf("orders:%d", i)
			behind := " /*wirefence.token='" + resource + "=33'*/"
			db.Seal(t, resource, 33)
			c := db.connect(t)
			c.Must("begin", "savepoint a")
			if end == "release a" {
				c.Must("savepoint b", insert+behind, "rollback to b")
			} else {
				c.Must(insert + behind)
			}
			c.Must(end)
			db.Seal(t, resource, 34)
			stack.WantState(t, c.Extended(insert+behind), "WF001", end)
			c.Must("commit")
			c.Close()

			db.Seal(t, resource, 35)
			db.Exec(t, "select wirefence.set_resource('"+resource+"', 'why', preempt_after => '100 ms')")
			c = db.connect(t, "user", "app")
			c.Must("set wirefence.token = '"+resource+"=35'", "begin", "savepoint a", "insert into jobs values (35)", "rollback to a")
			began := time.Now()
			db.Seal(t, resource, 36)
			if waited := time.Since(began); waited < 100*time.Millisecond {
				t.Errorf("%s: the takeover waited %v", end, waited)
			}
			if err := c.Simple("commit"); err == nil {
				t.Errorf("%s: the former holder's COMMIT succeeded", end)
			}
		}
		db.wantRows(t, 0)
	})
}

// pipelined are extended queries, with a Sync for each empty text.
func pipelined(sql ...string) (all []pgproto3.FrontendMessage) {
	for _, s := range sql {
		if s == "" {
			all = append(all, &pgproto3.Sync{})
		} else {
			all = append(all, stack.Unnamed(s)...)
		}
	}
	return all
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
			onEach(t, oldAndNew, func(t *testing.T, db *database) {
				db.Seal(t, "orders", 34)
				syncs := 0
				for _, sql := range c.sql {
					if sql == "" {
						syncs++
					}
				}
				client := db.connect(t)
				all := client.Exchange(syncs, pipelined(c.sql...)...)
				if got := stack.States(all); !slices.Equal(got, c.codes) {
					t.Errorf("got %q, want %q", got, c.codes)
				}
				db.wantRows(t, c.rows)
				client.Must("rollback", "reset wirefence.token")
				client.Fails(insert+bad, "WF001")
			})
		})
	}
}

// Dropping all prepared statements drops the proxy's check too.
func TestDroppedCheck(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		for _, drop := range []string{"discard all", "deallocate all", "deallocate prepare all", "select 1; deallocate all", "do $$ begin execute 'deallocate all'; end $$"} {
			c := db.connect(t)
			for _, p := range protocols[:2] {
				if p.name == "extended" && drop[0] == 's' {
					continue
				}
				c.Must("set wirefence.token = 'orders=34'")
				stack.WantState(t, c.Extended("insert into jobs values (34)"), "", drop)
				stack.WantState(t, p.run(c, drop), "", drop)
				c.Must("set wirefence.token = 'orders=34'")
				if drop[0] == 'd' && drop[1] == 'o' {
					// Nobody can see this coming: the write may fail, but not pass.
					_ = c.Extended("insert into jobs values (34)")
				}
				stack.WantState(t, c.Extended("insert into jobs values (34)"), "", drop)
				c.Must("set wirefence.token = '" + stale + "'")
				stack.WantState(t, c.Extended(insert), "WF001", drop)
			}
		}
	})
}

// Statements and portals are judged whenever they are executed.
func TestStatementsAreCheckedAtEachExecution(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 33)
		c := db.connect(t)
		sync := &pgproto3.Sync{}
		c.Exchange(1, &pgproto3.Parse{Name: "w", Query: insert}, &pgproto3.Parse{Name: "f", Query: insert + " /*wirefence.token='orders=33'*/"}, sync)
		db.Seal(t, "orders", 34)
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
		db.wantRows(t, 0)
		run("w", "")
		db.wantRows(t, 1)
		db.Seal(t, "orders", 35)
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
		db.wantRows(t, 1)
	})
}
