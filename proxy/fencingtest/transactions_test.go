package fencingtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/proxy"
)

// calls is how often the open transaction has been checked, by the server's
// own count.
func (c *client) calls() string {
	c.t.Helper()
	return c.text("select coalesce(sum(calls), 0) from pg_stat_xact_user_functions where funcname = 'check'")
}

func TestOneCheckForATransaction(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		shared.seal(t, "bills", 7)
		db := shared.counted(t, proxy.Options{})
		var c *client
		want := func(checks int, why string) {
			t.Helper()
			if got := c.calls(); got != fmt.Sprint(checks) {
				t.Errorf("%s: the transaction was checked %s times, want %d", why, got, checks)
			}
		}
		for _, p := range protocols[:2] {
			c = db.connect(t, "track_functions", "all") // its counts begin at 0
			c.must("set wirefence.token = 'orders=34'", "begin")
			want(0, "BEGIN")
			for range 3 {
				wantCode(t, p.run(c, "insert into jobs values (34)"), "")
			}
			want(1, "three writes")
			c.must("select * from cell", "savepoint a")
			wantCode(t, p.run(c, "insert into jobs values (34)"), "")
			want(1, "a write behind a savepoint")
			c.must("rollback to a")
			wantCode(t, p.run(c, "insert into jobs values (34)"), "")
			want(2, "ROLLBACK TO")
			c.must("release a")
			wantCode(t, p.run(c, "insert into jobs values (34)"), "")
			want(3, "RELEASE")
			wantCode(t, p.run(c, "insert into jobs values (34) /*wirefence.token='bills=7'*/"), "")
			want(4, "another fence")
			wantCode(t, p.run(c, "insert into jobs values (34)"), "")
			want(4, "the first fence again")
			c.must("set wirefence.token = 'bills=7'")
			wantCode(t, p.run(c, "insert into jobs values (34)"), "")
			want(5, "another value of the variable")
			c.must("commit", "reset wirefence.token", "select 1")
			before := db.checks(t)
			wantCode(t, p.run(c, "insert into jobs values (34)"), "")
			c.must("begin", "insert into jobs values (34)", "commit")
			if n := db.checks(t) - before; n != 0 {
				t.Errorf("%d checks without a fence", n)
			}
		}
		before := db.checks(t)
		c.must("set wirefence.token = 'orders=34'", "insert into jobs values (34); insert into jobs values (34); commit; insert into jobs values (34)")
		if n := db.checks(t) - before; n != 2 {
			t.Errorf("%d checks in a message of two transactions", n)
		}
	})
}

// A takeover waits for a transaction that has written, but not for ever.
func TestZombieInAnOpenTransactionIsEnded(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		for i, isolation := range isolations {
			resource := fmt.Sprintf("orders:%d", i)
			db.seal(t, resource, 33)
			db.exec(t, "update wirefence.resource_locks set preempt_after = '200ms'")
			c := db.connect(t, "user", "app")
			c.must("set wirefence.token = '"+resource+"=33'", "begin isolation level "+isolation, insert)
			began := time.Now()
			db.seal(t, resource, 34)
			if took := time.Since(began); took < 200*time.Millisecond || took > 10*time.Second {
				t.Errorf("%s: sealed after %v", isolation, took)
			}
			if err := c.simple("commit"); err == nil {
				t.Errorf("%s: the zombie's COMMIT succeeded", isolation)
			}
		}
		db.wantRows(t, 0)
	})
}

// A transaction that has not written yet is refused at its first write, however
// old its snapshot is.
func TestTokenThatWentStaleInAnOpenTransaction(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, db *database) {
		for i, isolation := range isolations {
			for _, p := range protocols[:2] {
				resource := fmt.Sprintf("%s:%d", p.name, i)
				db.seal(t, resource, 33)
				c := db.connect(t)
				c.must("set wirefence.token = '"+resource+"=33'", "begin isolation level "+isolation, "select * from cell")
				db.seal(t, resource, 34)
				got := code(p.run(c, insert))
				if got != "WF001" && (got != "40001" || i == 0) {
					t.Errorf("%s, %s: got %q", isolation, p.name, got)
				}
				c.must("rollback", "begin isolation level "+isolation)
				wantCode(t, p.run(c, insert), "WF001", isolation, p.name)
				c.must("rollback")
			}
		}
		db.wantRows(t, 0)
	})
}

