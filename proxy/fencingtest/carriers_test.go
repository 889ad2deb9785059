package fencingtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
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
			c.must("set wirefence.token = '" + bad + "'")
			c.refused()
			c.must("set session wirefence.token to '" + good + "'")
			c.accepted()
			c.must("set wirefence.token = '" + bad + "'")
			c.must("reset wirefence.token")
			c.accepted()
		}},
		{"a name with capitals and quotes", func(c *client, _ *database) {
			c.must(`set WireFence."token" = '` + bad + "'")
			c.refused()
			c.must("reset wirefence.TOKEN")
			c.accepted()
		}},
		{"SET LOCAL ends with its transaction", func(c *client, _ *database) {
			c.must("begin", "set local wirefence.token = '"+bad+"'")
			c.refused()
			c.must("commit")
			c.accepted()
			c.must("set wirefence.token = '"+bad+"'", "begin", "set local wirefence.token = '"+good+"'")
			c.accepted()
			c.must("commit")
			c.refused()
		}},
		{"a SET that is rolled back", func(c *client, _ *database) {
			c.must("begin", "set wirefence.token = '"+bad+"'", "rollback")
			c.accepted()
			c.must("set wirefence.token = '"+bad+"'", "begin", "set wirefence.token = '"+good+"'")
			c.accepted()
			c.must("rollback")
			c.refused()
			c.must("begin", "savepoint a", "set wirefence.token = '"+good+"'", "rollback to a")
			c.refused()
			c.must("rollback", "begin", "savepoint a", "set wirefence.token = '"+good+"'", "release a")
			c.accepted()
			c.must("rollback")
		}},
		{"set_config", func(c *client, _ *database) {
			c.must("select set_config('wirefence.token', '" + bad + "', false)")
			c.refused()
			c.must("select set_config('wirefence.token', '', false)")
			c.accepted()
			c.must("begin", "select set_config('wirefence.token', '"+bad+"', true)")
			c.refused()
			c.must("rollback")
			c.accepted()
		}},
		{"set_config with parameters", func(c *client, _ *database) {
			set := func(sql string, values ...string) {
				c.t.Helper()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				params := make([][]byte, len(values))
				for i, v := range values {
					params[i] = []byte(v)
				}
				wantCode(c.t, c.ExecParams(ctx, sql, params, nil, nil, nil).Read().Err, "", sql)
			}
			set("select set_config($1, $2, false)", "wirefence.token", bad)
			c.refused()
			set("select set_config('wirefence.token', $1, false)", good)
			c.accepted()
			c.must("begin")
			set("select set_config($1, $2, true)", "wirefence.token", bad)
			c.refused()
			c.must("rollback")
			c.accepted()
		}},
		{"RESET ALL and DISCARD ALL", func(c *client, _ *database) {
			c.must("set wirefence.token = '"+bad+"'", "reset all")
			c.accepted()
			c.must("set wirefence.token = '"+bad+"'", "discard all")
			c.accepted()
			c.must("set wirefence.token = '" + bad + "'")
			c.refused()
		}},
		{"a function of the user", func(c *client, _ *database) {
			c.must(enter)
			c.must("select enter('" + bad + "')")
			c.refused()
			c.fails("select enter('"+good+"')", "WF001") // it may write
			c.must("reset wirefence.token")
			wantCode(c.t, c.extended("select enter('"+good+"')"), "")
			c.accepted()
		}},
		{"many statements in a message", func(c *client, _ *database) {
			c.fails("set wirefence.token = '"+bad+"'; insert into jobs values (33)", "WF001")
			c.accepted()
			c.must("set wirefence.token = '" + good + "'; insert into jobs values (34); reset wirefence.token; insert into jobs values (34)")
			c.fails("insert into jobs values (33); set wirefence.token = '"+bad+"'; update cell set n = 1", "WF001")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, oldAndNew, func(t *testing.T, db *database) {
				db.seal(t, "orders", 34)
				client := db.connect(t)
				client.accepted()
				c.run(client, db)
				if n := value[int](t, db, "select count(*) from jobs where token = 33"); n != 0 {
					t.Errorf("%d rows of the stale token", n)
				}
			})
		})
	}
}

// accepted writes with all protocols, in the transaction that is open or its own.
func (c *client) accepted() {
	c.t.Helper()
	for _, p := range protocols {
		wantCode(c.t, p.run(c, "insert into jobs values (34)"), "", p.name)
	}
}

