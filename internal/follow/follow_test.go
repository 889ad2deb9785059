package follow

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

var suite stack.Suite

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

// A follower polls back to the begin of transactions that were open at its last poll.
func TestAFollowerLooksBackToOpenTransactions(t *testing.T) {
	t.Parallel()
	db := suite.Database(t, 0)
	url := db.URL(db.Name)
	conn, open := stack.Connect(t, url), stack.Connect(t, url)
	var f Follower
	since := func() time.Time {
		t.Helper()
		at, err := f.Since(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	since()
	f.last = f.last.Add(-2 * time.Hour) // as if that look had been then
	twoHoursAgo := f.last
	if _, err := open.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if at := since(); at.After(twoHoursAgo) {
			t.Errorf("looks back to %v, with a transaction that may have begun at %v", at, twoHoursAgo)
		}
	}
	if _, err := open.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	// Others' transactions count as well.
	stack.Eventually(t, "the follower looks back less far", func() bool { return since().After(twoHoursAgo.Add(time.Hour)) })
}

// Each event and each change of a resource is seen once, also if it commits late.
func TestEachIsSeenOnce(t *testing.T) {
	t.Parallel()
	db := suite.Database(t, 0)
	url := db.URL(db.Name)
	conn := stack.Connect(t, url)
	f := Follower{Filter: fence.EventFilter{Limit: 100}}
	look := func() (seen []string) {
		t.Helper()
		since, err := f.Since(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		events, err := f.Events(t.Context(), conn, since)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := f.Resources(t.Context(), conn, since, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			seen = append(seen, fmt.Sprint(e.Kind, " ", e.Resource, " ", e.Token))
		}
		for _, c := range changes {
			seen = append(seen, fmt.Sprint(c.Resource, " ", c.Token, " ", c.Holder, " ", c.Mode, " ", c.GrantedAt.IsZero()))
		}
		return seen
	}
	expect := func(want ...string) {
		t.Helper()
		if got := look(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("seen %q, want %q", got, want)
		}
	}
	expect()
	late := stack.Connect(t, url)
	if _, err := late.Exec(t.Context(), "BEGIN; SELECT wirefence.seal('late', 7, 'c/1')"); err != nil {
		t.Fatal(err)
	}
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 1, 'a/1')", "SELECT wirefence.seal('prêt', 2, 'b/1')")
	expect("handoff orders 1", "handoff prêt 2", "orders 1 a/1 enforce false", "prêt 2 b/1 enforce false")
	expect()
	if _, err := late.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	expect("handoff late 7", "late 7 c/1 enforce false")
	stack.Exec(t, url, "SELECT wirefence.revoke('orders')", "SELECT wirefence.set_resource('late', 'why', mode => 'shadow')")
	expect("revocation orders 2", "orders 2  enforce true", "late 7 c/1 shadow false")
	expect()
}
