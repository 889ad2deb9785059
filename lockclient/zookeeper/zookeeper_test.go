package zookeeper_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

// shared is the server of the tests that do not harm it.
var shared *servers.ZooKeeper

func TestMain(m *testing.M) {
	os.Exit(storetest.Main(m, func(ctx context.Context) (err error) {
		shared, err = servers.StartZooKeeper(ctx)
		return err
	}, func() { shared.Close() }, func() error { return goleak.Find() }))
}

func open(t testing.TB, url string) *zookeeper.Store { return storetest.Open(t, zookeeper.Open, url) }

func ownServer(t testing.TB, settings ...string) *servers.ZooKeeper {
	return stack.Started(servers.StartZooKeeper(t.Context(), settings...)).EndWith(t)
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) lockclient.Store { return open(t, shared.URL()) })
}

// Leases with many different ttls share few connections: a server grants 60 to an address
// by default.
func TestTTLsShareSessions(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "maxClientCnxns=30")
	store := open(t, server.URL())
	for i := 1; i <= 70; i++ {
		name := fence.Resource(fmt.Sprint("r", i))
		storetest.Win(t, store, name, "me", time.Duration(i)*time.Second)
		storetest.Release(t, store, name, "me")
	}
	for i := 1; i <= 70; i++ { // and all of them at once
		storetest.Win(t, store, fence.Resource(fmt.Sprint("r", i)), "me", time.Duration(i)*time.Second)
	}
}

// A session without leases is closed, and a session with one is not.
func TestIdleSessionsAreClosed(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	store := open(t, server.URL())
	for _, ttl := range []time.Duration{time.Second, 20 * time.Second, 70 * time.Second} {
		name := fence.Resource(fmt.Sprint("idle ", ttl))
		storetest.Win(t, store, name, "me", ttl)
		storetest.Release(t, store, name, "me")
	}
	storetest.Win(t, store, "kept", "me", 100*time.Second)
	connections := func() (n int) {
		conn, err := net.Dial("tcp", server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "srvr")
		status, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(status), "\nConnections: ")
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatalf("%q: %v", status, err)
		}
		return n - 1 // that of the question itself
	}
	if n := connections(); n != 4 {
		t.Fatalf("%d connections at first", n)
	}
	looks := time.NewTicker(100 * time.Millisecond)
	defer looks.Stop()
	for began := time.Now(); connections() != 1; <-looks.C {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d connections are left", connections())
		}
	}
	if held, err := store.Renew(t.Context(), "kept", "me", 100*time.Second); !held || err != nil {
		t.Errorf("the lease that is held: %v, %v", held, err)
	}
	storetest.Win(t, store, "again", "me", time.Second)
}

func TestErrorsNameTheServerNotThePassword(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server := ownServer(t)
	url := func(user string) string {
		return "zookeeper://" + user + "@" + server.Addr() + "/private/leases?tick=100ms"
	}
	store := open(t, url("root:open-sesame"))
	storetest.Win(t, store, "r", "me", time.Minute)
	_, err := open(t, url("root:sesame-street")).Acquire(ctx, "r", "me", time.Minute)
	storetest.WantError(t, "wrong password", err, server.Addr(), true)
	_, err = open(t, server.URL()).Acquire(ctx, "r", "other", time.Minute)
	if err != nil {
		t.Errorf("in another root: %v", err)
	}
	server.Kill()
	brief := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for _, c := range []struct {
		what string
		call func() error
	}{
		{"acquire", func() error { _, err := store.Acquire(ctx, "r", "other", time.Minute); return err }},
		{"acquire, in brief", func() error { _, err := store.Acquire(brief(), "r", "other", time.Minute); return err }},
		{"renew, in brief", func() error { _, err := store.Renew(brief(), "r", "me", time.Minute); return err }},
		{"raise, in brief", func() error { return store.Raise(brief(), "r", 5) }},
		{"release", func() error { _, err := store.Release(ctx, "r", "me"); return err }},
	} {
		err := c.call()
		storetest.WantError(t, c.what, err, server.Addr(), false)
		if !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s does not say why: %v", c.what, err)
		}
	}
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	storetest.WinInTime(t, store, "r", "later", time.Second) // what was released is free soon
}

func TestOpenHidesABadURL(t *testing.T) {
	for _, url := range []string{
		"zookeeper://u:open-sesame@host:port", "http://u:open-sesame@host", "zookeeper://u:open-sesame@host?nothing=1",
		"zookeeper://u:open-sesame@host?ca=/none", "zookeeper://u:open-sesame@host?tick=soon", "zookeeper://u:open-sesame@host?tick=-1s",
	} {
		if _, err := zookeeper.Open(url); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, opts := range []zookeeper.Options{
		{}, {Servers: []string{"a:1"}, Root: "x"}, {Servers: []string{"a:1"}, Root: "/"}, {Servers: []string{"a:1"}, Tick: 1},
	} {
		if _, err := zookeeper.New(opts); err == nil {
			t.Errorf("%+v: no error", opts)
		}
	}
}

func TestADeadlineEndsACallToAPausedServer(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	storetest.ADeadlineEndsACall(t, open(t, server.URL()), server)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	mine, port := a.Issue(t, "me"), freePort(t)
	server := ownServer(t, append(secured(t, a), "secureClientPort="+port, "secureClientPortAddress=127.0.0.1")...)
	url := "zookeeper://127.0.0.1:" + port + "?tick=100ms"
	shown := "&cert=" + mine.CertFile + "&key=" + mine.KeyFile
	store := open(t, url+"&ca="+a.CAFile+shown)
	storetest.WinInTime(t, store, "r", "me", time.Second) // a cold Java machine may take long for its first handshake
	if again := storetest.Win(t, store, "r", "me", time.Minute); again < 2 {
		t.Errorf("token %d", again)
	}
	if attempt, err := open(t, server.URL()).Acquire(t.Context(), "r", "other", time.Minute); err != nil || attempt.Holder != lockclient.HolderOf("me") {
		t.Errorf("%+v, %v", attempt, err)
	}
	for what, settings := range map[string]string{"no client certificate": "&ca=" + a.CAFile, "unknown authority": "&tls=true" + shown} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := open(t, url+settings).Acquire(ctx, "other", "me", time.Minute); err == nil {
			t.Errorf("%s: no error", what)
		}
		cancel()
	}
}

// secured are the settings of a server that wants certificates of an authority.
func secured(t *testing.T, a *authority.Authority) []string {
	t.Helper()
	pair := a.Issue(t, "zookeeper", "127.0.0.1")
	var both []byte
	for _, file := range []string{pair.KeyFile, pair.CertFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, text...)
	}
	dir := t.TempDir()
	key, trust := filepath.Join(dir, "key.pem"), filepath.Join(dir, "trust.pem")
	ca, err := os.ReadFile(a.CAFile)
	if err == nil {
		err = os.WriteFile(key, both, 0o600)
	}
	if err == nil {
		err = os.WriteFile(trust, ca, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
		"ssl.keyStore.location=" + key, "ssl.keyStore.type=PEM", "ssl.trustStore.location=" + trust, "ssl.trustStore.type=PEM",
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}
