package api

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wirefence/wirefence/internal/stack"
)

// forApplications returns the server behind a listener for applications.
func (w *world) forApplications(t *testing.T, at net.Addr) *world {
	t.Helper()
	handler, err := w.Application(at)
	if err != nil {
		t.Fatal(err)
	}
	other := *w
	other.http = httptest.NewServer(handler)
	t.Cleanup(other.http.Close)
	return &other
}

var (
	onLoopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9434}
	elsewhere  = &net.TCPAddr{IP: net.IPv4zero, Port: 9434}
	onSocket   = &net.UnixAddr{Name: "/run/wirefence/api.sock", Net: "unix"}
)

func (a answer) is(problem string) bool { return a.fields["type"] == problemPrefix+problem }

// The listener for applications serves their operations and none of the operators', with any
// token.
func TestWhatApplicationsAreServed(t *testing.T) {
	t.Parallel()
	served := []string{"acquire", "renew", "release", "show", "check", "begin_effect", "end_effect", "whoami", "openapi"}
	_, token := tokenFile(t, namedTokens)
	for _, presented := range []string{"", leaseSecret, operateSecret, readSecret} {
		w := serve(t, "postgres", func(o *Options) {
			if presented != "" {
				o.Token = token
			}
		}).forApplications(t, onLoopback)
		w.token = presented
		each(t, func(t *testing.T, operation string, q request) {
			switch answer := w.send(t, q); {
			case presented == readSecret:
				if answer.want(403, "scope-required"); answer.fields["required_scope"] != "lease" {
					t.Errorf("got %s", answer.text)
				}
			case !slices.Contains(served, operation):
				if answer.want(403, "admin-only"); !strings.Contains(answer.string("detail"), "WIREFENCE_ADMIN_LISTEN") {
					t.Errorf("it isn't said where to ask: %s", answer.text)
				}
			case answer.status == 401 || answer.status == 403:
				t.Errorf("refused: %s", answer.text)
			}
		})
		if presented == readSecret {
			continue
		}
		for _, path := range []string{"/metrics", "/console/", "/console/index.html", "/", "/v1/none"} {
			w.get(t, path).want(404, "no-such-path")
		}
	}
}

func TestApplicationsPresentAToken(t *testing.T) {
	t.Parallel()
	_, token := tokenFile(t, namedTokens)
	w := serve(t, "postgres", func(o *Options) { o.Token = token })
	for _, at := range []net.Addr{onLoopback, elsewhere, onSocket} {
		w := w.forApplications(t, at)
		each(t, func(t *testing.T, _ string, q request) { w.send(t, q).want(401, "token-required") })
		r, _ := http.NewRequestWithContext(t.Context(), "GET", w.http.URL+"/metrics", nil)
		if got := statusAt(t, r); got != 401 {
			t.Errorf("/metrics: %d", got)
		}
		w.token = leaseSecret
		w.post(t, path(fresh(t), "acquire"), `{"holder":"worker-a"}`).want(200, "")
	}
}

func TestApplicationsNeedATokenFileBeyondLoopback(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	if _, err := w.Application(elsewhere); err == nil || !strings.Contains(err.Error(), "WIREFENCE_ADMIN_TOKEN_FILE") || !strings.Contains(err.Error(), "WIREFENCE_API_LISTEN") {
		t.Errorf("got %v", err)
	}
}

// A browser can reach loopback, but no Unix socket.
func TestBrowsersAreRefusedWhereApplicationsAreServed(t *testing.T) {
	t.Parallel()
	w := serve(t, "postgres", nil)
	loopback, socket := w.forApplications(t, onLoopback), w.forApplications(t, onSocket)
	each(t, func(t *testing.T, _ string, q request) {
		q.host = "evil.example"
		loopback.send(t, q).want(403, "cross-origin")
		if answer := socket.send(t, q); answer.is("cross-origin") {
			t.Errorf("a client of the socket named a host: %s", answer.text)
		}
		q.host, q.header = "", map[string]string{"Origin": "https://evil.example"}
		socket.send(t, q).want(403, "cross-origin")
		loopback.send(t, q).want(403, "cross-origin")
	})
	for _, path := range []string{"/livez", "/readyz"} {
		for host, want := range map[string]int{"evil.example": 403, "localhost": 200} {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", loopback.http.URL+path, nil)
			r.Host = host
			if got := statusAt(t, r); got != want {
				t.Errorf("%s for %s: %d", path, host, got)
			}
		}
	}
}

func statusAt(t *testing.T, r *http.Request) int {
	t.Helper()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// All listeners share the bound on waiting acquires, and the drain.
func TestApplicationsShareTheServersWaits(t *testing.T) {
	t.Parallel()
	admin := serve(t, "postgres", func(o *Options) { o.MaxWaits = 1 })
	w, name := admin.forApplications(t, onLoopback), fresh(t)
	probe := func(path string) int {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", w.http.URL+path, nil)
		return statusAt(t, r)
	}
	admin.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":60}`).want(200, "")
	waited := make(chan answer, 1)
	go func() {
		a, err := w.try(t, t.Context(), request{method: "POST", path: path(name, "acquire"), body: `{"holder":"worker-b","wait_seconds":60}`})
		if err != nil {
			t.Error(err)
		}
		waited <- a
	}()
	stack.Eventually(t, "an acquire waits", func() bool { return testutil.ToFloat64(admin.metrics.waits) == 1 })
	admin.post(t, path(name, "acquire"), `{"holder":"worker-c","wait_seconds":60}`).want(429, "too-many-waits")
	if live, ready := probe("/livez"), probe("/readyz"); live != 200 || ready != 200 {
		t.Errorf("/livez %d, /readyz %d", live, ready)
	}
	admin.Drain()
	if a := <-waited; a.status != 503 || !a.is("draining") {
		t.Errorf("got %d: %s", a.status, a.text)
	}
	if live, ready := probe("/livez"), probe("/readyz"); live != 200 || ready != 503 {
		t.Errorf("while it drains: /livez %d, /readyz %d", live, ready)
	}
}
