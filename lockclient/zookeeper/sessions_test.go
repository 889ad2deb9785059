package zookeeper_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

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
