package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

func get(t testing.TB, client *clientv3.Client, key string) (value string, revision int64, lease clientv3.LeaseID) {
	t.Helper()
	read, err := client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Kvs) == 0 {
		return "", 0, 0
	}
	return string(read.Kvs[0].Value), read.Kvs[0].ModRevision, clientv3.LeaseID(read.Kvs[0].Lease)
}

func put(t testing.TB, client *clientv3.Client, key, value string) {
	t.Helper()
	if _, err := client.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

// wantLeases requires this number of etcd leases on the server.
func wantLeases(t testing.TB, client *clientv3.Client, want int) {
	t.Helper()
	leases, err := client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(leases.Leases) != want {
		t.Errorf("%d etcd leases, want %d", len(leases.Leases), want)
	}
}

func TestTheTokenIsTheRevisionOfTheKey(t *testing.T) {
	store, client := open(t, shared.URL()+"/pre/fix/"), direct(t, shared.Addr())
	const resource = fence.Resource("report:acme/17 %")
	token := storetest.Win(t, store, resource, "me", 90*time.Second)
	const key = "pre/fix/lease/report:acme/17%20%25"
	if got := store.LeaseKey(resource); got != key {
		t.Errorf("lease key %s", got)
	}
	holder, revision, lease := get(t, client, key)
	if holder != lockclient.HolderOf("me") || fence.Token(revision) != token {
		t.Errorf("%s has it with revision %d, the token is %d", holder, revision, token)
	}
	left, err := client.TimeToLive(t.Context(), lease)
	if err != nil || left.GrantedTTL != 90 {
		t.Errorf("an etcd lease of %+v, %v", left, err)
	}
	if offset, _, _ := get(t, client, store.OffsetKey(resource)); offset != "" {
		t.Errorf("offset %s", offset)
	}
	if err := store.Raise(t.Context(), resource, token+1000); err != nil {
		t.Fatal(err)
	}
	again := storetest.Win(t, store, resource, "me", 90*time.Second)
	_, revision, _ = get(t, client, key)
	offset, _, _ := get(t, client, store.OffsetKey(resource))
	if again <= token+1000 || fmt.Sprint(again-fence.Token(revision)) != offset {
		t.Errorf("token %d with revision %d and offset %s after a raise to %d", again, revision, offset, token+1000)
	}
}

// A store on the caller's own client competes with those that Open makes.
func TestAStoreOnOnesOwnClient(t *testing.T) {
	client := direct(t, shared.Addr())
	mine, theirs := etcd.New(client, "own/client"), open(t, shared.URL()+"/own/client")
	token := storetest.Win(t, mine, "r", "me", time.Minute)
	if got, err := theirs.Acquire(t.Context(), "r", "they", time.Minute); err != nil || got.Won() || got.Holder != lockclient.HolderOf("me") {
		t.Fatalf("%+v, %v", got, err)
	}
	storetest.Release(t, mine, "r", "me")
	if next := storetest.Win(t, theirs, "r", "they", time.Minute); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	if err := mine.Close(); err != nil {
		t.Fatal(err)
	}
	if client.Ctx().Err() == nil {
		t.Error("the client is open")
	}
	if _, err := mine.Acquire(t.Context(), "r", "me", time.Minute); err == nil {
		t.Error("a closed store answers")
	}
}

// Tokens continue to grow when the keys are deleted and the history is compacted.
func TestTokensOutliveTheirKeys(t *testing.T) {
	store, client := open(t, shared.URL()+"/deleted"), direct(t, shared.Addr())
	first := storetest.Win(t, store, "r", "a", time.Minute)
	deleted, err := client.Delete(t.Context(), "deleted/", clientv3.WithPrefix())
	if err != nil || deleted.Deleted == 0 {
		t.Fatal(deleted, err)
	}
	if held, err := store.Renew(t.Context(), "r", "a", time.Minute); held || err != nil {
		t.Errorf("a deleted lease was renewed: %v, %v", held, err)
	}
	if _, err := client.Compact(t.Context(), deleted.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if second := storetest.Win(t, store, "r", "b", time.Minute); second <= first {
		t.Errorf("token %d after %d", second, first)
	}
}

func TestUnusableOffsetLeavesNoLease(t *testing.T) {
	server := ownServer(t)
	store, client := open(t, server.URL()), direct(t, server.Addr())
	for i, offset := range []string{"x", "1.5", "", " 1", "9223372036854775807", "9223372036854775808", "-9"} {
		resource := fence.Resource(fmt.Sprint("offset ", i))
		put(t, client, store.OffsetKey(resource), offset)
		_, err := store.Acquire(t.Context(), resource, "me", time.Minute)
		if !errors.Is(err, lockclient.ErrCounter) {
			t.Errorf("offset %q: %v", offset, err)
			continue
		}
		for _, want := range []string{server.Addr(), store.OffsetKey(resource)} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("offset %q: %q does not name %s", offset, err, want)
			}
		}
		if holder, _, _ := get(t, client, store.LeaseKey(resource)); holder != "" {
			t.Errorf("offset %q: %s is left", offset, holder)
		}
	}
	wantLeases(t, client, 0)
	put(t, client, store.OffsetKey("raised"), "four")
	if err := store.Raise(t.Context(), "raised", 4); !errors.Is(err, lockclient.ErrCounter) {
		t.Error(err)
	}
}

// A renewal for longer than the etcd lease lasts moves the key to another.
func TestRenewForLonger(t *testing.T) {
	server := ownServer(t)
	store, client := open(t, server.URL()), direct(t, server.Addr())
	storetest.Win(t, store, "r", "me", 10*time.Second)
	for _, ttl := range []time.Duration{10 * time.Second, 5 * time.Second, time.Minute, 90 * time.Second} {
		if held, err := store.Renew(t.Context(), "r", "me", ttl); !held || err != nil {
			t.Fatal(held, err)
		}
		_, _, lease := get(t, client, store.LeaseKey("r"))
		left, err := client.TimeToLive(t.Context(), lease)
		if err != nil || left.GrantedTTL < int64(ttl/time.Second) {
			t.Errorf("renewed for %v: %+v, %v", ttl, left, err)
		}
	}
	if held, err := store.Release(t.Context(), "r", "me"); !held || err != nil {
		t.Fatal(held, err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	wantLeases(t, client, 0)
}

// Acquires leave no etcd lease except that of the holder, however they end.
func TestNoEtcdLeaseIsLeftBehind(t *testing.T) {
	server := ownServer(t)
	client := direct(t, server.Addr())
	store, err := etcd.Open(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	contend(t, store)
	storetest.Win(t, store, "repeated", "me", time.Minute)
	storetest.Win(t, store, "repeated", "me", time.Minute)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	wantLeases(t, client, 2)
	if _, err := store.Acquire(t.Context(), "r", "me", time.Minute); err == nil {
		t.Error("a closed store acquires")
	}
}

// contend makes 20 clients acquire one resource at the same time.
func contend(t *testing.T, store *etcd.Store) {
	t.Helper()
	errs := make(chan error)
	for i := range 20 {
		go func() {
			_, err := store.Acquire(t.Context(), "contended", fmt.Sprint("holder ", i), time.Minute)
			errs <- err
		}()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestExpiryIsTold(t *testing.T) { storetest.ExpiryIsTold(t, open(t, shared.URL())) }
