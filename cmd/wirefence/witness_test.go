package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// patroni answers as a Patroni does that leads, or doesn't.
func patroni(t *testing.T, leads *atomic.Bool) (addr string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/primary" || !leads.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestProxiesAskTheirWitness(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	var leads atomic.Bool
	setting := "WIREFENCE_WITNESS=patroni://u:geheim@" + patroni(t, &leads) + "?bound=1s"
	p := startProxy(t, url, setting)
	const fenced = "SELECT 1 /*wirefence.token='orders=1'*/"
	conn := stack.Connect(t, p.url)
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Error(err)
	}
	if _, err := conn.Exec(t.Context(), fenced); stack.State(err) != "57P01" {
		t.Errorf("on a server that nobody has confirmed: %v", err)
	}
	r := wirefence(t, []string{setting, "WIREFENCE_DATABASE_URL=" + url, "WIREFENCE_UPSTREAM=postgres://127.0.0.1:1/"}, "doctor")
	r.says(t, "failover.witness", "the witness confirms none of 127.0.0.1:1 as the leader")
	leads.Store(true)
	stack.Eventually(t, "the witness confirms the server", func() bool {
		_, err := stack.Connect(t, p.url).Exec(t.Context(), fenced)
		return err == nil
	})

	check := []string{"WIREFENCE_UPSTREAM=postgres://one,two/", setting}
	r = wirefence(t, check, "proxy", "--check-config").expect(t, exitUsage, "WIREFENCE_WITNESS: it names 1 Patronis for the 2 servers")
	if strings.Contains(r.stderr, "geheim") {
		t.Error(r.stderr)
	}
	r = wirefence(t, check[1:], "proxy", "--check-config", "--upstream", "postgres://one/").expect(t, 0).says(t, "WIREFENCE_WITNESS=patroni://u@127.0.0.1:")
	if strings.Contains(r.stdout, "geheim") {
		t.Error(r.stdout)
	}
}
