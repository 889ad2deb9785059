package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/api"
	"github.com/wirefence/wirefence/internal/stack"
)

// applications is a proxy with a listener for applications.
type applications struct {
	*proxyProcess
	database, api string
}

func serveApplications(t *testing.T, settings ...string) *applications {
	t.Helper()
	url, _ := fenced(t)
	at := freeAddress(t)
	issued := strings.Replace(url, "postgres@", "checker@", 1)
	stack.Exec(t, url, "GRANT wirefence_issuer TO checker")
	p := startProxy(t, issued, append(settings, "WIREFENCE_API_LISTEN="+at)...)
	return &applications{p, url, "http://" + at}
}

func (a *applications) begin(t *testing.T, fence string, max float64) (status int, fields map[string]any) {
	t.Helper()
	return ask(t, "POST", a.api+"/v1/effects", "", fmt.Sprintf(`{"fence":%q,"max_seconds":%v}`, fence, max))
}

func (a *applications) end(t *testing.T, effect map[string]any) (status int, fields map[string]any) {
	t.Helper()
	return ask(t, "DELETE", fmt.Sprint(a.api, "/v1/effects/", effect["effect_id"]), "", "")
}

// awaitDrain returns when the proxy has begun to drain.
func (a *applications) awaitDrain(t *testing.T) {
	t.Helper()
	stack.Eventually(t, "the proxy drains", func() bool {
		status, _ := get(t, a.api+"/readyz")
		return status == http.StatusServiceUnavailable
	})
}

// A killed proxy doesn't delay a takeover, and no other proxy reports that its effect's
// fence has held.
func TestAKilledProxyEndsItsEffects(t *testing.T) {
	t.Parallel()
	a := serveApplications(t)
	preemptAfter(t, a.database, "1 minute")
	status, effect := a.begin(t, "orders=34", 60)
	if status != 200 {
		t.Fatalf("%d: %v", status, effect)
	}
	a.signal(t, syscall.SIGKILL)
	began := time.Now()
	if err := <-sealing(t, a.database); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the takeover took %v", took)
	}
	other := serveApplications(t)
	if status, problem := other.end(t, effect); status != 404 || problem["type"] != "urn:wirefence:problem:no-such-effect" {
		t.Errorf("%d: %v", status, problem)
	}
}

// A second signal ends it without them, and so does the end of its time.
func TestDrainingDoesNotWaitForever(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout string
		again   bool
	}{"a second signal": {"1m", true}, "its time": {"300ms", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := serveApplications(t, "WIREFENCE_DRAIN_TIMEOUT="+c.timeout)
			if status, effect := a.begin(t, "orders=34", 60); status != 200 {
				t.Fatalf("%d: %v", status, effect)
			}
			a.signal(t, syscall.SIGTERM)
			if c.again {
				a.awaitDrain(t) // two signals at once may be one
				a.signal(t, syscall.SIGTERM)
			}
			select {
			case <-a.exited:
			case <-time.After(30 * time.Second):
				t.Error("it waits on")
			}
		})
	}
}

// The script of docs/reference/effects.md says of each outcome what is said there.
func TestTheDocumentedEffectOverHTTP(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "curl and jq")
	page, err := os.ReadFile("../../docs/reference/effects.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```bash\n")
	script, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("docs/reference/effects.md has no script")
	}
	report := filepath.Join(t.TempDir(), "report")
	if err := os.WriteFile(report, []byte("report"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		fence, put string // what the target does when it is written to
		status     int
		says       []string
	}{
		"held":      {"orders=34", "", 0, []string{"done", "the fence held"}},
		"failed":    {"orders=34", "fail", 0, []string{"failed", "the fence held"}},
		"not begun": {"orders=33", "", 1, []string{"not begun", "WF001"}},
		"in doubt":  {"orders=34", "revoke", 76, []string{"done", "in doubt"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := serveApplications(t)
			target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				switch c.put {
				case "fail":
					w.WriteHeader(http.StatusForbidden)
				case "revoke":
					stack.Exec(t, a.database, "SELECT wirefence.revoke('orders')")
				}
			}))
			defer target.Close()
			cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
			cmd.Env = append(os.Environ(), "API="+a.api, "WIREFENCE_FENCE="+c.fence, "REPORT="+report, "TARGET="+target.URL+"/report")
			text, _ := cmd.CombinedOutput()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("exit status %d\n%s", got, text)
			}
			for _, word := range c.says {
				if !strings.Contains(string(text), word) {
					t.Errorf("%q is missing in:\n%s", word, text)
				}
			}
			if held := strings.Contains(string(text), "the fence held"); held != (c.status == 0) {
				t.Errorf("the fence held: %v\n%s", held, text)
			}
		})
	}
}

// A proxy without sessions has drained before its API has begun to: open effects have their time
// all the same.
func TestEffectsHaveTheTimeToDrain(t *testing.T) {
	t.Parallel()
	_, settings := fenced(t)
	_, url, _ := strings.Cut(settings[0], "=")
	pool, err := openPool(t.Context(), url, effectConnections)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	served, err := api.New(api.Options{Effects: pool, Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = served.Close(context.Background()) })
	front := httptest.NewServer(served)
	t.Cleanup(front.Close)
	status, effect := ask(t, "POST", front.URL+"/v1/effects", "", `{"fence":"orders=34","max_seconds":60}`)
	if status != 200 {
		t.Fatalf("%d: %v", status, effect)
	}
	a := &admin{api: served, drain: drainOnce(served, time.Minute)}
	awaited := make(chan struct{})
	go func() {
		defer close(awaited)
		a.awaitEffects(nil)
	}()
	stack.Eventually(t, "the API drains", func() bool {
		// The fence is stale, so asking opens no effect that would have to be awaited.
		status, _ := ask(t, "POST", front.URL+"/v1/effects", "", `{"fence":"orders=33","max_seconds":60}`)
		return status == http.StatusServiceUnavailable
	})
	if status, ended := ask(t, "DELETE", fmt.Sprint(front.URL, "/v1/effects/", effect["effect_id"]), "", ""); status != 200 {
		t.Errorf("%d: %v", status, ended)
	}
	<-awaited
	if left := time.Until(a.drain()); left < 30*time.Second {
		t.Errorf("%v are left of the minute", left)
	}
}
