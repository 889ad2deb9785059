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
	"github.com/wirefence/wirefence/lockclient/zookeeper"
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

func ownServer(t testing.TB, settings ...string) *servers.ZooKeeper {
	t.Helper()
	server, err := servers.StartZooKeeper(t.Context(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

func win(t testing.TB, store *zookeeper.Store, resource fence.Resource, holder string, ttl time.Duration) fence.Token {
	t.Helper()
	attempt, err := store.Acquire(t.Context(), resource, holder, ttl)
	if err != nil || !attempt.Won() {
		t.Fatalf("%s: %+v, %v", holder, attempt, err)
	}
	return attempt.Token
}

func release(t testing.TB, store *zookeeper.Store, resource fence.Resource, holder string) {
	t.Helper()
	if held, err := store.Release(t.Context(), resource, holder); !held || err != nil {
		t.Fatal(held, err)
	}
}

func TestNodes(t *testing.T) {
	store, conn := open(t, shared.URL()), direct(t, shared)
	for resource, path := range map[fence.Resource]string{
		"orders": "/wirefence/orders", "report:acme/17 %": "/wirefence/report:acme%2F17%20%25",
		".": "/wirefence/%2E", "..": "/wirefence/%2E%2E", "/": "/wirefence/%2F",
	} {
		for want := range 3 {
			if token := win(t, store, resource, "me", 90*time.Second); token != fence.Token(want+1) {
				t.Errorf("%s: token %d", path, token)
			}
		}
		if counter, stat, err := conn.Get(path); err != nil || string(counter) != "3" || stat.EphemeralOwner != 0 {
			t.Errorf("%s: %s, %+v, %v", path, counter, stat, err)
		}
		if lease, stat, err := conn.Get(path + "/lease"); err != nil || string(lease) != "1m30s me" || stat.EphemeralOwner == 0 {
			t.Errorf("%s/lease: %s, %+v, %v", path, lease, stat, err)
		}
	}
}

func TestUnusableCounterLeavesNoLease(t *testing.T) {
	store, conn := open(t, shared.URL()), direct(t, shared)
	for i, counter := range []string{"x", "1.5", "", " 1", "9223372036854775807", "9223372036854775808", "-9"} {
		resource := fence.Resource(fmt.Sprint("counter", i))
		win(t, store, resource, "first", time.Minute)
		release(t, store, resource, "first")
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
	win(t, store, "changes", "me", time.Minute)
	if err := open(t, shared.URL()).Raise(ctx, "changes", 41); err != nil {
		t.Fatal(err)
	}
	if held, err := store.Renew(ctx, "changes", "me", time.Minute); !held || err != nil {
		t.Errorf("after a raise: %v, %v", held, err)
	}
	if token := win(t, store, "changes", "me", time.Minute); token != 42 {
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
	win(t, store, "changes", "other", time.Minute)
	if attempt, err := store.Acquire(ctx, "changes", "me", time.Minute); err != nil || attempt.Holder != "other" {
		t.Errorf("it was lost to other: %+v, %v", attempt, err)
	}
}

// A former holder that repeats its acquire does not take the lease from its successor.
func TestAskingAgainAfterALoss(t *testing.T) {
	ctx, first, second, conn := t.Context(), open(t, shared.URL()), open(t, shared.URL()), direct(t, shared)
	win(t, first, "again", "me", time.Minute)
	if err := conn.Delete("/wirefence/again/lease", -1); err != nil {
		t.Fatal(err)
	}
	win(t, second, "again", "other", time.Minute)
	if attempt, err := first.Acquire(ctx, "again", "me", time.Minute); err != nil || attempt.Holder != "other" {
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

// A server that is restored from older data counts tokens twice, until Raise tells it the
// last token.
func TestRestoredServer(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	store := open(t, server.URL())
	win(t, store, "r", "a", time.Second)
	server.Stop()
	saved, err := server.SaveData()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := fence.Token(0)
	for i := range 10 {
		last = winInTime(t, store, "r", fmt.Sprint("later ", i))
		release(t, store, "r", fmt.Sprint("later ", i))
	}
	server.Kill()
	if err := server.RestoreData(saved); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The server lets nobody in who has seen what came later. The store begins
	// anew when its session is over.
	again := winInTime(t, store, "r", "a")
	if again > last {
		t.Fatalf("token %d after %d: the data was not older", again, last)
	}
	if err := store.Raise(t.Context(), "r", last); err != nil {
		t.Fatal(err)
	}
	if again := win(t, store, "r", "a", time.Second); again <= last {
		t.Errorf("token %d after a raise to %d", again, last)
	}
}

// winInTime tries for a lease of a second, whatever fails, for a minute.
func winInTime(t *testing.T, store *zookeeper.Store, resource fence.Resource, holder string) fence.Token {
	t.Helper()
	for start := time.Now(); ; {
		attempt, err := store.Acquire(t.Context(), resource, holder, time.Second)
		if attempt.Won() {
			return attempt.Token
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("%s: %+v, %v", holder, attempt, err)
		}
		<-time.After(10 * time.Millisecond)
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
	win(t, store, "r", "before", long)
	release(t, store, "r", "before")
	<-time.After(8 * time.Second)
	granted := time.Now()
	win(t, store, "r", "me", long)
	if err := members[1].Pause(); err != nil {
		t.Fatal(err)
	}
	if took := winWhenFree(t, other, "r", "other", granted); took < long {
		t.Errorf("a lease of %v ended after %v", long, took)
	}
}

func TestALeaseOutlivesTheLeader(t *testing.T) {
	t.Parallel()
	members := ensemble(t)
	var hosts []string
	for _, member := range members {
		hosts = append(hosts, member.Addr())
	}
	store := open(t, "zookeeper://"+strings.Join(hosts, ",")+"?tick=100ms")
	last := win(t, store, "r", "me", time.Minute)
	members[0].Kill()
	// In an election requests may fail.
	ok, err := false, error(nil)
	for start := time.Now(); !ok && time.Since(start) < time.Minute; {
		if ok, err = store.Renew(t.Context(), "r", "me", time.Minute); err == nil && !ok {
			t.Fatal("lost with the leader")
		}
	}
	if !ok {
		t.Fatalf("not renewed without the leader: %v", err)
	}
	if again := win(t, store, "r", "me", time.Minute); again != last+1 {
		t.Errorf("token %d after %d", again, last)
	}
}
