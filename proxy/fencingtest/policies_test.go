package fencingtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/proxy"
)

func TestUnfencedWritesAreRejected(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		db := shared.counted(t, proxy.Options{UnfencedWrites: proxy.Reject})
		c := db.connect(t)
		for _, p := range protocols {
			for _, w := range writers {
				if w.simple || w.block || w.run != nil || w.before != nil || w.since > db.Major {
					continue
				}
				wantCode(t, p.run(c, strings.ReplaceAll(w.sql, "%d", "0")), "WF002", w.name, p.name)
			}
			for _, sql := range reads {
				wantCode(t, p.run(c, sql), "", p.name, sql)
			}
			wantCode(t, p.run(c, "insert into jobs values (34) /*wirefence.token='orders=34'*/"), "", p.name)
			c.must("set wirefence.token = 'orders=34'")
			wantCode(t, p.run(c, "insert into jobs values (34)"), "", p.name)
			c.must("set wirefence.token = ''")
			wantCode(t, p.run(c, insert), "WF002", p.name)
			c.must("reset wirefence.token")
			wantCode(t, p.run(c, insert), "WF002", p.name)
			c.must("begin", "set local wirefence.token = 'orders=34'", "insert into jobs values (34)", "set local wirefence.token = ''")
			wantCode(t, p.run(c, insert), "WF002", p.name)
			c.must("rollback")
		}
		wantCode(t, c.copySimple("copy jobs from stdin", "33\tx"), "WF002")
		wantCode(t, firstError(c.exchange(1, shared.call(t, "writes(int)", "1"))), "WF002")
		db.wantRows(t, 6)
		if n := db.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": "WF002", "shadow": "false"}); n < 50 {
			t.Errorf("%d refusals were counted", n)
		}
	})
}

func TestShadowLetsAllPassAndTells(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		db := shared.counted(t, proxy.Options{Mode: proxy.Shadow})
		refusals := func(state string) int {
			return db.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": state, "shadow": "true"})
		}
		for _, p := range protocols {
			for fence, state := range map[string]string{"orders=33": "WF001", "orders": "WF004", "orders=99": "WF003"} {
				c := db.connect(t)
				before := refusals(state)
				wantCode(t, p.run(c, "insert into jobs values (33) /*wirefence.token='"+fence+"'*/"), "", p.name, fence)
				c.must("set wirefence.token = '" + fence + "'")
				wantCode(t, p.run(c, "insert into jobs values (33)"), "", p.name, fence)
				wantCode(t, p.run(c, "call committing()"), "", p.name, fence)
				wantCode(t, p.run(c, "create index concurrently on jobs (token)"), "", p.name, fence)
				if n := refusals(state) - before; n < 2 {
					t.Errorf("%s, %s: %d refusals were reported", p.name, fence, n)
				}
			}
		}
		db.wantRows(t, 3*3*4)
		if n := db.metric(t, "wirefence_refusals_total", map[string]string{"shadow": "false"}); n != 0 {
			t.Errorf("%d refusals count as real", n)
		}
	})
}

func TestModeOff(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		db := shared.counted(t, proxy.Options{Mode: proxy.Off, UnfencedWrites: proxy.Reject})
		c := db.connect(t, "wirefence.token", stale)
		for _, p := range protocols {
			wantCode(t, p.run(c, insert+" /*wirefence.token='x'*/"), "", p.name)
		}
		db.wantRows(t, 3)
		if n := db.checks(t); n != 0 {
			t.Errorf("%d checks", n)
		}
	})
}

func TestDatabaseWithoutTheSchema(t *testing.T) {
	t.Parallel()
	for _, major := range oldAndNew {
		db := newDatabase(t, major, "template0")
		db.exec(t, objects)
		c := db.connect(t)
		for _, p := range protocols {
			wantCode(t, p.run(c, "insert into jobs values (1)"), "", p.name)
			for _, carrier := range []string{"", " /*wirefence.token='orders=34'*/"} {
				if carrier == "" {
					c.must("set wirefence.token = 'orders=34'")
				}
				err := p.run(c, insert+carrier)
				wantCode(t, err, "WF006", p.name)
				if e, ok := err.(*pgconn.PgError); !ok || !strings.Contains(e.Hint, "wirefence migrate") || !strings.Contains(e.Message, db.name) {
					t.Errorf("%+v", err)
				}
				wantCode(t, p.run(c, "select * from cell"+carrier), "", p.name)
				c.must("reset wirefence.token")
			}
		}
		wantCode(t, firstError(c.exchange(1, db.call(t, "writes(int)", "1"))), "")
		c.must("set wirefence.token = 'orders=34'")
		wantCode(t, firstError(c.exchange(1, db.call(t, "writes(int)", "1"))), "WF006")
		db.wantRows(t, 4)
	}
}

