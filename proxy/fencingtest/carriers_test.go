package fencingtest

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// accepted writes with all protocols, in the transaction that is open or its own.
func (c *client) accepted() {
	c.T.Helper()
	for _, p := range protocols {
		stack.WantState(c.T, p.run(c, "insert into jobs values (34)"), "", p.name)
	}
}

// refused wants a write to be refused by all protocols, or once in an open transaction.
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
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		for _, settings := range [][]string{
			{"options", "-c wirefence.token=" + stale}, {"options", "-cwirefence.token=" + stale}, {"options", "--wirefence.token=" + stale}, {"options", "-ec wirefence.token=" + stale},
			{"wirefence.token", stale}, {"WireFence.Token", stale},
		} {
			c := w.connect(t, settings...)
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
		idle := w.connect(t)
		w.Exec(t, "alter role postgres in database "+w.Name+" set wirefence.token = 'orders=34'")
		w.connect(t).accepted()
		w.Exec(t, "alter role postgres in database "+w.Name+" set wirefence.token = '"+stale+"'")
		w.connect(t).refused()
		w.Exec(t, "alter role postgres in database "+w.Name+" reset wirefence.token")
		w.Exec(t, "alter database "+w.Name+" set wirefence.token = '"+stale+"'")
		w.connect(t).refused()
		idle.accepted()
	})
}

func TestComments(t *testing.T) {
	deep := "select " + strings.Repeat("(", 300) + "1" + strings.Repeat(")", 300) + "; "
	cases := []struct{ sql, want string }{
		// Where it may stand.
		{"/*wirefence.token='orders=33'*/ insert into jobs values (33)", "WF001"},
		{"/*wirefence.token='orders=34'*/ insert into jobs values (34)", ""},
		{"insert /*wirefence.token='orders=33'*/ into jobs values (33)", "WF001"},
		{"insert into jobs values (33) /*wirefence.token='orders=33'*/", "WF001"},
		{"insert into jobs values (33); /*wirefence.token='orders=33'*/", "WF001"},
		{"insert into jobs values (33) -- wirefence.token='orders=33'", "WF001"},
		{"insert into jobs values (33) -- the end\n/*wirefence.token='orders=33'*/", "WF001"}, // fence.Comment
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
		{"insert into jobs values (34) /*wirefence.token='orders=34,bills=7'*/", ""},
		// Names.
		{"insert into jobs values (33) /*wirefence.token='caf%C3%A9=1'*/", "WF001"},
		{"insert into jobs values (34) /*wirefence.token='caf%c3%a9=2'*/", ""},
		// Malformed.
		{"insert into jobs values (33) /*wirefence.token=''*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token=orders=33*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token=\"orders=33\"*/", "WF004"},
		{"insert into jobs values (33) /*wirefence.token='orders=33*/", "WF004"},
		// Sources: bills' tokens come from etcd.
		{"insert into jobs values (34) /*wirefence.token='bills=7@etcd'*/", ""},
		{"insert into jobs values (33) /*wirefence.token='bills=7@redis'*/", "WF003"},
		{"/*wirefence.token='bills=7@redis'*/ insert into jobs values (33) /*wirefence.token='bills=7@etcd'*/", "WF004"},
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
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		if _, err := fence.Seal(t.Context(), w.Admin, fence.Grant{Resource: "bills", Token: 7, Source: "etcd"}); err != nil {
			t.Fatal(err)
		}
		w.Seal(t, "café", 2)
		c := w.connect(t)
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
		w.wantRowsOf(t, 33, 0)
	})
}

func TestBareToken(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		if _, err := fence.Seal(t.Context(), w.Admin, fence.Grant{Resource: "orders of today", Token: 34, Source: "etcd"}); err != nil {
			t.Fatal(err)
		}
		own := w.own(t, proxy.Options{Resource: "orders of today"})
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
		w.connect(t, "wirefence.token", "34").Fails(insert, "WF004")
	})
}
