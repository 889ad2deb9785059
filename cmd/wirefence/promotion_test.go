package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// The standby is promoted while the old primary goes on, first in the list of all. The
// sidecar's sessions and its grants move to the new one together.
func TestASidecarLeavesAnOldPrimary(t *testing.T) {
	t.Parallel()
	old := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	stack.Exec(t, old.URL("postgres"), "CREATE TABLE jobs (worker text)")
	if err := migrations.Apply(t.Context(), stack.Connect(t, old.URL("postgres")), nil); err != nil {
		t.Fatal(err)
	}
	stack.Exec(t, old.URL("postgres"), "SELECT wirefence.seal('granted before', 1)") // so the standby knows that tokens are granted here
	promoted := stack.Started(old.StartStandby(t.Context())).EndWith(t)
	hosts := old.Addr() + "," + promoted.Addr()
	p := startProxy(t, old.URL("postgres"), "WIREFENCE_TTL=3s", "WIREFENCE_LEASE=jobs",
		"WIREFENCE_DATABASE_URL=postgres://postgres@"+hosts+"/postgres?sslmode=disable&target_session_attrs=read-write",
		"WIREFENCE_UPSTREAM=postgres://"+hosts+"/?sslmode=disable&target_session_attrs=read-write")
	awaitRole(t, p, "leader")
	if err := insertVia(p.url); err != nil {
		t.Fatal(err)
	}
	p.stderr.Await(t, `"standing":"standby"`) // the other server is known
	if err := promoted.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Exec(t, old.URL("postgres"), "CREATE TABLE split (id int)") // it does go on
	p.stderr.Await(t, "left behind by a promotion")
	awaitWriter(t, p)
	count := "SELECT count(*) FROM jobs WHERE worker = 'behind'"
	var n int
	var token int64
	conn := stack.Connect(t, promoted.URL("postgres"))
	if err := conn.QueryRow(t.Context(), count).Scan(&n); err != nil || n == 0 { // the first row may be lost, too
		t.Errorf("%d rows at the promoted server, %v", n, err)
	}
	if err := conn.QueryRow(t.Context(), "SELECT last_token FROM wirefence.resource_locks WHERE resource_id = 'jobs'").Scan(&token); err != nil || token < 1<<50 {
		t.Errorf("token %d, %v", token, err)
	}
}

// awaitWriter tries all proxies until a write through one succeeds, and returns that.
func awaitWriter(t *testing.T, proxies ...*proxyProcess) *proxyProcess {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		for _, p := range proxies {
			if err = insertVia(p.url); err == nil {
				return p
			}
		}
	}
	t.Fatalf("nobody writes: %v", err)
	return nil
}

func insertVia(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, "INSERT INTO jobs VALUES ('behind')")
	return err
}

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

func TestDoctorComparesTheLeadersAddress(t *testing.T) {
	t.Parallel()
	url, kube := database(t, true), apiservertest.Start(t)
	at, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	upstream := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(at.Port)))
	for address, says := range map[string]string{
		"127.0.0.1": "the witness confirms " + upstream + ", whose address is 127.0.0.1, as the leader",
		"127.0.0.9": "the witness confirms the server with the address 127.0.0.9, and " + upstream + " has 127.0.0.1",
	} {
		kube.Cluster("shop", "app", "app-1", "app-1", map[string]string{"app-1": address})
		wirefence(t, []string{"WIREFENCE_WITNESS=cloudnativepg://shop/app?server=" + kube.URL + "&ca=" + kube.CAFile + "&token=" + kube.TokenFile,
			"WIREFENCE_DATABASE_URL=" + url, "WIREFENCE_UPSTREAM=postgres://" + upstream + "/"}, "doctor").says(t, "failover.witness", says)
	}
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
