package fencingtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A carrier counts as long as PostgreSQL says that the variable has its value.
func TestSessionVariable(t *testing.T) {
	const good, bad = "orders=34", "orders=33"
	for _, c := range []struct {
		name string
		run  func(c *client, db *database)
	}{
		{"SET and RESET", func(c *client, _ *database) {
			c.Must("set wirefence.token = '" + bad + "'")
			c.refused()
			c.Must("set session wirefence.token to '" + good + "'")
			c.accepted()
			c.Must("set wirefence.token = '" + bad + "'")
			c.Must("reset wirefence.token")
			c.accepted()
		}},
		{"a name with capitals and quotes", func(c *client, _ *database) {
			c.Must(`set WireFence."token" = '` + bad + "'")
			c.refused()
			c.Must("reset wirefence.TOKEN")
			c.accepted()
		}},
		{"SET LOCAL ends with its transaction", func(c *client, _ *database) {
			c.Must("begin", "set local wirefence.token = '"+bad+"'")
			c.refused()
			c.Must("rollback")
			c.accepted()
			c.Must("set wirefence.token = '"+bad+"'", "begin", "set local wirefence.token = '"+good+"'")
			c.accepted()
			c.Must("commit")
			c.refused()
		}},
		{"a SET that is rolled back", func(c *client, _ *database) {
			c.Must("begin", "set wirefence.token = '"+bad+"'", "rollback")
			c.accepted()
			c.Must("set wirefence.token = '"+bad+"'", "begin", "set wirefence.token = '"+good+"'")
			c.accepted()
			c.Must("rollback")
			c.refused()
			c.Must("begin", "set wirefence.token = '"+good+"'", "savepoint a", "set wirefence.token = '"+bad+"'", "rollback to a")
			c.accepted()
			c.Must("savepoint a", "set wirefence.token = '"+bad+"'", "release a")
			c.refused()
			c.Must("rollback", "begin")
			c.Fails("savepoint a", "WF001")
			c.Must("rollback")
		}},
		{"set_config", func(c *client, _ *database) {
			c.Must("select set_config('wirefence.token', '" + good + "', false)")
			c.accepted()
			c.Must("begin", "select set_config('wirefence.token', '"+bad+"', true)")
			c.refused()
			c.Must("rollback")
			c.accepted()
			c.Must("select set_config('wirefence.token', '" + bad + "', false)")
			c.refused()
			c.Must("select set_config('wirefence.token', '', false)") // as SET would
		}},
		{"set_config with parameters", func(c *client, _ *database) {
			set := func(sql string, values ...string) {
				c.T.Helper()
				stack.WantState(c.T, c.Extended(sql, values...), "", sql)
			}
			set("select set_config($1, $2, false)", "wirefence.token", bad)
			c.refused()
			c.Must("reset wirefence.token")
			set("select set_config('wirefence.token', $1, false)", good)
			c.accepted()
			c.Must("begin")
			set("select set_config($1, $2, true)", "wirefence.token", bad)
			c.refused()
			c.Must("rollback")
			c.accepted()
		}},
		{"RESET ALL and DISCARD ALL", func(c *client, _ *database) {
			c.Must("set wirefence.token = '"+bad+"'", "reset all")
			c.accepted()
			c.Must("set wirefence.token = '"+bad+"'", "discard all")
			c.accepted()
			c.Must("set wirefence.token = '" + bad + "'")
			c.refused()
		}},
		{"a function of the user", func(c *client, _ *database) {
			c.Must(enter)
			c.Must("select enter('" + bad + "')")
			c.refused()
			c.Fails("select enter('"+good+"')", "WF001")
			c.Must("reset wirefence.token")
			stack.WantState(c.T, c.Extended("select enter('"+good+"')"), "")
			c.accepted()
		}},
		{"many statements in a message", func(c *client, _ *database) {
			c.Fails("set wirefence.token = '"+bad+"'; insert into jobs values (33)", "WF001")
			c.accepted()
			c.Must("set wirefence.token = '" + good + "'; insert into jobs values (34); reset wirefence.token; insert into jobs values (34)")
			c.Fails("insert into jobs values (33); set wirefence.token = '"+bad+"'; update cell set n = 1", "WF001")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, oldAndNew, func(t *testing.T, db *database) {
				db.Seal(t, "orders", 34)
				client := db.begins(t)
				client.accepted()
				c.run(client, db)
				if n := stack.Value[int](t, db.DB, "select count(*) from jobs where token = 33"); n != 0 {
					t.Errorf("%d rows of the stale token", n)
				}
			})
		})
	}
}

