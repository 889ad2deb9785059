package zookeeper_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

// ttl of leases that a test waits out.
const ttl = 900 * time.Millisecond

// linked is a store that reaches the shared server by a network that can fail.
func linked(t *testing.T) (*zookeeper.Store, *servers.Link) {
	t.Helper()
	link := stack.Started(servers.StartLink(shared.Addr())).EndWith(t)
	store := open(t, "zookeeper://"+link.Addr()+"?tick=100ms")
	return store, link
}

// winWhenFree tries until the former holder has lost the lease, and returns how long that
// took.
func winWhenFree(t *testing.T, store *zookeeper.Store, resource, holder string, since time.Time) time.Duration {
	t.Helper()
	for time.Since(since) < time.Minute {
		attempt, err := store.Acquire(t.Context(), fence.Resource(resource), holder, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if attempt.Won() {
			return time.Since(since)
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Fatal("the lease did not end")
	return 0
}

// A holder that is cut off keeps its lease for the ttl, and cannot renew it afterwards.
func TestCutOffHolder(t *testing.T) {
	for name, fail := range map[string]func(*servers.Link){
		"reset": (*servers.Link).Cut, "silent": (*servers.Link).Hold, "deaf": (*servers.Link).HoldAnswers,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, link := linked(t)
			other := open(t, shared.URL())
			resource := "cut off " + name
			began := time.Now()
			storetest.Win(t, store, fence.Resource(resource), "me", ttl)
			fail(link)
			if took := winWhenFree(t, other, resource, "other", began); took < ttl {
				t.Errorf("the lease of %v ended after %v", ttl, took)
			}
			link.Restore()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for held, err := store.Renew(ctx, fence.Resource(resource), "me", ttl); err != nil || held; {
				if held || ctx.Err() != nil {
					t.Fatalf("a lost lease: %v, %v", held, err)
				}
				held, err = store.Renew(ctx, fence.Resource(resource), "me", ttl)
			}
			if held, err := other.Renew(t.Context(), fence.Resource(resource), "other", time.Minute); !held || err != nil {
				t.Errorf("the successor: %v, %v", held, err)
			}
			storetest.Win(t, store, fence.Resource(resource+" next"), "me", ttl) // it works again
		})
	}
}

// A connection that is lost and replaced in time changes nothing.
func TestBriefCut(t *testing.T) {
	t.Parallel()
	store, link := linked(t)
	first := storetest.Win(t, store, "brief", "me", time.Minute)
	for range 3 {
		link.Cut()
		link.Restore()
		if held, err := store.Renew(t.Context(), "brief", "me", time.Minute); !held || err != nil {
			t.Fatal(held, err)
		}
	}
	if attempt, err := open(t, shared.URL()).Acquire(t.Context(), "brief", "other", ttl); err != nil || attempt.Holder != lockclient.HolderOf("me") {
		t.Errorf("%+v, %v", attempt, err)
	}
	if again := storetest.Win(t, store, "brief", "me", time.Minute); again != first+1 {
		t.Errorf("token %d after %d", again, first)
	}
}

// An acquire whose answer was lost leaves no lease for longer than its ttl.
func TestLostAnswerOfAnAcquire(t *testing.T) {
	t.Parallel()
	store, link := linked(t)
	storetest.Win(t, store, "before", "me", ttl)
	link.HoldAnswers()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if attempt, err := store.Acquire(ctx, "unanswered", "me", ttl); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%+v, %v", attempt, err)
	}
	link.Restore()
	winWhenFree(t, open(t, shared.URL()), "unanswered", "other", began)
}

// The leases of a store that was closed last as long as those of a store that died.
func TestClosedStoreKeepsItsWord(t *testing.T) {
	t.Parallel()
	store, err := zookeeper.Open(shared.URL())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	storetest.Win(t, store, "closed", "me", ttl)
	for range 2 {
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Acquire(t.Context(), "closed", "other", ttl); err == nil {
		t.Error("a closed store acquires")
	}
	if took := winWhenFree(t, open(t, shared.URL()), "closed", "other", began); took < ttl {
		t.Errorf("the lease of %v ended after %v", ttl, took)
	}
}

// A renewal for longer than the session lasts moves the lease to another.
func TestRenewForLonger(t *testing.T) {
	t.Parallel()
	store, conn := open(t, shared.URL()), direct(t, shared)
	owner := func() int64 {
		_, stat, err := conn.Get("/wirefence/longer/lease")
		if err != nil {
			t.Fatal(err)
		}
		return stat.EphemeralOwner
	}
	storetest.Win(t, store, "longer", "me", 30*time.Second)
	first := owner()
	for _, ttl := range []time.Duration{20 * time.Second, 30 * time.Second} {
		if held, err := store.Renew(t.Context(), "longer", "me", ttl); !held || err != nil || owner() != first {
			t.Errorf("%v: %v, %v", ttl, held, err)
		}
	}
	for range 2 {
		if held, err := store.Renew(t.Context(), "longer", "me", time.Minute); !held || err != nil || owner() == first {
			t.Errorf("a minute: %v, %v", held, err)
		}
	}
	storetest.Release(t, store, "longer", "me")
}

// Another store can release a lease, but not renew it.
func TestLeaseOfAnotherStore(t *testing.T) {
	t.Parallel()
	ctx, store, other := t.Context(), open(t, shared.URL()), open(t, shared.URL())
	storetest.Win(t, store, "another's", "me", time.Minute)
	if held, err := other.Renew(ctx, "another's", "me", time.Minute); held || err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("renew: %v, %v", held, err)
	}
	if held, err := other.Renew(ctx, "another's", "you", time.Minute); held || err != nil {
		t.Errorf("renew by nobody: %v, %v", held, err)
	}
	storetest.Release(t, other, "another's", "me")
	if held, err := store.Renew(ctx, "another's", "me", time.Minute); held || err != nil {
		t.Errorf("renew after the release: %v, %v", held, err)
	}
}

// A store grants no lease if the server grants too short sessions.
func TestTTLBeyondTheLongestSession(t *testing.T) {
	t.Parallel()
	server := ownServer(t, "maxSessionTimeout=60000")
	store := open(t, server.URL())
	storetest.Win(t, store, "r", "me", 50*time.Second)
	_, err := store.Acquire(t.Context(), "other", "me", 60*time.Second)
	if err == nil || !strings.Contains(err.Error(), "maxSessionTimeout") || !strings.Contains(err.Error(), "grants 1m0s") {
		t.Error(err)
	}
	if _, err := store.Renew(t.Context(), "r", "me", 60*time.Second); err == nil {
		t.Error("renewed for longer than the session lasts")
	}
	if held, err := store.Renew(t.Context(), "r", "me", 50*time.Second); !held || err != nil {
		t.Error(held, err)
	}
}

// A store that loses its connections hears of releases and expiries again.
func TestNoticesOutliveAConnection(t *testing.T) {
	t.Parallel()
	store, link := linked(t)
	holder := open(t, shared.URL())
	storetest.Win(t, holder, "outlives", "me", time.Minute)
	notices := make(chan struct{}, 1)
	stop, err := store.Notify(t.Context(), "outlives", notices)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	storetest.AwaitNotice(t, notices) // it watches
	for range 3 {
		link.Cut()
		link.Restore()
		storetest.AwaitNotice(t, notices) // it watches again
	}
	storetest.Release(t, holder, "outlives", "me")
	storetest.AwaitNotice(t, notices)
	storetest.ExpiryIsTold(t, store)
}
