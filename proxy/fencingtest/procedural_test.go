package fencingtest

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// A procedure that commits needs a hold.
func TestCommitInsideAProcedure(t *testing.T) {
	const block = "do $$ begin insert into jobs values (1); commit; insert into jobs values (2); end $$"
	onBoth(t, everyVersion, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		rows := 0
		for token, inBlock := range map[string]string{"orders=34": "2D000", stale: "WF001"} {
			outside := map[string]string{stale: "WF001"}[token]
			if outside == "" && !db.busy {
				outside = "WF006"
			}
			for _, comment := range []bool{false, true} {
				c := db.connect(t)
				behind := ""
				if comment {
					behind = " /*wirefence.token='" + token + "'*/"
				} else {
					c.Must("set wirefence.token = '" + token + "'")
				}
				for _, p := range protocols {
					for _, sql := range []string{"call committing()", block} {
						stack.WantState(t, p.run(c, sql+behind), outside, sql, p.name, token, comment)
						if c.TxStatus() != 'I' {
							t.Errorf("%s, %s: transaction status %c", sql, p.name, c.TxStatus())
						}
						if outside == "" {
							rows += 2
						}
						c.Must("begin")
						stack.WantState(t, p.run(c, sql+behind), inBlock, sql, p.name, token, comment)
						c.Must("rollback")
						db.wantRows(t, rows)
					}
				}
			}
		}
		c := db.connect(t)
		for i, p := range protocols {
			stack.WantState(t, p.run(c, "call committing()"), "", "unfenced", p.name)
			db.wantRows(t, rows+2*(i+1))
		}
	})
}

// batches hold a CALL; "" is a Sync.
var batches = [][]string{
	{"call proc()", ""},
	{"call proc()", "call proc()", "insert into jobs values (1)", ""},
	{"insert into jobs values (1)", "call proc()", ""},
	{"call proc()", "select 1/0", ""},
	{"call committing()", "", "insert into jobs values (1)", ""},
	{"call committing()", "insert into jobs values (1)", "", "call proc()", ""},
	{"begin", "call proc()", ""},
	{"begin", "", "call proc()", ""},
	{"begin", "call proc()", "", "rollback", ""},
	{"begin", "insert into jobs values (1)", "commit", "call proc()", ""},
	{"begin", "insert into jobs values (1)", "commit and chain", "call proc()", ""},
	{"begin", "insert into jobs values (1)", "commit and chain", "call proc()", "", "rollback", ""},
	{"begin", "insert into jobs values (1)", "rollback and chain", "call proc()", "", "rollback", ""},
	{"call proc()", "begin", "insert into jobs values (1)", "", "rollback", ""},
	{"call proc()", "commit", "insert into jobs values (1)", ""},
	{"call proc()", "select 1/0", "commit", ""},
	{"call committing()", "rollback", "", "insert into jobs values (1)", ""},
	{"call proc()", "select 1/0", "begin", "insert into jobs values (1)", "commit", ""},
	{"call proc()", "commit", "select 1/0", ""},
	{"call proc()", "commit", "begin", "select 1/0", ""},
	{"call proc()", "commit", "start transaction", "insert into jobs values (1)", ""},
}

// played is what a client sees of a batch, and what that leaves.
type played struct {
	states []string
	status byte
	rows   int
}

func (db *database) playsBatch(t *testing.T, c *client, batch []string) (p played) {
	t.Helper()
	syncs := 0
	for _, sql := range batch {
		if sql == "" {
			syncs++
		}
	}
	p.states = stack.States(c.Exchange(syncs, pipelined(batch...)...))
	p.status = c.TxStatus()
	_ = c.Simple("commit")
	p.rows = db.rows(t)
	db.Exec(t, "truncate jobs")
	c.Close()
	return p
}

// Under a hold a batch with a CALL does what it does direct. What has no hold may be
// refused, and of a stale session nothing is left.
func TestCallInPipelines(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		for _, batch := range batches {
			want := db.playsBatch(t, db.connectTo(t, db.Addr()), batch)
			c := db.connect(t, "wirefence.token", "orders=34")
			if db.busy {
				db.warm(c, "")
			}
			got := db.playsBatch(t, c, batch)
			same := slices.Equal(got.states, want.states) && got.status == want.status && got.rows == want.rows
			if !same && (db.busy || !slices.Contains(got.states, "WF006")) {
				t.Errorf("%q: got %v, direct %v", batch, got, want)
			}
			c = db.connect(t, "wirefence.token", stale)
			got = db.playsBatch(t, c, batch)
			if got.rows != 0 || len(got.states) == 0 || got.states[0] != "WF001" && got.states[0] != "WF006" {
				t.Errorf("%q, stale: %v", batch, got)
			}
			if free := db.playsBatch(t, db.connect(t), batch); !slices.Equal(free.states, want.states) || free.status != want.status || free.rows != want.rows {
				t.Errorf("%q, unfenced: %v, direct %v", batch, free, want)
			}
		}
	})
}

