package fencingtest

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// Sessions of a pool may be older than the schema. Without the schema, writes with a fence are
// refused. From the first login after the migration on, all of them are checked.
func TestSessionsFromBeforeTheMigration(t *testing.T) {
	t.Parallel()
	w := bareWorld(t, 18)
	w.Exec(t, "create table jobs (token int)")
	type sessions struct {
		protocol
		carries, comments *client
	}
	var all []sessions
	for _, by := range protocols {
		s := sessions{by, w.fenced(t, stale), w.connect(t)}
		all = append(all, s)
		stack.WantState(t, by.run(s.comments, insert), "", by.name) // carries nothing
		stack.WantState(t, by.run(s.carries, insert), "WF006", by.name)
		stack.WantState(t, by.run(s.comments, insert+behindStale), "WF006", by.name)
	}
	if err := migrations.Apply(t.Context(), w.Admin, func(string) {}); err != nil {
		t.Fatal(err)
	}
	w.Seal(t, "orders", 34)
	w.connect(t)
	for _, s := range all {
		stack.WantState(t, s.run(s.comments, insert+behindStale), "WF001", s.name)
		stack.WantState(t, s.run(s.carries, insert), "WF001", s.name)
		stack.WantState(t, s.run(s.carries, "set wirefence.token = 'orders=34'"), "", s.name)
		stack.WantState(t, s.run(s.carries, insert), "", s.name)
	}
	w.wantRows(t, 2*len(protocols))
}

// The remains of a failed migration count as no schema: clients without a fence are served,
// others get WF006.
func TestASchemaThatIsNotComplete(t *testing.T) {
	w := bareWorld(t, 18)
	w.Exec(t, objects, `create schema wirefence;
		create function wirefence.check(text, text, boolean, boolean) returns text language sql return null::text`)
	for _, by := range protocols {
		c := w.connect(t)
		stack.WantState(t, by.run(c, insert), "", by.name)
		stack.WantState(t, by.run(c, insert+" /*wirefence.token='orders=34'*/"), "WF006", by.name)
	}
}

// What answers as a router with shards does is several databases: a check may be answered by
// another one than the write behind it, so no fence counts there. Others are served.
func TestARouterThatShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.Exec(t, "alter database "+w.Name+" set pgdog.shards = '2'")
	w = w.own(t, proxy.Options{DatabaseURL: w.URL(w.Name)})
	fenced, plain := w.fenced(t, "orders=34"), w.connect(t)
	stack.Eventually(t, "the proxy asks for a router", func() bool { return stack.State(fenced.Simple(insert)) == "WF006" })
	for _, by := range protocols {
		var refusal *pgconn.PgError
		if err := by.run(fenced, insert); !errors.As(err, &refusal) || refusal.Code != "WF006" || !strings.Contains(refusal.Detail, "several databases") {
			t.Errorf("%s: %#v", by.name, err)
		}
		stack.WantState(t, by.run(plain, insert), "", by.name)
		stack.WantState(t, by.run(plain, insert+behindStale), "WF006", by.name)
	}
}