// A check in a savepoint that is rolled back has let go of its lock: the next
// write is checked again.
func TestSavepointsLoseTheirCheck(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		for i, end := range []string{"rollback to a", "rollback to savepoint a; release savepoint a", "rollback work to a", "release a"} {
			resource := fmt.Sprintf("orders:%d", i)
			db.seal(t, resource, 33)
			c := db.connect(t)
			c.must("set wirefence.token = '"+resource+"=33'", "begin", "savepoint a")
			if end == "release a" {
				c.must("savepoint b", insert, "rollback to b")
			} else {
				c.must(insert)
			}
			c.must(end)
			db.seal(t, resource, 34)
			wantCode(t, c.extended(insert), "WF001", end)
			c.must("commit")
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
			all = append(all, batch(s)...)
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
				db.seal(t, "orders", 34)
				syncs := 0
				for _, sql := range c.sql {
					if sql == "" {
						syncs++
					}
				}
				client := db.connect(t)
				all := client.exchange(syncs, pipelined(c.sql...)...)
				if got := errorsIn(all); !slices.Equal(got, c.codes) {
					t.Errorf("got %q, want %q", got, c.codes)
				}
				db.wantRows(t, c.rows)
				client.must("rollback", "reset wirefence.token")
				client.fails(insert+bad, "WF001")
			})
		})
	}
}

// Dropping all prepared statements drops the proxy's check too.
func TestDroppedCheck(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		c := db.connect(t)
		for _, drop := range []string{"discard all", "deallocate all", "deallocate prepare all", "select 1; deallocate all", "do $$ begin execute 'deallocate all'; end $$"} {
			for _, p := range protocols[:2] {
				if p.name == "extended" && drop[0] == 's' {
					continue
				}
				c.must("set wirefence.token = 'orders=34'")
				wantCode(t, c.extended("insert into jobs values (34)"), "", drop)
				wantCode(t, p.run(c, drop), "", drop)
				c.must("set wirefence.token = 'orders=34'")
				if drop[0] == 'd' && drop[1] == 'o' {
					// Nobody can see this coming: the write may fail, but not pass.
					_ = c.extended("insert into jobs values (34)")
				}
				wantCode(t, c.extended("insert into jobs values (34)"), "", drop)
				c.must("set wirefence.token = '" + stale + "'")
				wantCode(t, c.extended(insert), "WF001", drop)
			}
		}
	})
}

// Statements and portals are judged whenever they are executed.
func TestStatementsAreCheckedAtEachExecution(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		c := db.connect(t)
		sync := &pgproto3.Sync{}
		c.exchange(1, &pgproto3.Parse{Name: "w", Query: insert}, &pgproto3.Parse{Name: "f", Query: insert + " /*wirefence.token='orders=33'*/"}, sync)
		run := func(name, want string) {
			t.Helper()
			wantCode(t, firstError(c.exchange(1, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{}, sync)), want, name)
		}
		run("f", "WF001")
		c.must("set wirefence.token = '" + stale + "'")
		run("w", "WF001")
		run("f", "WF001")
		c.must("begin")
		run("w", "WF001")
		c.must("rollback", "set wirefence.token = 'orders=34'")
		run("f", "WF001")
		db.wantRows(t, 0)
		run("w", "")
		db.wantRows(t, 1)
		db.seal(t, "orders", 35)
		run("w", "WF001")
		// A portal that is suspended and goes on behind a savepoint.
		c.must("set wirefence.token = 'orders=35'", "begin", "savepoint a")
		all := c.exchange(1, &pgproto3.Parse{Query: "select writes(a) from generate_series(1, 4) a"}, &pgproto3.Bind{DestinationPortal: "p"},
			&pgproto3.Execute{Portal: "p", MaxRows: 2}, sync)
		if kinds := kindsOf(all); !slices.Contains(kinds, "PortalSuspended") {
			t.Errorf("got %v", all)
		}
		c.must("set local wirefence.token = '" + stale + "'")
		wantCode(t, firstError(c.exchange(1, &pgproto3.Execute{Portal: "p", MaxRows: 1}, sync)), "WF001")
		c.must("rollback")
		db.wantRows(t, 1)
	})
}

func kindsOf(all []message) (kinds []string) {
	for _, m := range all {
		kinds = append(kinds, m.kind)
	}
	return kinds
}
