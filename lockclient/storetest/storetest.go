// Package storetest is the suite that every lease store passes.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// long is a ttl that does not end during a test, short is one whose end a test awaits.
const (
	long  = time.Minute
	short = 300 * time.Millisecond
)

// Run runs the suite. Every store that open returns must use the same data, and resources
// with the suite's names must be unused.
func Run(t *testing.T, open func(t testing.TB) lockclient.Store) {
	s := suite{open}
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"held by another", s.heldByAnother},
		{"acquire repeated by the holder", s.acquireRepeated},
		{"renew", s.renew},
		{"renew with another ttl", s.renewOtherwise},
		{"keep", s.keep},
		{"release", s.release},
		{"a lease expires", s.expires},
		{"raise", s.raise},
		{"the last token", s.lastToken},
		{"resources are apart", s.resourcesApart},
		{"one of many wins", s.oneWins},
		{"tokens are unique", s.tokensUnique},
		{"an ended context", s.endedContext},
		{"notices", s.notices},
		{"a look", s.look},
		{"a count", s.count},
		{"a hundred waiters", s.hundredWaiters},
		{"model", s.model},
	} {
		t.Run(c.name, c.test)
	}
}

type suite struct {
	open func(t testing.TB) lockclient.Store
}

// session is a store and a resource of its own.
type session struct {
	testing.TB
	store    lockclient.Store
	ctx      context.Context
	resource fence.Resource
}

var sessions atomic.Int64

func (s suite) session(t testing.TB) session {
	resource := fence.Resource(fmt.Sprintf("storetest %d %s", sessions.Add(1), t.Name()))
	return session{t, s.open(t), context.Background(), resource}
}

func (s session) acquire(holder string, ttl time.Duration) lockclient.Attempt {
	s.Helper()
	attempt, err := s.store.Acquire(s.ctx, s.resource, holder, ttl)
	if err != nil {
		s.Fatal(err)
	}
	return attempt
}

func (s session) win(holder string, ttl time.Duration) fence.Token {
	s.Helper()
	attempt := s.acquire(holder, ttl)
	if !attempt.Won() {
		s.Fatalf("%s did not win: %+v", holder, attempt)
	}
	return attempt.Token
}

func (s session) wantHeld(holder string) lockclient.Attempt {
	s.Helper()
	attempt := s.acquire("wantHeld", long)
	if attempt.Won() || attempt.Holder != lockclient.HolderOf(holder) {
		s.Fatalf("want held by %s, got %+v", holder, attempt)
	}
	return attempt
}

func (s session) wantRenew(holder string, want bool) {
	s.Helper()
	held, err := s.store.Renew(s.ctx, s.resource, holder, long)
	if err != nil || held != want {
		s.Fatalf("renew by %s: %v, %v, want %v", holder, held, err, want)
	}
}

func (s session) wantRelease(holder string, want bool) {
	s.Helper()
	held, err := s.store.Release(s.ctx, s.resource, holder)
	if err != nil || held != want {
		s.Fatalf("release by %s: %v, %v, want %v", holder, held, err, want)
	}
}

// winAfterExpiry tries until another's lease has expired.
func (s session) winAfterExpiry(holder string) fence.Token {
	s.Helper()
	for start := time.Now(); time.Since(start) < 10*time.Second; {
		attempt := s.acquire(holder, long)
		if attempt.Won() {
			return attempt.Token
		}
		<-time.After(attempt.Remaining + time.Millisecond)
	}
	s.Fatalf("the lease did not expire")
	return 0
}

func (s suite) heldByAnother(t *testing.T) {
	x := s.session(t)
	x.win("a", long)
	attempt := x.wantHeld("a")
	if attempt.Remaining < 0 || attempt.Remaining > long {
		t.Errorf("remaining %v of %v", attempt.Remaining, long)
	}
	x.wantRenew("a", true)
}

func (s suite) acquireRepeated(t *testing.T) {
	x := s.session(t)
	first := x.win("a", long/2)
	if again := x.win("a", long); again <= first {
		t.Errorf("token %d after %d", again, first)
	}
	if attempt := x.wantHeld("a"); attempt.Remaining != 0 && attempt.Remaining <= long/2 {
		t.Errorf("the ttl did not start again: %v left", attempt.Remaining)
	}
}

func (s suite) renew(t *testing.T) {
	x := s.session(t)
	x.wantRenew("a", false)
	x.win("a", time.Second)
	x.wantRenew("a", true)
	if attempt := x.wantHeld("a"); attempt.Remaining != 0 && attempt.Remaining <= time.Second {
		t.Errorf("the ttl did not start again: %v left", attempt.Remaining)
	}
	x.wantRenew("b", false)
	x.wantRelease("a", true)
	x.wantRenew("a", false)
	x.win("b", long)
	x.wantRenew("a", false)
	x.wantHeld("b")
}

func (s suite) release(t *testing.T) {
	x := s.session(t)
	x.wantRelease("a", false)
	x.win("a", long)
	x.wantRelease("b", false)
	seen := x.wantHeld("a").Holder // others learn this; it doesn't do for the id
	x.wantRenew(seen, false)
	x.wantRelease(seen, false)
	x.wantHeld("a")
	x.wantRelease("a", true)
	x.wantRelease("a", false)
	x.win("b", long)
	x.wantRelease("a", false)
	x.wantHeld("b")
}

