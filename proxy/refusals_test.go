package proxy

import (
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

func TestTheVerdictIsTakenApart(t *testing.T) {
	const (
		held    = `Resource "orders": presented token 33, current token 34, held by "worker-b" since 2026-11-20 17:00:00.123456+00.`
		granted = `Resource "orders": presented token 33, current token 34, granted to "worker-b" at 2026-11-20 17:00:00.123456+00.`
		free    = `Resource "orders": presented token 33, current token 34, last held by "worker-b", granted at 2026-11-20 17:00:00.123456+00.`
	)
	for _, c := range []struct {
		refusal Refusal
		want    Verdict
		log     []any // behind the reason
	}{
		{Refusal{State: fence.StaleToken, Message: "stale", Detail: held},
			Verdict{Resource: "orders", Token: 33, CurrentToken: 34, Holder: "worker-b", Since: "2026-11-20 17:00:00.123456+00"},
			[]any{"resource", "orders", "presented", "33", "current", "34", "holder", "worker-b", "since", "2026-11-20T17:00:00.123456Z"}},
		{Refusal{State: fence.StaleToken, Message: "stale", Detail: granted},
			Verdict{Resource: "orders", Token: 33, CurrentToken: 34, Holder: "worker-b", Since: "2026-11-20 17:00:00.123456+00"},
			[]any{"resource", "orders", "presented", "33", "current", "34", "holder", "worker-b", "since", "2026-11-20T17:00:00.123456Z"}},
		{Refusal{State: fence.StaleToken, Message: "stale", Detail: free},
			Verdict{Resource: "orders", Token: 33, CurrentToken: 34, Holder: "worker-b", Since: "2026-11-20 17:00:00.123456+00", Free: true},
			[]any{"resource", "orders", "presented", "33", "current", "34", "holder", "worker-b", "since", "2026-11-20T17:00:00.123456Z", "lease", "free"}},
		{Refusal{State: fence.StaleToken, Detail: `Resource "a""b": presented token 1, current token 2.`},
			Verdict{Resource: `a"b`, Token: 1, CurrentToken: 2}, []any{"resource", `a"b`, "presented", "1", "current", "2"}},
		{Refusal{State: fence.MalformedToken, Detail: "Something else."}, Verdict{}, []any{"detail", "Something else."}},
		{Refusal{State: fence.MalformedToken}, Verdict{}, nil},
		{Refusal{State: fence.MalformedToken, TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, Verdict{},
			[]any{"trace_id", "4bf92f3577b34da6a3ce929d0e0e4736", "span_id", "00f067aa0ba902b7"}},
		{Refusal{State: fence.TokenRequired, Message: `a fencing token is required for resource "pay""roll"`, Detail: `Table public."Big Table" is guarded, and no fence was given.`},
			Verdict{Resource: `pay"roll`, Table: `public."Big Table"`}, []any{"resource", `pay"roll`, "table", `public."Big Table"`}},
		{Refusal{State: fence.ResourceUnknown, Message: `unknown fenced resource "ord""res"`, Detail: "No token of it was ever recorded."},
			Verdict{Resource: `ord"res`}, []any{"resource", `ord"res`, "detail", "No token of it was ever recorded."}},
		{Refusal{State: fence.StaleToken, Message: "stale claim for row job(17)", Detail: "Row job(17): presented claim 123, but it is under another claim."},
			Verdict{Resource: "job()"}, []any{"resource", "job()", "detail", "Row job(): presented claim 123, but it is under another claim."}},
		{Refusal{State: fence.StaleToken, Shadow: true, Message: "stale claim for row job(a%2Cb:-1). Row job(a%2Cb:-1): presented claim -5, but it has gone."},
			Verdict{Resource: "job()"}, []any{"resource", "job()"}},
		{Refusal{State: fence.ResourceUnknown, Message: `unknown class of rows "job"`, Detail: "Row job(a.b/c): the class was not declared."},
			Verdict{Resource: "job()"}, []any{"resource", "job()", "detail", "Row job(): the class was not declared."}},
		{Refusal{State: fence.TokenRequired, Message: `a fencing token is required for resource "job(17)"`, Detail: "Table public.results is guarded, and the session carries no fence."},
			Verdict{Resource: "job()", Table: "public.results"}, []any{"resource", "job()", "table", "public.results"}},
		{Refusal{State: fence.StaleToken, Message: "stale", Detail: `Resource "a(b)": presented token 1, current token 2.`},
			Verdict{Resource: "a(b)", Token: 1, CurrentToken: 2}, []any{"resource", "a(b)", "presented", "1", "current", "2"}},
		{Refusal{State: fence.LeaseNotHeld, Message: `the lease of "a \"b\"\n" is not held here`}, Verdict{Resource: "a \"b\"\n"}, []any{"resource", "a \"b\"\n"}},
		{Refusal{State: fence.LeaseNotHeld, Message: "something else"}, Verdict{}, nil},
	} {
		if got := c.refusal.Verdict(); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.refusal, got, c.want)
		}
		if got, want := verdictAttrs(c.refusal), append([]any{"reason", c.refusal.WithoutKeys().Message}, c.log...); !slices.Equal(got, want) {
			t.Errorf("%+v is logged as %v, want %v", c.refusal, got, want)
		}
	}
}

// A client that raises an error of its own gives it a text of any length.
func TestRefusalsAreCut(t *testing.T) {
	long := strings.Repeat("xyzä", 1_000_000)
	r := Refusal{Origin: Origin{User: "ü", Database: long, Application: long}, State: fence.StaleToken, Message: long, Detail: long}
	for i, attribute := range verdictAttrs(r) {
		if text := attribute.(string); len(text) > maxLoggedText || !strings.HasPrefix(long, text) && i%2 == 1 {
			t.Errorf("%d bytes are logged, %.20s", len(text), text)
		}
	}
	if got := r.Cut(14); got.User != "ü" || got.Database != "xyzäxyzäxyz" || got.Message != got.Database || got.Detail != got.Database || got.Application != got.Database {
		t.Errorf("cut to %+v", got)
	}
	if got := truncate(strings.Repeat("\x80", 20), 10); len(got) != 10 {
		t.Errorf("a text in no encoding is cut to %d bytes", len(got))
	}
	r.Detail = `Resource "orders": presented token 1, current token 2.` + long
	if got := r.Verdict(); got.Resource != "orders" {
		t.Errorf("the verdict of a long text is %+v", got)
	}
}
