package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

func TestWhoCalls(t *testing.T) {
	t.Parallel()
	open := serve(t, "postgres", nil)
	if me := open.get(t, "/v1/whoami").want(200, ""); me.fields["name"] != nil || me.string("scope") != "lease" || me.fields["token_required"] != false {
		t.Errorf("without a token file: %s", me.text)
	}
	_, token := tokenFile(t, namedTokens)
	w := serve(t, "postgres", func(o *Options) { o.Token = token })
	for presented, want := range map[string]caller{
		readSecret: {"alice", scopeRead}, leaseSecret: {"bob", scopeLease}, operateSecret: {"carol", scopeOperate}, otherOperate: {"carol", scopeOperate},
		secret: {"default", scopeOperate},
	} {
		w.token = presented
		if me := w.get(t, "/v1/whoami").want(200, ""); me.string("name") != want.name || me.string("scope") != want.scope.String() || me.fields["token_required"] != true {
			t.Errorf("%s: %s", want.name, me.text)
		}
	}
}

func TestTheProcessTellsOfItself(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", func(o *Options) {
		o.About = func() About {
			return About{
				Version: "1.2.3", Schema: 7, StartedAt: time.Now(), Mode: "enforce", UnfencedWrites: "allow", Settings: map[string]string{"WIREFENCE_MODE": "enforce"},
				Lease:    &OwnLease{Resource: "orders", Held: true},
				Adopted:  []AdoptedLease{{From: "redis:a", Resource: "a", Held: true, Token: 7, TokenText: "7", Holder: "h", Since: time.Unix(1, 0).UTC()}, {From: "redis:b", Resource: "b", Ended: "released"}},
				Upstream: []UpstreamHost{{Host: "db:5432", Role: "primary", Timeline: 3}, {Host: "db2:5432", Role: "unknown", Error: "gone"}},
			}
		}
	})
	about := w.get(t, "/v1/about").want(200, "")
	if about.string("version") != "1.2.3" || fmt.Sprint(about.fields["lease"]) != "map[held:true resource:orders]" ||
		fmt.Sprint(about.fields["adopted"]) != "[map[from:redis:a held:true holder:h resource:a since:1970-01-01T00:00:01Z token:7 token_text:7] map[ended:released from:redis:b held:false resource:b]]" ||
		fmt.Sprint(about.fields["upstream"]) != "[map[behind:false host:db:5432 role:primary timeline:3] map[behind:false error:gone host:db2:5432 role:unknown]]" {
		t.Errorf("about: %s", about.text)
	}
	serve(t, "postgres", nil).get(t, "/v1/about").want(200, "")
}

func TestGuardsAreListed(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	if none := w.get(t, "/v1/guards").want(200, ""); fmt.Sprint(none.fields["guards"]) != "[]" {
		t.Errorf("none: %s", none.text)
	}
	admin := w.admin(t)
	if _, err := admin.Exec(t.Context(), "CREATE TABLE reports (tenant text, id int)"); err != nil {
		t.Fatal(err)
	}
	if err := fence.Protect(t.Context(), admin, "reports", "report:{tenant}", fence.ModeShadow); err != nil {
		t.Fatal(err)
	}
	listed, _ := w.get(t, "/v1/guards").want(200, "").fields["guards"].([]any)
	if len(listed) != 1 {
		t.Fatalf("listed: %v", listed)
	}
	if g := listed[0].(map[string]any); g["table"] != "public.reports" || g["resource"] != "report:{tenant}" || g["mode"] != "shadow" || g["by"] != "postgres" || g["since"] == nil || g["fault"] != nil {
		t.Errorf("listed: %v", g)
	}
}

func TestClassesOfRowsAreListed(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	if none := w.get(t, "/v1/rows").want(200, ""); fmt.Sprint(none.fields["rows"]) != "[]" {
		t.Errorf("none: %s", none.text)
	}
	admin := w.admin(t)
	if _, err := admin.Exec(t.Context(), "CREATE TABLE jobs (id int PRIMARY KEY, claim bigint)"); err != nil {
		t.Fatal(err)
	}
	if err := fence.DeclareRows(t.Context(), admin, fence.RowClass{Class: "job", Table: "jobs", Key: []string{"id"}, Claim: "claim", While: "claim > 0", Mode: fence.ModeShadow}); err != nil {
		t.Fatal(err)
	}
	one := func() map[string]any {
		listed, _ := w.get(t, "/v1/rows").want(200, "").fields["rows"].([]any)
		if len(listed) != 1 {
			t.Fatalf("listed: %v", listed)
		}
		return listed[0].(map[string]any)
	}
	if c := one(); c["class"] != "job" || c["table"] != "public.jobs" || fmt.Sprint(c["key"]) != "[id]" || c["claim"] != "claim" || c["while"] != "(claim > 0)" || c["mode"] != "shadow" ||
		c["by"] != "postgres" || c["since"] == nil || c["fault"] != nil {
		t.Errorf("listed: %v", c)
	}
	if _, err := admin.Exec(t.Context(), "DROP TABLE jobs"); err != nil {
		t.Fatal(err)
	}
	if c := one(); !strings.HasPrefix(fmt.Sprint(c["fault"]), "the table has gone") {
		t.Errorf("listed: %v", c)
	}
}

const healthy = `{"grade":"ok","counts":{"ok":1},"checks":[{"check":"a.b","grade":"ok","milliseconds":0.5,"findings":[{"grade":"ok","says":"fine"}]}]}`

// All callers share one examination, and its report for a while.
func TestExaminationsAreFew(t *testing.T) {
	t.Parallel()
	var runs, running atomic.Int64
	release := make(chan struct{})
	w := serve(t, "postgres", func(o *Options) {
		o.Doctor = func(ctx context.Context) (json.RawMessage, error) {
			runs.Add(1)
			if running.Add(1) > 1 {
				t.Error("two run at once")
			}
			defer running.Add(-1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return json.RawMessage(healthy), ctx.Err()
		}
	})
	// It continues without its caller.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = w.try(t, ctx, request{method: http.MethodGet, path: "/v1/doctor"})
	}()
	stack.Eventually(t, "it runs", func() bool { return runs.Load() > 0 })
	cancel()
	<-gone
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			if a, err := w.try(t, t.Context(), request{method: http.MethodGet, path: "/v1/doctor"}); err != nil || a.status != 200 || a.fields["report"].(map[string]any)["grade"] != "ok" {
				t.Errorf("%v: %s", err, a.text)
			}
		})
	}
	close(release)
	asking.Wait()
	if n := runs.Load(); n != 1 {
		t.Errorf("%d examinations", n)
	}
	w.examination.mu.Lock()
	w.examination.last.at = time.Now().Add(-2 * examinationAge)
	w.examination.mu.Unlock()
	w.get(t, "/v1/doctor").want(200, "")
	if n := runs.Load(); n != 2 {
		t.Errorf("%d examinations after the first was too old", n)
	}
}

// Closing the server doesn't wait for an examination.
func TestAnExaminationEndsWithTheServer(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	w := serve(t, "postgres", func(o *Options) {
		o.Doctor = func(ctx context.Context) (json.RawMessage, error) {
			close(began)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	answered := make(chan answer)
	go func() {
		a, _ := w.try(t, context.Background(), request{method: http.MethodGet, path: "/v1/doctor"})
		answered <- a
	}()
	<-began
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if a := <-answered; a.status != 503 {
		t.Errorf("%d %s", a.status, a.text)
	}
}