func TestLargeStatements(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		db := *shared
		db.proxy = shared.proxyWith(t, proxy.Options{MaxStatement: 4 << 10})
		db.exec(t, "create table large (a text)")
		c := db.connect(t)
		for _, size := range []int{3 << 10, 4 << 10, 5 << 10, 100 << 10, 3 << 20} {
			text := strings.Repeat("x", size)
			const comment = "/*wirefence.token='orders=34'*/"
			for _, p := range protocols {
				wantCode(t, p.run(c, "insert into large values ('"+text+"')"), "", p.name, size)
				if got := value[int](t, &db, "select length(a) from large"); got != size {
					t.Errorf("%d bytes arrived of %d", got, size)
				}
				db.exec(t, "truncate large")
				want := ""
				if size >= 4<<10 {
					want = "WF006"
				}
				for _, sql := range []string{
					comment + "insert into large values ('" + text + "')", "insert into large values ('" + text + "')" + comment,
					"insert into large values ('" + text + "' " + comment + "'" + text + "')",
				} {
					if strings.Count(sql, text) == 2 {
						sql = strings.Replace(sql, "' "+comment, "' "+comment+" || ", 1)
						if size < 4<<10 {
							continue
						}
					}
					wantCode(t, p.run(c, sql), want, p.name, size)
					c.must("select 1")
				}
				db.exec(t, "truncate large")
			}
		}
		// What an INSERT's data says is its own affair.
		for _, word := range []string{"names", "reset", "execute", "discard"} {
			for _, p := range protocols {
				wantCode(t, p.run(c, "insert into large values ('"+strings.Repeat(word+" ", 2000)+"')"), "", p.name, word)
			}
		}
		db.exec(t, "truncate large")
		c.must("set wirefence.token = 'orders=34'")
		for _, p := range protocols {
			wantCode(t, p.run(c, "insert into large values ('"+strings.Repeat("x", 5<<10)+"')"), "WF006", p.name)
			wantCode(t, p.run(c, "insert into large values ('x')"), "", p.name)
		}
		if n := value[int](t, &db, "select count(*) from large where length(a) > 1"); n != 0 {
			t.Errorf("%d large rows", n)
		}
	})
}

func TestLargeStatementsAfterDiscardAll(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		db := *shared
		db.proxy = shared.proxyWith(t, proxy.Options{MaxStatement: 4 << 10})
		c := db.connect(t)
		for i, p := range protocols {
			c.must("discard all")
			wantCode(t, p.run(c, "insert into jobs values (1, '"+strings.Repeat("x", 5<<10)+"')"), "", p.name)
			db.wantRows(t, i+1)
		}
	})
}

// A text that is not read may call what sets the variable.
func TestLargeStatementThatSetsTheVariable(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		db := *shared
		db.proxy = shared.proxyWith(t, proxy.Options{MaxStatement: 4 << 10})
		db.exec(t, enter)
		for _, p := range protocols {
			c := db.connect(t)
			if err := p.run(c, "select enter('"+stale+"'), '"+strings.Repeat("x", 5<<10)+"'"); err == nil {
				c.fails(insert, "WF001")
			}
		}
		db.wantRows(t, 0)
	})
}

// Where functions may set the variable, a session that carries nothing still
// may do what can't be fenced.
func TestUnfencedSessionsBesideSetters(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.exec(t, enter)
		db := *shared
		db.proxy = shared.proxyWith(t, proxy.Options{MaxStatement: 4 << 10})
		c := db.connect(t)
		large := "insert into jobs values (1, '" + strings.Repeat("x", 5<<10) + "')"
		for _, p := range protocols {
			for _, sql := range []string{"prepare transaction 'policies'", large} {
				wantCode(t, p.run(c, "begin"), "", p.name)
				wantCode(t, p.run(c, "insert into jobs values (1)"), "", p.name)
				wantCode(t, p.run(c, sql), "", p.name, sql[:7])
				c.must("rollback")
			}
			wantCode(t, p.run(c, "rollback prepared 'policies'"), "", p.name)
			wantCode(t, p.run(c, "create index concurrently on jobs (token)"), "", p.name)
			wantCode(t, p.run(c, "call committing()"), "", p.name)
		}
		db.wantRows(t, 6)
	})
}