// What was asked ahead of a batch is about the fence of its first message. Behind one that
// carries nothing, a DO with a comment is refused: a stale one at its Parse, which a check
// goes ahead of, and a current one at its Execute.
func TestCommentBehindACallThatCarriesNothing(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		for token, state := range map[string]string{stale: "WF001", "orders=34": "WF006"} {
			c := db.connect(t)
			c.Must("set wirefence.token = ''")
			all := c.Exchange(1, slices.Concat(stack.Unnamed("do 'begin end'"),
				stack.Unnamed("do $$ begin "+insert+"; end $$ /*wirefence.token='"+token+"'*/"), []pgproto3.FrontendMessage{&pgproto3.Sync{}})...)
			stack.WantState(t, stack.Err(all), state, token)
			db.wantRows(t, 0)
		}
	})
}

// Commands that can't share a transaction with a check run under a hold. What outlives
// the session is refused where a fence is carried.
func TestWhatNoCheckCanCover(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		db.Exec(t, "create table parts (a int) partition by list (a); create table part partition of parts for values in (1)")
		made := db.Name + "_made"
		// Each is undone by a later one.
		commands := []string{
			"create index concurrently i on jobs (token)", "reindex index concurrently i", "drop index concurrently i",
			"create database " + made, "drop database " + made, "alter table parts detach partition part concurrently",
			"vacuum cell", "vacuum (full, analyze) cell", "reindex table concurrently cell", "reindex table cell", "cluster",
		}
		for _, p := range protocols[:2] {
			for _, test := range []struct{ variable, comment, want string }{
				{stale, "", "WF001"}, {"", stale, "WF001"}, {"orders=34", "", ""}, {"", "orders=34", ""}, {"", "", ""},
			} {
				c, behind, want := db.connect(t, "wirefence.token", test.variable), "", test.want
				if test.comment != "" {
					behind = " /*wirefence.token='" + test.comment + "'*/"
				}
				if !db.busy && want == "" && test.variable+test.comment != "" {
					want = "WF006"
				}
				for _, sql := range commands {
					stack.WantState(t, p.run(c, sql+behind), want, p.name, sql, test)
				}
				if want == "" {
					db.Exec(t, "alter table parts attach partition part for values in (1)")
				}
				stack.WantState(t, c.Simple("select 1"+behind), test.want, "the connection lives on", test)
				before := db.rows(t)
				for _, sql := range []string{"create index concurrently i on jobs (token)", "vacuum cell"} {
					if got := stack.State(c.Simple("insert into jobs values (1); " + sql + behind)); got == "" {
						t.Errorf("%v: %s in a message of several", test, sql)
					}
				}
				db.wantRows(t, before)
				c.Close()
			}
		}
	})
}

func TestTwoPhaseCommit(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, db *database) {
		db.Seal(t, "orders", 34)
		fenced, commented, free := db.connect(t, "wirefence.token", "orders=34"), db.begins(t), db.connect(t)
		for _, p := range protocols[:2] {
			name := "'" + db.Name + p.name + "'"
			fenced.Must("begin", "insert into jobs values (34)")
			stack.WantState(t, p.run(fenced, "prepare transaction "+name), "WF006", p.name)
			fenced.Must("rollback")
			commented.Must("begin", "insert into jobs values (34)"+behindGood)
			stack.WantState(t, p.run(commented, "prepare transaction "+name), "WF006", p.name)
			commented.Must("rollback")
			free.Must("begin", "insert into jobs values (0)")
			stack.WantState(t, p.run(free, "prepare transaction "+name), "", p.name)
			stack.WantState(t, p.run(fenced, "commit prepared "+name), "WF006", p.name)
			stack.WantState(t, p.run(free, "commit prepared "+name), "", p.name)
			free.Must("begin", "insert into jobs values (0)", "prepare transaction "+name)
			stack.WantState(t, p.run(fenced, "rollback prepared "+name), "", p.name)
			stack.WantState(t, p.run(fenced, "insert into jobs values (34)"), "", "the connection lives on")
		}
		db.wantRows(t, 4)
	})
}