// accepted writes with all protocols, in the transaction that is open or its own.
func (c *client) accepted() {
	c.T.Helper()
	for _, p := range protocols {
		stack.WantState(c.T, p.run(c, "insert into jobs values (34)"), "", p.name)
	}
}

// refused sees the write refused: with all protocols, or once in the transaction that is
// open.
func (c *client) refused() {
	c.T.Helper()
	if c.TxStatus() != 'I' {
		stack.WantState(c.T, c.Simple(insert), "WF001", "in a block")
		return
	}
	for _, p := range protocols {
		stack.WantState(c.T, p.run(c, insert), "WF001", p.name)
	}
}

func TestVariableFromTheStart(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		for _, settings := range [][]string{
			{"options", "-c wirefence.token=" + stale}, {"options", "-cwirefence.token=" + stale}, {"options", "--wirefence.token=" + stale}, {"options", "-ec wirefence.token=" + stale},
			{"wirefence.token", stale}, {"WireFence.Token", stale},
		} {
			c := db.connect(t, settings...)
			c.refused()
			c.Must("set wirefence.token = 'orders=34'")
			c.accepted()
			c.Must("reset wirefence.token")
			c.refused()
			c.Must("set wirefence.token = ''")
			c.accepted()
			c.Must("discard all")
			c.refused()
		}
		idle := db.connect(t)
		db.Exec(t, "alter role postgres in database "+db.Name+" set wirefence.token = 'orders=34'")
		db.connect(t).accepted()
		db.Exec(t, "alter role postgres in database "+db.Name+" set wirefence.token = '"+stale+"'")
		db.connect(t).refused()
		db.Exec(t, "alter role postgres in database "+db.Name+" reset wirefence.token")
		db.Exec(t, "alter database "+db.Name+" set wirefence.token = '"+stale+"'")
		db.connect(t).refused()
		idle.accepted()
	})
}

// A setting of Wirefence's that nothing reads is refused where it would be set, so that a
// misspelt fence is no fence that is ignored.
func TestUnknownSettings(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, db *database) {
		c := db.connect(t)
		for _, sql := range []string{
			"set wirefence.tokem = 'orders=34'", "set local wirefence.fence = 'orders=34'",
			"select set_config('wirefence.tokem', 'orders=34', false)",
			"alter role postgres in database " + db.Name + " set wirefence.tokem = 'orders=34'",
			"insert into jobs values (34) /*wirefence.tokn='orders=34'*/",
		} {
			for _, p := range protocols {
				stack.WantState(t, p.run(c, sql), "WF004", p.name+": "+sql)
			}
		}
		c.accepted()
		c.Must("set wirefence.reason = 'maintenance'", "select wirefence.check()", "select count(*) from wirefence.resource_locks")
		for _, settings := range [][]string{
			{"options", "-c wirefence.tokem=orders=34"}, {"options", "-ec wirefence.tokem=orders=34"}, {"options", "-c wirefence.token=orders=34 --wirefence.tokn=orders=34"}, {"wirefence.fence", "orders=34"},
		} {
			_, err := stack.TryLogin(t, db.proxy, db.Name, settings...)
			if err == nil || !strings.Contains(err.Error(), "WF004") || !strings.Contains(err.Error(), "unknown setting") {
				t.Errorf("%v: %v", settings, err)
			}
		}
	})
}

func TestUnknownSettingsInShadowMode(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, shared *database) {
		db := shared.counted(t, proxy.Options{Mode: proxy.Shadow})
		c := db.connect(t, "options", "-c wirefence.tokem=orders=34")
		c.Must("set wirefence.tokem = 'orders=34'")
		if n := db.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": "WF004", "shadow": "true"}); n != 2 {
			t.Errorf("%d are told of, not 2", n)
		}
	})
}

