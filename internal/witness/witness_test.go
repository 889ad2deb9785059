package witness_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/witness"
)

func TestConnectionStrings(t *testing.T) {
	two := []string{"db1.internal:5432", "db2.internal:5432"}
	ca := authority.New(t).CAFile
	for text, c := range map[string]struct {
		servers []string
		bound   time.Duration
		err     string // a part of it
	}{
		"patroni://db1:8008,db2?bound=3s":             {two, 3 * time.Second, ""},
		"patroni://db1,db2":                           {two, 10 * time.Second, ""},
		"patroni://db1":                               {two, 0, "1 Patronis for the 2 servers"},
		"patroni://db1,db2?bound=fast":                {two, 0, "bound"},
		"patroni://db1,db2?bound=100ms":               {two, 0, "at least 200ms"},
		"patroni://db1,db2?names=a,b":                 {two, 0, "unknown setting"},
		"patroni://u:geheim@db1,:8008":                {two, 0, "host is empty"},
		"etcd://u:geheim@e1,e2,e3/service/app/leader": {two, 10 * time.Second, ""},
		"etcd://e1":                                                  {two, 0, "no key"},
		"etcd://e1/service/app/leader?names=a":                       {two, 0, "1 names for the 2 servers"},
		"etcd://e1/service/app/leader?ca=missing":                    {two, 0, "ca:"},
		"etcd://e1/k":                                                {[]string{"127.0.0.1:5432"}, 0, "give names="},
		"etcd://e1/k?names=one":                                      {[]string{"127.0.0.1:5432"}, 10 * time.Second, ""},
		"kubernetes://prod/app?ca=" + ca:                             {two, 10 * time.Second, ""},
		"kubernetes://prod?ca=" + ca:                                 {two, 0, "no lease"},
		"kubernetes://prod/app?ca=missing":                           {two, 0, "ca:"},
		"cloudnativepg://prod/app?ca=" + ca:                          {two[:1], 10 * time.Second, ""},
		"cloudnativepg://prod/app?bound=1s&ca=" + ca:                 {two, 0, "CLUSTER-rw alone"},
		"cloudnativepg://prod?ca=" + ca:                              {two, 0, "no cluster"},
		"cloudnativepg://prod/app?names=a,b":                         {two, 0, "unknown setting"},
		"zookeeper://geheim@z/":                                      {two, 0, "none of patroni://"},
		"geheim":                                                     {two, 0, "none of patroni://"},
		"kubernetes://prod/app?names=x,y&bound=1m&token=/t&ca=" + ca: {two, time.Minute, ""},
	} {
		w, err := witness.Open(text, c.servers)
		switch {
		case c.err == "" && err == nil:
			if w.Bound != c.bound {
				t.Errorf("%s: the bound is %v", text, w.Bound)
			}
			_ = w.Close()
		case c.err == "" || err == nil || !strings.Contains(err.Error(), c.err):
			t.Errorf("%s: %v", text, err)
		case strings.Contains(err.Error(), "geheim"):
			t.Error(err)
		}
	}
}

// apiServer serves one Lease as the API server of Kubernetes does, to one bearer.
type apiServer struct {
	mu     sync.Mutex
	bearer string
	holder string
	kind   string
}

func (a *apiServer) set(bearer, holder, kind string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bearer, a.holder, a.kind = bearer, holder, kind
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	status := func(code int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code})
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+a.bearer:
		status(http.StatusUnauthorized, "Unauthorized")
	case r.URL.Path != "/apis/coordination.k8s.io/v1/namespaces/prod/leases/app" || r.URL.RawQuery != "":
		status(http.StatusNotFound, "NotFound")
	case r.Method != http.MethodGet:
		status(http.StatusMethodNotAllowed, "MethodNotAllowed")
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"kind": a.kind, "apiVersion": "coordination.k8s.io/v1",
			"metadata": map[string]any{"name": "app", "namespace": "prod", "resourceVersion": "4711"},
			"spec": map[string]any{"holderIdentity": a.holder, "leaseDurationSeconds": 15, "leaseTransitions": 2,
				"acquireTime": "2026-11-24T09:00:00.000000Z", "renewTime": "2026-11-24T09:12:07.123456Z"},
		})
	}
}

// A fake serves the Lease: the real API server was not at hand.
func TestALeaseOfKubernetes(t *testing.T) {
	trusted := authority.New(t)
	api := &apiServer{}
	server := httptest.NewUnstartedServer(api)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{trusted.Issue(t, "kubernetes", "127.0.0.1").Load(t)}}
	server.StartTLS()
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(lease string, ca *authority.Authority) *witness.Witness {
		w, err := witness.Open("kubernetes://"+lease+"?server="+server.URL+"&token="+token+"&ca="+ca.CAFile, []string{"db-0.db:5432", "db-1.db:5432"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		return w
	}
	w := open("prod/app", trusted)
	wants := func(want string, witness *witness.Witness) {
		t.Helper()
		for i := range 2 {
			leads, _, err := witness.Leads(t.Context(), i)
			got := "unknown"
			if err == nil {
				got = map[bool]string{true: "leads", false: "-"}[leads]
			}
			if words := strings.Fields(want); got != words[i] {
				t.Errorf("server %d: %s, not %s: %v", i, got, words[i], err)
			}
		}
	}
	write("first\n")
	api.set("first", "db-0", "Lease")
	wants("leads -", w)
	api.set("first", "db-1", "Lease")
	wants("- leads", w)
	api.set("first", "db-2", "Lease")
	wants("- -", w)
	api.set("first", "", "Lease")
	wants("- -", w)
	api.set("second", "db-0", "Lease")
	wants("unknown unknown", w)
	write("second\n") // Kubernetes replaces it
	wants("leads -", w)
	api.set("second", "db-0", "ConfigMap")
	wants("unknown unknown", w)
	api.set("second", "db-0", "Lease")
	wants("unknown unknown", open("prod/other", trusted))
	wants("unknown unknown", open("prod/app", authority.New(t)))
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	wants("unknown unknown", w)
}

// A Patroni that answers neither that it leads nor that it doesn't leaves it unknown.
func TestAnswersOfPatroni(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/primary" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("Location", "/primary")
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	w, err := witness.Open("patroni://"+strings.TrimPrefix(server.URL, "http://"), []string{"db:5432"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	for code, want := range map[int]string{200: "true <nil>", 503: "false <nil>", 500: "false unknown", 404: "false unknown", 302: "false unknown"} {
		status = code
		leads, _, err := w.Leads(t.Context(), 0)
		if leads != strings.HasPrefix(want, "true") || (err == nil) != strings.HasSuffix(want, "<nil>") {
			t.Errorf("status %d: %v, %v", code, leads, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := w.Leads(ended, 0); err == nil {
		t.Error("a question whose time is over is answered")
	}
}
