package storetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Open opens a store that is closed with the test.
func Open[S lockclient.StoreCloser](t testing.TB, open func(url string) (S, error), url string) S {
	t.Helper()
	store, err := open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// Win acquires a lease that is free.
func Win(t testing.TB, store lockclient.Store, resource fence.Resource, holder string, ttl time.Duration) fence.Token {
	t.Helper()
	attempt, err := store.Acquire(t.Context(), resource, holder, ttl)
	if err != nil || !attempt.Won() {
		t.Fatalf("%s: %+v, %v", holder, attempt, err)
	}
	return attempt.Token
}

// WinInTime tries for a lease, whatever fails, for a minute.
func WinInTime(t testing.TB, store lockclient.Store, resource fence.Resource, holder string, ttl time.Duration) fence.Token {
	t.Helper()
	for start := time.Now(); ; <-time.After(10 * time.Millisecond) {
		attempt, err := store.Acquire(t.Context(), resource, holder, ttl)
		if attempt.Won() {
			return attempt.Token
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("%s: %+v, %v", holder, attempt, err)
		}
	}
}

// Release releases a lease that is held.
func Release(t testing.TB, store lockclient.Store, resource fence.Resource, holder string) {
	t.Helper()
	if held, err := store.Release(t.Context(), resource, holder); !held || err != nil {
		t.Fatal(held, err)
	}
}

// AwaitNotice waits for a notice.
func AwaitNotice(t testing.TB, notices <-chan struct{}) {
	t.Helper()
	select {
	case <-notices:
	case <-time.After(30 * time.Second):
		t.Fatal("no notice")
	}
}

// ExpiryIsTold checks that an expired lease wakes waiters as a released one does.
func ExpiryIsTold(t testing.TB, store interface {
	lockclient.Store
	lockclient.Notifier
}) {
	t.Helper()
	notices := make(chan struct{}, 1)
	stop, err := store.Notify(t.Context(), "expires", notices)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	AwaitNotice(t, notices) // it watches
	Win(t, store, "expires", "me", time.Millisecond)
	AwaitNotice(t, notices)
	Win(t, store, "expires", "other", time.Minute)
}

// WantError requires an error that names the server and not the password, which has "sesame"
// in it, and that tells whether it passes by waiting.
func WantError(t testing.TB, what string, err error, addr string, permanent bool) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error", what)
	}
	if lockclient.Permanent(err) != permanent {
		t.Errorf("%s: permanent is not %v: %v", what, permanent, err)
	}
	if !strings.Contains(err.Error(), addr) || strings.Contains(err.Error(), "sesame") {
		t.Errorf("%s: %v", what, err)
	}
}

// WantErrorsOfDeadServer requires such errors of all calls to a server that is down.
func WantErrorsOfDeadServer(t testing.TB, ctx context.Context, store lockclient.Store, addr string) {
	t.Helper()
	_, err := store.Acquire(ctx, "r", "other", time.Minute)
	WantError(t, "acquire", err, addr, false)
	_, err = store.Renew(ctx, "r", "me", time.Minute)
	WantError(t, "renew", err, addr, false)
	_, err = store.Release(ctx, "r", "me")
	WantError(t, "release", err, addr, false)
	WantError(t, "raise", store.Raise(ctx, "r", 5), addr, false)
}
