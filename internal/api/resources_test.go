package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

func TestRevokeLocksTheHolderOut(t *testing.T) {
	onEach(t, withTokens(t), func(t *testing.T, w *world) {
		w.token = operateSecret
		name := fresh(t)
		w.post(t, path(name, "revoke"), `{}`).want(404, "no-such-resource")
		granted := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":600}`).want(200, "")
		holder := stack.ConnectAs(t, w.database, "writer-"+name)
		if _, err := holder.Exec(t.Context(), "BEGIN"); err != nil {
			t.Fatal(err)
		}
		if err := checkFence(t, holder, granted); err != nil {
			t.Fatal(err)
		}
		gone := w.post(t, path(name, "revoke"), `{"reason":"it is stuck"}`).want(200, "")
		if ended, _ := gone.fields["ended"].([]any); len(ended) != 1 || ended[0].(map[string]any)["pid"] != float64(holder.PgConn().PID()) {
			t.Errorf("ended %v", gone.fields["ended"])
		}
		hit, _ := gone.fields["locked_out"].(map[string]any)
		if gone.number("token") != granted.number("token")+1 || gone.fields["lease_freed"] != true ||
			hit["holder"] != lockclient.HolderOf(granted.string("grant_id")) || hit["token"] != granted.number("token") {
			t.Errorf("revoked: %s", gone.text)
		}
		if err := checkFence(t, w.admin(t), granted); !fence.IsStale(err) {
			t.Errorf("the revoked token: %v", err)
		}
		if lost := w.post(t, path(name, "renew"), `{"grant_id":"`+granted.string("grant_id")+`"}`).want(409, "lease-lost"); lost.string("cause") != "revoked" {
			t.Errorf("revoked, and told: %s", lost.text)
		}
		if next := w.post(t, path(name, "acquire"), `{"holder":"worker-b"}`).want(200, ""); next.number("token") <= gone.number("token") {
			t.Errorf("the next: %s", next.text)
		}
		if log := w.log.String(); !strings.Contains(log, "resource revoked over HTTP") || !strings.Contains(log, `reason="it is stuck"`) {
			t.Errorf("the log:\n%s", log)
		}
		// A resource without a holder can be revoked, too.
		w.post(t, path(name, "revoke"), `{}`).want(200, "")
		if again := w.post(t, path(name, "revoke"), `{}`).want(200, ""); again.fields["locked_out"] != nil || again.fields["lease_freed"] != false {
			t.Errorf("revoked twice: %s", again.text)
		}
	})
}

// A lease over HTTP is sealed in further databases, too. A revocation that doesn't reach one of them
// is no success, and names it.
func TestLeasesOverHTTPInSeveralDatabases(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		db := suite.Database(t, 0)
		further := stack.Started(pgxpool.New(t.Context(), db.URLFor("issuer", db.Name))).EndWith(t)
		w := serve(t, backend, func(o *Options) {
			withTokens(t)(o)
			sealer := lockclient.PostgresSealer{Querier: further, Server: "further.internal"}
			o.Sealers, o.Further = append(o.Sealers, sealer), []lockclient.PostgresSealer{sealer}
		})
		w.token = operateSecret
		name := fresh(t)
		granted := w.post(t, path(name, "acquire"), `{"holder":"worker-a"}`).want(200, "")
		if last, err := fence.LastGrant(t.Context(), further, fence.Resource(name)); err != nil || last.Holder != lockclient.HolderOf(granted.string("grant_id")) {
			t.Errorf("%+v, %v", last, err)
		}
		w.post(t, path(name, "revoke"), `{}`).want(200, "")
		if last, err := fence.LastGrant(t.Context(), further, fence.Resource(name)); err != nil || last.Holder != "" {
			t.Errorf("%+v, %v", last, err)
		}
		further.Close()
		if failed := w.post(t, path(name, "revoke"), `{}`).want(503, "unavailable"); !strings.Contains(failed.text, "not revoked in every database: PostgreSQL at further.internal") {
			t.Error(failed.text)
		}
		if failed := w.post(t, path(name, "acquire"), `{"holder":"worker-b"}`).want(503, "unavailable"); !strings.Contains(failed.text, "PostgreSQL at further.internal") {
			t.Error(failed.text)
		}
	}
}

// A holder that was revoked outside this API gets lease-lost when it renews. From then on the
// resource is free.
func TestARenewalNoticesARevocation(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		granted := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":600}`).want(200, "")
		renewal := `{"grant_id":"` + granted.string("grant_id") + `"}`
		w.post(t, path(name, "renew"), renewal).want(200, "")
		if _, err := fence.Revoke(t.Context(), w.pool, fence.Resource(name)); err != nil {
			t.Fatal(err)
		}
		if lost := w.post(t, path(name, "renew"), renewal).want(409, "lease-lost"); lost.string("cause") != "revoked" {
			t.Errorf("revoked, and told: %s", lost.text)
		}
		w.post(t, path(name, "acquire"), `{"holder":"worker-b"}`).want(200, "")
	})
}

