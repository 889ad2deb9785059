package fencingtest

import (
	"testing"
	"time"

	"github.com/wirefence/wirefence/migrations"
)

// A pool's sessions may be older than the schema. Until that is there nothing that
// carries a fence is written, however it came to; then they are checked like others.
func TestSessionsFromBeforeTheMigration(t *testing.T) {
	t.Parallel()
	const insert = "insert into jobs values (33)"
	const comment = insert + " /*wirefence.token='orders=33'*/"
	db := newDatabase(t, 18, "template0")
	db.exec(t, `create table jobs (token int);
		create function enter(fence text) returns text language sql as $$ select set_config('wirefence.token', fence, false) $$`)
	type sessions struct {
		protocol
		carries, enters, comments *client
	}
	var all []sessions
	for _, by := range protocols {
		s := sessions{by, db.connect(t, "options", "-c wirefence.token=orders=33"), db.connect(t), db.connect(t)}
		all = append(all, s)
		wantCode(t, by.run(s.comments, insert), "", by.name) // carries nothing
		wantCode(t, by.run(s.enters, "select enter('orders=33')"), "", by.name)
		wantCode(t, by.run(s.carries, insert), "WF006", by.name)
		wantCode(t, by.run(s.enters, insert), "WF006", by.name)
		wantCode(t, by.run(s.comments, comment), "WF006", by.name)
	}
	if err := migrations.Apply(t.Context(), db.admin, func(string) {}); err != nil {
		t.Fatal(err)
	}
	db.seal(t, "orders", 34)
	for _, s := range all {
		got := "WF006"
		// The proxy looks ahead of a client's message, when it is time: there is nothing to wait for.
		for end := time.Now().Add(patience); got == "WF006" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			got = code(s.run(s.comments, comment))
		}
		if got != "WF001" {
			t.Errorf("%s: behind the migration a stale token gets %q", s.name, got)
		}
		wantCode(t, s.run(s.enters, insert), "WF001", s.name)
		wantCode(t, s.run(s.carries, insert), "WF001", s.name)
		wantCode(t, s.run(s.carries, "set wirefence.token = 'orders=34'"), "", s.name)
		wantCode(t, s.run(s.carries, insert), "", s.name)
	}
	db.wantRows(t, 2*len(protocols))
}
