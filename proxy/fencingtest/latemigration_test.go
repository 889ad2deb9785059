package fencingtest

import (
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// A pool's sessions may be older than the schema. Until that is there nothing that
// carries a fence is written, unless a function has set it, of which there is nothing
// to ask; then they are checked like others, from the next login on.
func TestSessionsFromBeforeTheMigration(t *testing.T) {
	t.Parallel()
	const insert = "insert into jobs values (33)"
	const comment = insert + " /*wirefence.token='orders=33'*/"
	db := bareDatabase(t, 18)
	db.Exec(t, `create table jobs (token int);
		create function enter(fence text) returns text language sql as $$ select set_config('wirefence.token', fence, false) $$`)
	type sessions struct {
		protocol
		carries, enters, comments *client
	}
	var all []sessions
	for _, by := range protocols {
		s := sessions{by, db.connect(t, "options", "-c wirefence.token=orders=33"), db.connect(t), db.connect(t)}
		all = append(all, s)
		stack.WantState(t, by.run(s.comments, insert), "", by.name) // carries nothing
		stack.WantState(t, by.run(s.enters, "select enter('orders=33')"), "", by.name)
		stack.WantState(t, by.run(s.carries, insert), "WF006", by.name)
		stack.WantState(t, by.run(s.comments, comment), "WF006", by.name)
	}
	if err := migrations.Apply(t.Context(), db.Admin, func(string) {}); err != nil {
		t.Fatal(err)
	}
	db.Seal(t, "orders", 34)
	db.connect(t)
	for _, s := range all {
		stack.WantState(t, s.run(s.comments, comment), "WF001", s.name)
		stack.WantState(t, s.run(s.enters, insert), "WF001", s.name)
		stack.WantState(t, s.run(s.carries, insert), "WF001", s.name)
		stack.WantState(t, s.run(s.carries, "set wirefence.token = 'orders=34'"), "", s.name)
		stack.WantState(t, s.run(s.carries, insert), "", s.name)
	}
	db.wantRows(t, 2*len(protocols))
}