// A token that was granted past the lease store, as after a split brain, ends the
// lease as well.
func TestARenewalNoticesASuccessor(t *testing.T) {
	t.Parallel()
	w := serve(t, "redis", nil)
	name := fresh(t)
	granted := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":600}`).want(200, "")
	if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: fence.Resource(name), Token: 1000, Holder: "worker-b/1"}); err != nil {
		t.Fatal(err)
	}
	lost := w.post(t, path(name, "renew"), `{"grant_id":"`+granted.string("grant_id")+`"}`).want(409, "lease-lost")
	if !strings.Contains(lost.string("detail"), "worker-b/1") || lost.string("cause") != "lost" {
		t.Errorf("it isn't said by whom: %s", lost.text)
	}
}

func TestAResourceIsShown(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		w.get(t, path(name, "")).want(404, "no-such-resource")
		granted := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":600}`).want(200, "")
		id := granted.string("grant_id")
		holder := lockclient.HolderOf(id)
		shown := w.get(t, path(name, "")).want(200, "")
		lease, _ := shown.fields["lease"].(map[string]any)
		left, _ := lease["held_for_seconds"].(float64)
		if shown.string("resource") != name || shown.number("token") != granted.number("token") || shown.string("holder") != holder || shown.string("since") == "" ||
			shown.string("advance") != "grant" || shown.string("reuse") != "allow" || shown.number("preempt_after_seconds") != 5 || shown.number("writers") != 0 ||
			lease["holder"] != holder || left <= 500 || left > 600 || shown.fields["held"] != true || lease["expires_at"] == nil {
			t.Errorf("shown: %s", shown.text)
		}
		w.post(t, path(name, "release"), `{"grant_id":"`+id+`"}`).want(200, "")
		if shown := w.get(t, path(name, "")).want(200, ""); shown.fields["lease"] != nil || shown.fields["held"] != false {
			t.Errorf("after the release: %s", shown.text)
		}
	})
}

func TestResourcesAreListedInPages(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	if empty := w.get(t, "/v1/resources").want(200, ""); strings.TrimSpace(empty.text) != `{"resources":[]}` {
		t.Errorf("none: %s", empty.text)
	}
	names := []string{"B", "a", "a b/c", "z", "ä"} // in the order of bytes
	for _, name := range names {
		w.post(t, path(name, "acquire"), `{"holder":"worker-a"}`).want(200, "")
	}
	var listed []string
	pages := 0
	for next := "/v1/resources?limit=2"; next != ""; pages++ {
		page := w.get(t, next).want(200, "")
		for _, r := range page.fields["resources"].([]any) {
			listed = append(listed, r.(map[string]any)["resource"].(string))
		}
		if next = ""; page.fields["next"] != nil {
			next = "/v1/resources?limit=2&after=" + strings.ReplaceAll(page.string("next"), " ", "%20")
		}
	}
	if fmt.Sprint(listed) != fmt.Sprint(names) || pages != 3 {
		t.Errorf("%d pages, %q", pages, listed)
	}
	if all := w.get(t, "/v1/resources").want(200, ""); len(all.fields["resources"].([]any)) != len(names) || all.fields["next"] != nil {
		t.Errorf("all: %s", all.text)
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "after=", "leases=maybe"} {
		w.get(t, "/v1/resources?"+query).want(400, "invalid-request")
	}
	for _, query := range []string{"limit=1&limit=2", "more=1", "leases=", "after=" + strings.Repeat("%C3%A4", 128), "%zz=1"} {
		w.send(t, request{method: "GET", path: "/v1/resources?" + query, beyond: true}).want(400, "invalid-request")
	}
}

// Every valid name of a resource can be in a path.
func TestNamesInPaths(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		for _, name := range []string{
			"orders", "report/acme/17", "a b+c&d=e?f#g", "%2F", "ä€𝄞", "{resource}", "a//b", "/", "..a", "quote'\"\\", "line\nfeed", "acquire",
			strings.Repeat("x", 255),
		} {
			name = name[:min(len(name), 240)] + "@" + t.Name()[:8] // Redis is shared
			granted := w.post(t, path(name, "acquire"), `{"holder":"worker-a"}`).want(200, "")
			if granted.string("resource") != name {
				t.Errorf("%q became %q", name, granted.string("resource"))
			}
			if shown := w.get(t, path(name, "")).want(200, ""); shown.string("resource") != name {
				t.Errorf("%q is shown as %q", name, shown.string("resource"))
			}
			w.post(t, path(name, "release"), `{"grant_id":"`+granted.string("grant_id")+`"}`).want(200, "")
		}
	})
}
