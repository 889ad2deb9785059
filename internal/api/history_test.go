package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// eventFields returns some fields of each event of an answer.
func eventFields(a answer, fields ...string) (all []string) {
	events, _ := a.fields["events"].([]any)
	for _, event := range events {
		text := ""
		for _, field := range fields {
			text += fmt.Sprint(event.(map[string]any)[field], " ")
		}
		all = append(all, text[:len(text)-1])
	}
	return all
}

func TestTheHistoryIsTold(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	if empty := w.get(t, "/v1/history").want(200, ""); fmt.Sprint(empty.fields["events"]) != "[]" || empty.number("unrecorded_refusals") != 0 || empty.number("dropped") != 0 {
		t.Errorf("nothing has happened: %s", empty.text)
	}
	for token, holder := range []string{"worker-a/1", "worker-b/1", "worker-c/1"} {
		if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: "orders", Token: fence.Token(token + 33), Holder: holder}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := lockclient.Revoke(t.Context(), []lockclient.PostgresSealer{{Querier: w.pool}}, nil, "lines/1", ""); !fence.IsUndeclared(err) {
		t.Fatal(err)
	}
	if _, err := fence.Seal(t.Context(), w.pool, fence.Grant{Resource: "lines/1", Token: 1, Holder: "worker-a/2"}); err != nil {
		t.Fatal(err)
	}
	refusal := fence.SeenRefusal{Event: fence.Event{Kind: fence.RefusalEvent, State: fence.StaleToken, Resource: "orders", Token: 33, Login: "app", Address: "127.0.0.1", Count: 3}, LastAge: time.Millisecond}
	if err := fence.RecordRefusals(t.Context(), w.pool, "proxy-1", []fence.SeenRefusal{refusal}); err != nil {
		t.Fatal(err)
	}
	fields := []string{"kind", "resource", "token", "current_token", "holder", "count"}
	orders := []string{
		"handoff orders 33 <nil> worker-a/1 1", "handoff orders 34 33 worker-b/1 1", "handoff orders 35 34 worker-c/1 1",
	}
	refused := "refusal orders 33 <nil> <nil> 3"
	for query, want := range map[string][]string{
		"":                                      append(orders[:3:3], "handoff lines/1 1 <nil> worker-a/2 1", refused),
		"?resource=orders":                      append(orders[:3:3], refused),
		"?resource=lines%2F1":                   {"handoff lines/1 1 <nil> worker-a/2 1"},
		"?kind=refusal":                         {refused},
		"?kind=revocation,shadow":               nil,
		"?limit=1":                              {refused},
		"?kind=handoff&resource=orders&limit=2": orders[1:],
		"?since=" + time.Now().Add(time.Hour).UTC().Format(time.RFC3339): nil,
	} {
		if got := eventFields(w.get(t, "/v1/history"+query).want(200, ""), fields...); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "resource=", "since=yesterday", "since=", "kind=", "kind=crash", "kind=refusal,"} {
		w.get(t, "/v1/history?"+query).want(400, "invalid-request")
	}
	if r := w.get(t, "/v1/history?resource=").want(400, "invalid-request"); !strings.Contains(r.text, "the parameter resource: a resource name is empty") {
		t.Errorf("got %s", r.text)
	}
	for _, query := range []string{"limit=1&limit=2", "after=orders", "%zz=1", "since=2006-01-02T15:04:05"} {
		w.send(t, request{method: "GET", path: "/v1/history?" + query, beyond: true}).want(400, "invalid-request")
	}
	// No proxy has been there for long.
	if _, err := w.admin(t).Exec(t.Context(), "UPDATE wirefence.history_bounds SET marked_at = NULL; SELECT nextval('wirefence.refusals'), nextval('wirefence.history_dropped')"); err != nil {
		t.Fatal(err)
	}
	if all := w.get(t, "/v1/history").want(200, ""); all.number("unrecorded_refusals") != 1 || all.number("dropped") != 1 {
		t.Errorf("the answer lacks the number of unrecorded events: %s", all.text)
	}
}
