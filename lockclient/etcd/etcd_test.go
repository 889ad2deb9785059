package etcd_test

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/migrations"
)

// shared is the server of the tests that do not harm it.
var shared *servers.Etcd

func TestMain(m *testing.M) {
	os.Exit(storetest.Main(m, func(ctx context.Context) (err error) {
		shared, err = servers.StartEtcd(ctx)
		return err
	}, func() { shared.Close() }, func() error { return goleak.Find() }))
}

func open(t testing.TB, url string) *etcd.Store { return storetest.Open(t, etcd.Open, url) }

func ownServer(t testing.TB, args ...string) *servers.Etcd {
	return stack.Started(servers.StartEtcd(t.Context(), args...)).EndWith(t)
}

func direct(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) lockclient.Store { return open(t, shared.URL()) })
}

func migrated(t *testing.T) *pgx.Conn {
	t.Helper()
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	conn := stack.Connect(t, server.URL("postgres"))
	if err := migrations.Apply(t.Context(), conn, nil); err != nil {
		t.Fatal(err)
	}
	return conn
}

func newSession(t *testing.T) *concurrency.Session {
	t.Helper()
	session, err := concurrency.NewSession(direct(t, shared.Addr()), concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() }) // its lease may be gone already
	return session
}

// borrow acquires a lock by the API of etcd and makes a fence of its revision, as
// docs/reference/sources.md says.
func borrow(ctx context.Context, session *concurrency.Session) (fence.Fence, error) {
	mutex := concurrency.NewMutex(session, "/locks/orders")
	if err := mutex.Lock(ctx); err != nil {
		return fence.Fence{}, err
	}
	return fence.New(fence.Pair{Resource: "orders", Token: fence.Token(mutex.Header().Revision), Source: "etcd-revision"})
}

// The revision at which a lock of etcd was won is a token: a holder that lost the lock
// without noticing is refused, and so is a holder of a lock of another service.
func TestTheRevisionOfAMutexIsAToken(t *testing.T) {
	conn, client, session := migrated(t), direct(t, shared.Addr()), newSession(t)
	stale, err := borrow(t.Context(), session)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), stale.Check()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		rival := newSession(t)
		var current fence.Fence
		won := make(chan error)
		go func() {
			var err error
			current, err = borrow(t.Context(), rival)
			won <- err
		}()
		if _, err := client.Revoke(t.Context(), session.Lease()); err != nil { // as etcd does at its expiry
			t.Fatal(err)
		}
		if err := <-won; err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), current.Check()); err != nil {
			t.Error(err)
		}
		if _, err := conn.Exec(t.Context(), stale.Check()); !fence.IsStale(err) {
			t.Errorf("%v after %v: %v", stale, current, err)
		}
		session, stale = rival, current
	}
	other, err := fence.New(fence.Pair{Resource: "orders", Token: 1 << 40, Source: "redisson"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), other.Check()); !fence.IsUnknown(err) {
		t.Errorf("another service's token: %v", err)
	}
}

func TestErrorsNameTheServerNotThePassword(t *testing.T) {
	ctx := t.Context()
	server := ownServer(t)
	client := direct(t, server.Addr())
	_, err := client.UserAdd(ctx, "root", "open-sesame")
	if err == nil {
		_, err = client.UserGrantRole(ctx, "root", "root")
	}
	if err == nil {
		_, err = client.AuthEnable(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = open(t, server.URL()).Acquire(ctx, "r", "me", time.Minute)
	storetest.WantError(t, "no password", err, server.Addr(), true)
	_, err = open(t, "etcd://root:sesame-street@"+server.Addr()).Acquire(ctx, "r", "me", time.Minute)
	storetest.WantError(t, "wrong password", err, server.Addr(), true)
	store := open(t, "etcd://root:open-sesame@"+server.Addr())
	storetest.Win(t, store, "r", "me", time.Minute)
	if held, err := store.Renew(ctx, "r", "me", time.Minute); !held || err != nil {
		t.Fatal(held, err)
	}
	server.Kill()
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	storetest.WantErrorsOfDeadServer(t, ctx, store, server.Addr())
}

func TestOpenHidesABadURL(t *testing.T) {
	for _, url := range []string{"etcd://u:open-sesame@host:port", "http://u:open-sesame@host", "etcd://u:open-sesame@host?nothing=1", "etcd://u:open-sesame@host?ca=/none"} {
		if _, err := etcd.Open(url); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestADeadlineEndsACallToAPausedServer(t *testing.T) {
	server := ownServer(t)
	storetest.ADeadlineEndsACall(t, open(t, server.URL()), server)
}

func TestTLS(t *testing.T) {
	a := authority.New(t)
	pair, mine := a.Issue(t, "etcd", "127.0.0.1"), a.Issue(t, "me")
	server := ownServer(t, "--cert-file="+pair.CertFile, "--key-file="+pair.KeyFile, "--client-cert-auth", "--trusted-ca-file="+a.CAFile)
	shown := "&cert=" + mine.CertFile + "&key=" + mine.KeyFile
	storetest.Win(t, open(t, server.URL()+"?ca="+a.CAFile+shown), "r", "me", time.Minute)
	for what, settings := range map[string]string{
		"no TLS": "", "no client certificate": "?ca=" + a.CAFile, "unknown authority": "?tls=true" + shown,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		if _, err := open(t, server.URL()+settings).Acquire(ctx, "other", "me", time.Minute); err == nil {
			t.Errorf("%s: no error", what)
		}
		cancel()
	}
}

// A client soon finds a server that was away for long: its pauses between tries are
// bounded.
func TestConnectsAgainSoon(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	store := open(t, "etcd://"+listener.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() { _, _ = store.Renew(ctx, "r", "me", time.Minute) })
	go func() {
		<-ctx.Done()
		_ = listener.Close()
	}()
	for tries := range 8 {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatalf("after %d tries: %v", tries, err)
		}
		_ = conn.Close()
	}
	cancel()
}