func (s suite) expires(t *testing.T) {
	x := s.session(t)
	before := time.Now()
	first := x.win("a", short)
	second := x.winAfterExpiry("b")
	if elapsed := time.Since(before); elapsed < short {
		t.Errorf("a lease of %v expired after %v", short, elapsed)
	}
	if second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	x.wantRenew("a", false)
	x.wantRelease("a", false)
	x.wantHeld("b")
}

func (s suite) raise(t *testing.T) {
	x := s.session(t)
	raise := func(token fence.Token) {
		t.Helper()
		if err := x.store.Raise(x.ctx, x.resource, token); err != nil {
			t.Fatal(err)
		}
	}
	last := fence.Token(0)
	for i, token := range []fence.Token{1, 7, 7, 99, 100, 1 << 53, 1<<53 + 1, 1<<62 + 1, math.MaxInt64 - 100} {
		raise(token)
		raise(3) // never lowers
		holder := fmt.Sprint("holder", i)
		won := x.win(holder, long)
		if won <= token || won <= last {
			t.Fatalf("token %d after %d and a raise to %d", won, last, token)
		}
		last = won
		raise(5)
		x.wantHeld(holder)
		x.wantRelease(holder, true)
	}
}

func (s suite) lastToken(t *testing.T) {
	x := s.session(t)
	if err := x.store.Raise(x.ctx, x.resource, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		attempt, err := x.store.Acquire(x.ctx, x.resource, "a", long)
		if !errors.Is(err, lockclient.ErrCounter) || !lockclient.Permanent(err) || attempt.Won() {
			t.Fatalf("beyond the last token: %+v, %v", attempt, err)
		}
	}
	x.wantRenew("a", false)
}

func (s suite) resourcesApart(t *testing.T) {
	x := s.session(t)
	base := string(x.resource)
	for _, name := range []string{
		"{a}", "{", "}", "{}:lease", "a}{b", "ä ö €", "%7B", "*?[x]", "quote'\"", "line\nfeed", "a", "A",
		strings.Repeat("€", (fence.MaxResourceBytes-len(base))/3),
	} {
		x.resource = fence.Resource(base + name)
		x.win("holder "+name, long)
		x.wantHeld("holder " + name)
	}
}

func (s suite) oneWins(t *testing.T) {
	x := s.session(t)
	var wins atomic.Int64
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			attempt, err := x.store.Acquire(x.ctx, x.resource, fmt.Sprint("holder", i), long)
			if err != nil {
				t.Error(err)
			}
			if attempt.Won() {
				wins.Add(1)
			}
		})
	}
	all.Wait()
	if wins.Load() != 1 {
		t.Errorf("%d winners", wins.Load())
	}
}

func (s suite) tokensUnique(t *testing.T) {
	x := s.session(t)
	var mu sync.Mutex
	seen := map[fence.Token]string{}
	var all sync.WaitGroup
	for i := range 4 {
		store := s.open(t)
		all.Go(func() {
			for n := range 25 {
				holder := fmt.Sprintf("holder %d.%d", i, n)
				attempt, err := store.Acquire(x.ctx, x.resource, holder, long)
				if err != nil {
					t.Error(err)
				}
				if !attempt.Won() {
					continue
				}
				mu.Lock()
				if other, twice := seen[attempt.Token]; twice {
					t.Errorf("token %d for %s and %s", attempt.Token, other, holder)
				}
				seen[attempt.Token] = holder
				mu.Unlock()
				if held, err := store.Release(x.ctx, x.resource, holder); !held || err != nil {
					t.Error(held, err)
				}
			}
		})
	}
	all.Wait()
}

func (s suite) endedContext(t *testing.T) {
	x := s.session(t)
	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	if attempt, err := x.store.Acquire(ctx, x.resource, "a", long); !errors.Is(err, context.Canceled) || attempt.Won() {
		t.Errorf("acquire: %+v, %v", attempt, err)
	}
	if held, err := x.store.Renew(ctx, x.resource, "a", long); !errors.Is(err, context.Canceled) || held {
		t.Errorf("renew: %v, %v", held, err)
	}
	if held, err := x.store.Release(ctx, x.resource, "a"); !errors.Is(err, context.Canceled) || held {
		t.Errorf("release: %v, %v", held, err)
	}
	if err := x.store.Raise(ctx, x.resource, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("raise: %v", err)
	}
}

// notices checks a store that can tell of releases.
func (s suite) notices(t *testing.T) {
	x := s.session(t)
	notifier, ok := x.store.(lockclient.Notifier)
	if !ok {
		return
	}
	x.win("a", long)
	released := make(chan struct{}, 1)
	stop, err := notifier.Notify(x.ctx, x.resource, released)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	wantNotice := func(what string) {
		t.Helper()
		select {
		case <-released:
		case <-time.After(10 * time.Second):
			t.Fatalf("no notice when %s", what)
		}
	}
	wantNotice("it began to listen")
	x.wantRelease("a", true)
	wantNotice("a released")
	x.win("b", long)
	x.wantRelease("b", true)
	wantNotice("b released")
	stop()
	stop()
}
