package etcd_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

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
