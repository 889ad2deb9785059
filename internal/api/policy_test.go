package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

func (w *world) patch(t *testing.T, path, body string) answer {
	t.Helper()
	return w.send(t, request{method: http.MethodPatch, path: path, body: body})
}

func TestAResourceIsDeclaredAndChanged(t *testing.T) {
	t.Parallel()
	_, token := tokenFile(t, namedTokens)
	w := serve(t, "postgres", func(o *Options) { o.Token = token })
	w.token = operateSecret
	declare := `{"reason":"a new service","source":"etcd-revision","preempt_after_seconds":null,"reuse":"once"}`
	for _, made := range []bool{true, false} {
		if done := w.post(t, path("jobs", "declare"), declare).want(200, ""); done.fields["declared"] != made {
			t.Errorf("declared: %s", done.text)
		}
	}
	if refused := w.post(t, path("jobs", "declare"), `{"reason":"again","reuse":"allow"}`).want(409, "already-declared"); !strings.Contains(refused.string("detail"), "reuse") {
		t.Errorf("it isn't said what differs: %s", refused.text)
	}
	w.send(t, request{method: "POST", path: path("others", "declare"), body: `{"reason":"why","must_name_source":true}`, beyond: true}).want(400, "invalid-request")
	shown := w.get(t, path("jobs", "")).want(200, "")
	if shown.number("token") != 0 || shown.fields["preempt_after_seconds"] != nil || shown.string("source") != "etcd-revision" || shown.string("reuse") != "once" || shown.string("advance") != "grant" {
		t.Errorf("shown: %s", shown.text)
	}
	set := w.patch(t, path("jobs", ""), `{"reason":"they are slow","preempt_after_seconds":1.5,"mode":"shadow","failover":"trust"}`).want(200, "")
	if settings := fmt.Sprint(set.fields["settings"]); settings != "map[failover:[reacquire trust] mode:[enforce shadow] preempt_after:[<nil> 00:00:01.5]]" {
		t.Errorf("set: %s", settings)
	}
	// A number that JavaScript can't represent.
	w.patch(t, path("jobs", ""), `{"reason":"moved","source":"redis","last_token":"9007199254740993"}`).want(200, "")
	w.patch(t, path("jobs", ""), `{"reason":"moved on","last_token":9007199254740995,"must_name_source":false}`).want(200, "")
	shown = w.get(t, path("jobs", "")).want(200, "")
	if shown.string("token_text") != "9007199254740995" || shown.number("preempt_after_seconds") != 1.5 || shown.string("mode") != "shadow" || shown.fields["must_name_source"] != false {
		t.Errorf("shown: %s", shown.text)
	}
	var changes []struct{ By, Application, Reason string }
	text, _ := json.Marshal(shown.fields["changes"])
	if err := json.Unmarshal(text, &changes); err != nil || fmt.Sprint(changes) !=
		"[{issuer wirefence-api/carol a new service} {issuer wirefence-api/carol they are slow} {issuer wirefence-api/carol moved} {issuer wirefence-api/carol moved on}]" {
		t.Errorf("%v: changes %s", err, text)
	}
	if events := eventFields(w.get(t, "/v1/history?kind=revocation").want(200, ""), "token_text", "reason"); fmt.Sprint(events) != "[9007199254740993 moved 9007199254740995 moved on]" {
		t.Errorf("the history has %q", events)
	}
	if log := w.log.String(); !strings.Contains(log, "policy changed over HTTP") || !strings.Contains(log, "resource declared over HTTP") {
		t.Errorf("the log:\n%s", log)
	}
	w.patch(t, path("nothing", ""), `{"reason":"why","mode":"shadow"}`).want(404, "no-such-resource")
}

// The list shows the holders of leases if asked to, and is served without them if the store is
// down.
func TestLeasesAreListed(t *testing.T) {
	own := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	onEach(t, nil, func(t *testing.T, w *world) {
		held := fresh(t)
		w.post(t, path(held, "acquire"), `{"holder":"worker-a","ttl_seconds":600}`).want(200, "")
		for i := range 20 {
			if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: fence.Resource(fmt.Sprintf("free-%d", i)), Token: 1, Holder: "b/1"}); err != nil {
				t.Fatal(err)
			}
		}
		for query, want := range map[string]string{"": "map[<nil>:21]", "?leases=false": "map[<nil>:21]", "?leases=true": "map[false:20 true:1]"} {
			counts := map[any]int{}
			for _, r := range w.get(t, "/v1/resources"+query).want(200, "").fields["resources"].([]any) {
				resource := r.(map[string]any)
				counts[resource["held"]]++
				if resource["held"] == true && (resource["resource"] != held || resource["lease"] == nil) {
					t.Errorf("held: %v", resource)
				}
			}
			if fmt.Sprint(counts) != want {
				t.Errorf("%s: %v, want %s", query, counts, want)
			}
		}
	})
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		leases := openRedis(t, own.URL())
		w := serve(t, "postgres", func(o *Options) { o.Store, o.Unsealed = leases, true })
		own.Kill()
		if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: "orders", Token: 1, Holder: "b/1"}); err != nil {
			t.Fatal(err)
		}
		listed := w.get(t, "/v1/resources?leases=true").want(200, "").fields["resources"].([]any)
		if len(listed) != 1 || listed[0].(map[string]any)["held"] != nil {
			t.Errorf("listed: %v", listed)
		}
	})
}