func TestComments(t *testing.T) {
	var pairs []string
	for i := range 33 {
		pairs = append(pairs, fmt.Sprintf("r%d=1", i))
	}
	deep := "select " + strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300) + "; "
	cases := []struct{ sql, want string }{
		// Where it may stand.
		{"/*wirefence.token='orders=33'*/ insert into jobs values (33)", "WF001"},
		{"/*wirefence.token='orders=34'*/ insert into jobs values (34)", ""},
		{"insert /*wirefence.token='orders=33'*/ into jobs values (33)", "WF001"},
		{"insert into jobs values (33) /*wirefence.token='orders=33'*/", "WF001"},
		{"insert into jobs values (33); /*wirefence.token='orders=33'*/", "WF001"},
		{"insert into jobs values (33) -- wirefence.token='orders=33'", "WF001"},
		{"-- wirefence.token='orders=33'\ninsert into jobs values (33)", "WF001"},
		{"-- wirefence.token='orders=33'\r\ninsert into jobs values (33)", "WF001"},
		{"insert into jobs values (33, 'a'\n-- wirefence.token='orders=33'\n'b')", "WF001"},
		{"/* WireFence.Token = 'orders=33' */ insert into jobs values (33)", "WF001"},
		{deep + "insert into jobs values (33) /*wirefence.token='orders=33'*/", "WF001"},
		// sqlcommenter's form.
		{"insert into jobs values (33) /*action='x',framework='y%2Cz',wirefence.token='orders%3D33',traceparent='00-5'*/", "WF001"},
		{"insert into jobs values (34) /*action='x',wirefence.token='orders%3D34'*/", ""},
		{"insert into jobs values (33) /*wirefence%2Etoken='orders%3d33'*/", "WF001"},
		{"insert into jobs values (34) /*note='it\\'s',wirefence.token='orders=34'*/", ""},
		// Sums.
		{"/*wirefence.token='orders=34'*/ insert into jobs values (34) /*wirefence.token='bills=7'*/", ""},
		{"/*wirefence.token='orders=34'*/ insert into jobs values (33) /*wirefence.token='bills=6'*/", "WF001"},
		{"/*wirefence.token='orders=34'*/ insert into jobs values (34) /*wirefence.token='orders=34'*/", ""},
		{"/*wirefence.token='orders=34'*/ insert into jobs values (33) /*wirefence.token='orders=33'*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='orders=34,orders=35'*/", "WF004"},
		{"insert into jobs values (34) /*wirefence.token='orders=34,bills=7'*/", ""},
		{"insert into jobs values (34) /*wirefence.token='" + strings.Join(pairs[:32], ",") + "'*/", ""},
		{"insert into jobs values (33) /*wirefence.token='" + strings.Join(pairs, ",") + "'*/", "WF004"},
		// Names.
		{"insert into jobs values (33) /*wirefence.token='%6Frders=33'*/", "WF001"},
		{"insert into jobs values (33) /*wirefence.token='caf%C3%A9=1'*/", "WF001"},
		{"insert into jobs values (34) /*wirefence.token='caf%c3%a9=2'*/", ""},
		{"insert into jobs values (33) /*wirefence.token='caf%25C3%25A9%3D1'*/", "WF001"},
		{"insert into jobs values (33) /*wirefence.token='a%00=1'*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='%ff=1'*/", "WF004"},
		// Malformed.
		{"insert into jobs values (33) /*wirefence.token=''*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token=orders=33*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token=\"orders=33\"*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='orders=33*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='34'*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='orders=0'*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='orders=9223372036854775808'*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='orders=99'*/", "WF003"},
		// Sources: bills' tokens come from etcd.
		{"insert into jobs values (34) /*wirefence.token='bills=7@etcd'*/", ""},
		{"insert into jobs values (34) /*wirefence.token='bills%3D7%40etcd'*/", ""},
		{"insert into jobs values (33) /*wirefence.token='bills=7@redis'*/", "WF003"},
		{"insert into jobs values (33) /*wirefence.token='bills%3D6%40redis'*/", "WF003"},
		{"insert into jobs values (33) /*wirefence.token='bills=6@etcd'*/", "WF001"},
		{"insert into jobs values (33) /*wirefence.token='bills=7@redis,bills=7'*/", "WF003"},
		{"/*wirefence.token='bills=7@redis'*/ insert into jobs values (33) /*wirefence.token='bills=7@etcd'*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='bills=7@'*/", "WF004"},
		// Where it means nothing.
		{"insert into jobs values (34, '/*wirefence.token=''orders=33''*/')", ""},
		{"insert into jobs values (34, E'\\'/*wirefence.token=\\'orders=33\\'*/')", ""},
		{"insert into jobs values (34, $$/*wirefence.token='orders=33'*/$$)", ""},
		{"insert into jobs values (34, $a$ $$ /*wirefence.token='orders=33'*/ $a$)", ""},
		{`insert into jobs select 34 as "/*wirefence.token='orders=33'*/"`, ""},
		{"insert into jobs values (33) /* about: /*wirefence.token='orders=33'*/ see there */", "WF004"},
		{"insert into jobs values (34) /* the wirefence.token is not set here */", ""},
		{"insert into jobs values (33) /* wirefence.tokens='orders=33' */", "WF004"},
		{"do $$ begin /*wirefence.token='orders=33'*/ insert into jobs values (34); end $$", ""},
	}
	onBoth(t, oldAndNew, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		if _, err := fence.Seal(t.Context(), db.Admin, fence.Grant{Resource: "bills", Token: 7, Source: fence.SourceEtcd}); err != nil {
			t.Fatal(err)
		}
		db.Seal(t, "café", 2)
		c := db.connect(t)
		for _, test := range cases {
			stack.WantState(t, c.Simple(test.sql), test.want, test.sql)
			if !strings.Contains(test.sql, "; insert") {
				stack.WantState(t, c.Extended(test.sql), test.want, test.sql)
			}
		}
		c.Must("set wirefence.token = '" + stale + "'")
		stack.WantState(t, c.Simple("insert into jobs values (34) /*wirefence.token='orders=34'*/"), "", "overrides the variable")
		c.Must("set wirefence.token = 'orders=34'")
		c.Fails(insert+" /*wirefence.token='orders=33'*/", "WF001")
		c.Must("set wirefence.token = 'what'")
		stack.WantState(t, c.Extended("insert into jobs values (34) /*wirefence.token='orders=34'*/"), "", "overrides the variable")
		if n := stack.Value[int](t, db.DB, "select count(*) from jobs where token = 33"); n != 0 {
			t.Errorf("%d rows of a refused statement", n)
		}
	})
}

