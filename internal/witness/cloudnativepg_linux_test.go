package witness_test

import (
	"fmt"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/internal/witness"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// The pods of a Cluster are two servers with addresses of their own, and its Service is a network that
// leads new connections to the primary, and leaves open ones where they are.
func TestAClusterOfCloudNativePG(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	pods := map[string]string{"app-1": "127.0.0.2", "app-2": "127.0.0.3"}
	old := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{
		Settings: map[string]string{"listen_addresses": "127.0.0.1,127.0.0.2,127.0.0.3"}})).EndWith(t)
	if err := migrations.Apply(t.Context(), stack.Connect(t, old.URL("postgres")), nil); err != nil {
		t.Fatal(err)
	}
	next := stack.Started(old.StartStandby(t.Context())).EndWith(t)
	service := stack.Started(servers.StartLink(net.JoinHostPort(pods["app-1"], strconv.Itoa(old.Port)))).EndWith(t)
	kube := apiservertest.Start(t)
	const bound = time.Hour // all that ends here ends by what the witness says
	o := proxy.Options{Upstream: "postgres://" + service.Addr() + "/", DatabaseURL: old.URL("postgres")}
	testWith(t, &o, fmt.Sprintf("cloudnativepg://shop/app?bound=%v&server=%s&ca=%s&token=%s", bound, kube.URL, kube.CAFile, kube.TokenFile), []string{service.Addr()})
	server := stack.Serve(t, o)
	addr := server.Addr
	connect := func() *pgx.Conn {
		return stack.Connect(t, "postgres://postgres@"+addr+"/postgres?sslmode=disable")
	}
	fenced := func(conn *pgx.Conn) string {
		_, err := conn.Exec(t.Context(), fmt.Sprintf("SELECT 1 /*wirefence.token='%s=1'*/", "r"+strconv.FormatInt(time.Now().UnixNano(), 36)))
		return stack.State(err)
	}
	eventually := func(what, state string) {
		t.Helper()
		stack.Eventually(t, what, func() bool { return fenced(connect()) == state })
	}
	ready := func(want string) {
		t.Helper()
		answer := httptest.NewRecorder()
		server.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/readyz", nil))
		if !strings.Contains(answer.Body.String(), want) {
			t.Errorf("/readyz says %s", answer.Body)
		}
	}
	eventually("a Cluster that isn't there confirms nobody", "57P01")
	kube.Cluster("shop", "app", "app-1", "app-1", pods)
	eventually("the primary is confirmed", "")
	ready(", confirmed as the leader if its own address is 127.0.0.2\n")
	kube.Cluster("shop", "app", "app-1", "app-1", map[string]string{"app-1": "127.0.0.9", "app-2": "127.0.0.3"})
	eventually("the server says another address", "57P01")
	ready(", confirmed as the leader if its own address is 127.0.0.9\n")
	kube.Cluster("shop", "app", "app-1", "app-1", pods)
	eventually("the primary is confirmed again", "")

	idle, unfenced := connect(), connect()
	if state := fenced(idle); state != "" {
		t.Fatal(state)
	}
	if _, err := unfenced.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	kube.Cluster("shop", "app", "app-1", "pending", pods)
	stack.Eventually(t, "its sessions with a fence end", func() bool { return fenced(idle) != "" })
	eventually("nobody is confirmed", "57P01")

	// The old primary runs on, as on the other side of a network that is cut in two.
	if err := next.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	service.Retarget(net.JoinHostPort(pods["app-2"], strconv.Itoa(next.Port)))
	kube.Cluster("shop", "app", "app-2", "app-2", pods)
	eventually("the promoted server is confirmed", "")
	if _, err := unfenced.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("a session without a fence: %v", err)
	}
	if state := fenced(unfenced); state != "57P01" {
		t.Errorf("a fence at the old primary by the same Service: %q", state)
	}
	if _, err := connect().Exec(t.Context(), "SELECT 1"); err != nil {
		t.Error(err)
	}
}

func TestAClusterWithoutAddresses(t *testing.T) {
	kube := apiservertest.Start(t)
	w, err := witness.Open("cloudnativepg://shop/app?server="+kube.URL+"&ca="+kube.CAFile+"&token="+kube.TokenFile, []string{"app-rw:5432"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	for _, c := range []struct {
		current, target string
		pods            map[string]string
		known, leads    bool
	}{
		{"", "", nil, true, false},
		{"app-1", "app-1", nil, false, false},
		{"app-1", "app-1", map[string]string{"app-1": ""}, false, false},
		{"app-1", "app-2", map[string]string{"app-1": "10.0.0.1"}, true, false},
		{"app-1", "app-1", map[string]string{"app-1": "10.0.0.1"}, true, true},
		{"app-1", "app-1", map[string]string{"app-1": "fd00::1"}, true, true},
	} {
		kube.Cluster("shop", "app", c.current, c.target, c.pods)
		leads, address, err := w.Leads(t.Context(), 0)
		if leads != c.leads || (err == nil) != c.known || leads && address.String() != c.pods[c.current] {
			t.Errorf("%+v: %v, %v, %v", c, leads, address, err)
		}
	}
	kube.Forbid(true)
	if _, _, err := w.Leads(t.Context(), 0); err == nil {
		t.Error("a question is answered without the right to read the Cluster")
	}
}
