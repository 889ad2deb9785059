package lockclient_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/wirefence/wirefence/lockclient"
)

// listener is one run of a store's listener, controlled by a test.
type listener struct {
	ctx  context.Context
	ends chan struct{} // closed to let it return
}

// conducted returns notices that hand each run of their listener to the test.
func conducted(t *testing.T) (*lockclient.Notices, chan listener) {
	runs := make(chan listener, 2)
	n := lockclient.NewNotices(func(ctx context.Context, _ *lockclient.Notices) {
		l := listener{ctx, make(chan struct{})}
		runs <- l
		<-l.ends
	})
	t.Cleanup(n.Wait)
	return n, runs
}

func wantChanges(t *testing.T, n *lockclient.Notices, l listener, begin, cease []string) {
	t.Helper()
	<-n.Changed()
	gotBegin, gotCease := n.Changes(l.ctx)
	slices.Sort(gotBegin)
	slices.Sort(gotCease)
	if !slices.Equal(gotBegin, begin) || !slices.Equal(gotCease, cease) {
		t.Fatalf("begin %q, cease %q; want %q and %q", gotBegin, gotCease, begin, cease)
	}
}

func wantNotices(t *testing.T, waiters []chan struct{}, want ...bool) {
	t.Helper()
	for i, waiter := range waiters {
		if got := len(waiter) > 0; got != want[i] {
			t.Errorf("waiter %d has a notice: %v, want %v", i, got, want[i])
		}
		if len(waiter) > 0 {
			<-waiter
		}
	}
}

func TestNoticesReachTheWaitersOfTheirName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, runs := conducted(t)
		waiters := []chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)}
		a0, b1 := n.Add("a", waiters[0]), n.Add("b", waiters[1])
		l := <-runs
		wantChanges(t, n, l, []string{"a", "b"}, nil)
		wantNotices(t, waiters, false, false, false)
		n.Hears(l.ctx, "a")
		wantNotices(t, waiters, true, false, false)
		a2 := n.Add("a", waiters[2]) // hears at once: a release may have come before
		wantNotices(t, waiters, false, false, true)
		n.Wake("a")
		n.Wake("a")
		n.Wake("c")
		wantNotices(t, waiters, true, false, true)
		n.Hears(l.ctx, "a") // again, after an interruption
		wantNotices(t, waiters, true, false, true)

		a0()
		a0()
		n.Wake("a")
		wantNotices(t, waiters, false, false, true)
		a2()
		wantChanges(t, n, l, nil, []string{"a"})
		a0 = n.Add("a", waiters[0]) // not heard any more
		wantNotices(t, waiters, false, false, false)
		wantChanges(t, n, l, []string{"a"}, nil)
		a0()
		b1()
		<-l.ctx.Done()
		close(l.ends)
	})
}

func TestOneListenerFollowsTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, runs := conducted(t)
		waiters := []chan struct{}{make(chan struct{}, 1)}
		stop := n.Add("a", waiters[0])
		first := <-runs
		n.HearsAll(first.ctx)
		wantNotices(t, waiters, true)
		stop()
		<-first.ctx.Done()

		stop = n.Add("a", waiters[0]) // while the first is still about to end
		second := <-runs
		wantNotices(t, waiters, false)
		n.HearsAll(first.ctx)
		n.Hears(first.ctx, "a")
		wantNotices(t, waiters, false)
		<-n.Changed()
		if begin, cease := n.Changes(first.ctx); begin != nil || cease != nil {
			t.Errorf("the first is told to begin %q and to cease %q", begin, cease)
		}
		wantChanges(t, n, second, []string{"a"}, nil)
		n.Hears(second.ctx, "a")
		wantNotices(t, waiters, true)
		stop()
		close(first.ends)
		close(second.ends)
	})
}