func TestBareToken(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, db *database) {
		if _, err := fence.Seal(t.Context(), db.Admin, fence.Grant{Resource: "orders of today", Token: 34, Source: fence.SourceEtcd}); err != nil {
			t.Fatal(err)
		}
		own := *db
		own.proxy = db.proxyWith(t, proxy.Options{Resource: "orders of today"})
		c := own.connect(t)
		for _, p := range protocols {
			stack.WantState(t, p.run(c, insert+" /*wirefence.token='33'*/"), "WF001", p.name)
			stack.WantState(t, p.run(c, "insert into jobs values (34) /*wirefence.token='34'*/"), "", p.name)
			stack.WantState(t, p.run(c, insert+" /*wirefence.token='34,orders%20of%20today=33'*/"), "WF004", p.name)
			stack.WantState(t, p.run(c, "insert into jobs values (34) /*wirefence.token='34@etcd'*/"), "", p.name)
			stack.WantState(t, p.run(c, insert+" /*wirefence.token='34%40redis'*/"), "WF003", p.name)
		}
		for value, want := range map[string]string{"33": "WF001", "34": "", "34@etcd": "", "34@redis": "WF003", "34@": "WF004", "orders%20of%20today=33": "WF001", "x=1,33": "WF001", "": ""} {
			c.Must("set wirefence.token = '" + value + "'")
			for _, p := range protocols {
				stack.WantState(t, p.run(c, "insert into jobs values (34)"), want, p.name, value)
			}
		}
		db.connect(t, "wirefence.token", "34").Fails(insert, "WF004")
	})
}