// refused sees the write refused with all protocols. An open transaction goes on.
func (c *client) refused() {
	c.t.Helper()
	block := c.TxStatus() != 'I'
	for _, p := range protocols[:2] {
		if block {
			c.must("savepoint refused")
		}
		wantCode(c.t, p.run(c, insert), "WF001", p.name)
		if block {
			c.must("rollback to refused", "release refused")
		}
	}
}

func TestVariableFromTheStart(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		for _, settings := range [][]string{
			{"options", "-c wirefence.token=" + stale}, {"options", "-cwirefence.token=" + stale}, {"options", "--wirefence.token=" + stale},
			{"wirefence.token", stale}, {"WireFence.Token", stale},
		} {
			c := db.connect(t, settings...)
			c.refused()
			c.must("set wirefence.token = 'orders=34'")
			c.accepted()
			c.must("reset wirefence.token")
			c.refused()
			c.must("set wirefence.token = ''")
			c.accepted()
			c.must("discard all")
			c.refused()
		}
		idle := db.connect(t)
		db.exec(t, "alter role postgres in database "+db.name+" set wirefence.token = 'orders=34'")
		db.connect(t).accepted()
		db.exec(t, "alter role postgres in database "+db.name+" set wirefence.token = '"+stale+"'")
		db.connect(t).refused()
		db.exec(t, "alter role postgres in database "+db.name+" reset wirefence.token")
		db.exec(t, "alter database "+db.name+" set wirefence.token = '"+stale+"'")
		db.connect(t).refused()
		idle.accepted()
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
		{"insert into jobs values (34) /* about: /*wirefence.token='orders=33'*/ see there */", ""},
		{"insert into jobs values (34) /* the wirefence.token is not set here */", ""},
		{"insert into jobs values (34) /* wirefence.tokens='orders=33' */", ""},
		{"do $$ begin /*wirefence.token='orders=33'*/ insert into jobs values (34); end $$", ""},
	}
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		if _, err := fence.Seal(t.Context(), db.admin, fence.Grant{Resource: "bills", Token: 7, Source: fence.SourceEtcd}); err != nil {
			t.Fatal(err)
		}
		db.seal(t, "café", 2)
		c := db.connect(t)
		for _, test := range cases {
			wantCode(t, c.simple(test.sql), test.want, test.sql)
			if !strings.Contains(test.sql, "; insert") {
				wantCode(t, c.extended(test.sql), test.want, test.sql)
			}
		}
		c.must("set wirefence.token = '" + stale + "'")
		wantCode(t, c.simple("insert into jobs values (34) /*wirefence.token='orders=34'*/"), "", "overrides the variable")
		c.must("set wirefence.token = 'orders=34'")
		c.fails(insert+" /*wirefence.token='orders=33'*/", "WF001")
		c.must("set wirefence.token = 'what'")
		wantCode(t, c.extended("insert into jobs values (34) /*wirefence.token='orders=34'*/"), "", "overrides the variable")
		if n := value[int](t, db, "select count(*) from jobs where token = 33"); n != 0 {
			t.Errorf("%d rows of a refused statement", n)
		}
	})
}

func TestBareToken(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		if _, err := fence.Seal(t.Context(), db.admin, fence.Grant{Resource: "orders of today", Token: 34, Source: fence.SourceEtcd}); err != nil {
			t.Fatal(err)
		}
		own := *db
		own.proxy = db.proxyWith(t, proxy.Options{Resource: "orders of today"})
		c := own.connect(t)
		for _, p := range protocols {
			wantCode(t, p.run(c, insert+" /*wirefence.token='33'*/"), "WF001", p.name)
			wantCode(t, p.run(c, "insert into jobs values (34) /*wirefence.token='34'*/"), "", p.name)
			wantCode(t, p.run(c, insert+" /*wirefence.token='34,orders%20of%20today=33'*/"), "WF004", p.name)
			wantCode(t, p.run(c, "insert into jobs values (34) /*wirefence.token='34@etcd'*/"), "", p.name)
			wantCode(t, p.run(c, insert+" /*wirefence.token='34%40redis'*/"), "WF003", p.name)
		}
		for value, want := range map[string]string{"33": "WF001", "34": "", "34@etcd": "", "34@redis": "WF003", "34@": "WF004", "orders%20of%20today=33": "WF001", "x=1,33": "WF001", "": ""} {
			c.must("set wirefence.token = '" + value + "'")
			for _, p := range protocols {
				wantCode(t, p.run(c, "insert into jobs values (34)"), want, p.name, value)
			}
		}
		db.connect(t, "wirefence.token", "34").fails(insert, "WF004")
	})
}
