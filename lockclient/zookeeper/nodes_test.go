package zookeeper_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// direct is a session of the test itself.
func direct(t testing.TB, server *servers.ZooKeeper) *zk.Conn {
	t.Helper()
	conn, events, err := zk.Connect([]string{server.Addr()}, time.Minute, zk.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		for range events { // it is closed when the driver has ended
		}
	})
	return conn
}

func TestNodes(t *testing.T) {
	store, conn := open(t, shared.URL()), direct(t, shared)
	for resource, path := range map[fence.Resource]string{
		"orders": "/wirefence/orders", "report:acme/17 %": "/wirefence/report:acme%2F17%20%25",
		".": "/wirefence/%2E", "..": "/wirefence/%2E%2E", "/": "/wirefence/%2F",
	} {
		for want := range 3 {
			if token := storetest.Win(t, store, resource, "me", 90*time.Second); token != fence.Token(want+1) {
				t.Errorf("%s: token %d", path, token)
			}
		}
		if counter, stat, err := conn.Get(path); err != nil || string(counter) != "3" || stat.EphemeralOwner != 0 {
			t.Errorf("%s: %s, %+v, %v", path, counter, stat, err)
		}
		if lease, stat, err := conn.Get(path + "/lease"); err != nil || string(lease) != "1m30s "+lockclient.HolderOf("me") || stat.EphemeralOwner == 0 {
			t.Errorf("%s/lease: %s, %+v, %v", path, lease, stat, err)
		}
	}
}

func TestUnusableCounterLeavesNoLease(t *testing.T) {
	store, conn := open(t, shared.URL()), direct(t, shared)
	for i, counter := range []string{"x", "1.5", "", " 1", "9223372036854775807", "9223372036854775808", "-9"} {
		resource := fence.Resource(fmt.Sprint("counter", i))
		storetest.Win(t, store, resource, "first", time.Minute)
		storetest.Release(t, store, resource, "first")
		if _, err := conn.Set(store.Path(resource), []byte(counter), -1); err != nil {
			t.Fatal(err)
		}
		_, err := store.Acquire(t.Context(), resource, "me", time.Minute)
		if !errors.Is(err, lockclient.ErrCounter) {
			t.Errorf("counter %q: %v", counter, err)
			continue
		}
		for _, want := range []string{shared.Addr(), store.Path(resource)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("counter %q: %q does not name %s", counter, err, want)
			}
		}
		if held, _, err := conn.Exists(store.Path(resource) + "/lease"); held || err != nil {
			t.Errorf("counter %q: a lease is left, %v", counter, err)
		}
		if err := store.Raise(t.Context(), resource, 5); counter == "x" && !errors.Is(err, lockclient.ErrCounter) {
			t.Errorf("counter %q was raised: %v", counter, err)
		}
	}
}

// The counter may be raised, or deleted with all other nodes, while a lease is held.
func TestChangesUnderALease(t *testing.T) {
	ctx, store, conn := t.Context(), open(t, shared.URL()), direct(t, shared)
	storetest.Win(t, store, "changes", "me", time.Minute)
	if err := open(t, shared.URL()).Raise(ctx, "changes", 41); err != nil {
		t.Fatal(err)
	}
	if held, err := store.Renew(ctx, "changes", "me", time.Minute); !held || err != nil {
		t.Errorf("after a raise: %v, %v", held, err)
	}
	if token := storetest.Win(t, store, "changes", "me", time.Minute); token != 42 {
		t.Errorf("token %d after a raise to 41", token)
	}
	for _, path := range []string{"/wirefence/changes/lease", "/wirefence/changes"} {
		if err := conn.Delete(path, -1); err != nil {
			t.Fatal(err)
		}
	}
	if held, err := store.Renew(ctx, "changes", "me", time.Minute); held || err != nil {
		t.Errorf("a deleted lease was renewed: %v, %v", held, err)
	}
	storetest.Win(t, store, "changes", "other", time.Minute)
	if attempt, err := store.Acquire(ctx, "changes", "me", time.Minute); err != nil || attempt.Holder != lockclient.HolderOf("other") {
		t.Errorf("it was lost to other: %+v, %v", attempt, err)
	}
}

// A former holder that repeats its acquire does not take the lease from its successor.
func TestAskingAgainAfterALoss(t *testing.T) {
	ctx, first, second, conn := t.Context(), open(t, shared.URL()), open(t, shared.URL()), direct(t, shared)
	storetest.Win(t, first, "again", "me", time.Minute)
	if err := conn.Delete("/wirefence/again/lease", -1); err != nil {
		t.Fatal(err)
	}
	storetest.Win(t, second, "again", "other", time.Minute)
	if attempt, err := first.Acquire(ctx, "again", "me", time.Minute); err != nil || attempt.Holder != lockclient.HolderOf("other") {
		t.Errorf("acquire: %+v, %v", attempt, err)
	}
	if held, err := first.Renew(ctx, "again", "me", time.Minute); held || err != nil {
		t.Errorf("renew: %v, %v", held, err)
	}
	if held, err := first.Release(ctx, "again", "me"); held || err != nil {
		t.Errorf("release: %v, %v", held, err)
	}
	if held, err := second.Renew(ctx, "again", "other", time.Minute); !held || err != nil {
		t.Errorf("renew by the successor: %v, %v", held, err)
	}
}

// ensemble starts three members, of which the first is the leader.
func ensemble(t *testing.T, settings ...string) []*servers.ZooKeeper {
	t.Helper()
	members, err := servers.StartZooKeeperEnsemble(t.Context(), 3, settings...)
	if err != nil {
		t.Fatal(err)
	}
	for i, member := range members {
		t.Cleanup(member.Close)
		if member.Mode(t.Context()) == "leader" {
			members[0], members[i] = member, members[0]
		}
	}
	if members[0].Mode(t.Context()) != "leader" {
		t.Fatal("no leader")
	}
	return members
}

// A member that is cut off from the leader together with its client, right after a grant,
// cannot report that the session lives, although the session had no lease for long.
func TestALeaseOfAnIdleSessionOutlivesItsMember(t *testing.T) {
	t.Parallel()
	members := ensemble(t, "tickTime=2000")
	other, store := open(t, "zookeeper://"+members[0].Addr()), open(t, "zookeeper://"+members[1].Addr()+"?tick=4s")
	const long = 22 * time.Second // in a session of 26 s, for which the driver pings each 8.7 s
	storetest.Win(t, store, "r", "before", long)
	storetest.Release(t, store, "r", "before")
	<-time.After(8 * time.Second)
	granted := time.Now()
	storetest.Win(t, store, "r", "me", long)
	if err := members[1].Pause(); err != nil {
		t.Fatal(err)
	}
	if took := winWhenFree(t, other, "r", "other", granted); took < long {
		t.Errorf("a lease of %v ended after %v", long, took)
	}
}
