package adopt

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wirefence/wirefence/fence"
)

func lease(resource string, token int64, until time.Time) Lease {
	return Lease{Resource: fence.Resource(resource), Token: fence.Token(token), From: "redis:" + resource, Until: until}
}

func wantFence(t *testing.T, b *Book, want string) {
	t.Helper()
	if got := b.Fence(); got != want {
		t.Errorf("fence %q, want %q", got, want)
	}
}

func TestBookMergesWhatIsHeldNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Book
		wantFence(t, &b, "")
		if !b.Begin(lease("b", 2, time.Now().Add(time.Second))) || !b.Begin(lease("a", 7, time.Time{})) {
			t.Fatal("a lease didn't begin")
		}
		wantFence(t, &b, "a=7,b=2")
		time.Sleep(time.Second)
		wantFence(t, &b, "a=7")
		if b.Extend("b", 2, time.Now().Add(time.Hour)) {
			t.Error("a lease was extended behind its end")
		}
		if b.Leases()[1].Ended != Expired {
			t.Errorf("leases %+v", b.Leases())
		}
		if !b.Begin(lease("b", 3, time.Now().Add(time.Second))) || !b.Extend("b", 3, time.Now().Add(time.Minute)) {
			t.Error("the next grant didn't begin, or wasn't extended")
		}
		time.Sleep(30 * time.Second)
		wantFence(t, &b, "a=7,b=3")
		if b.End("b", 2, "late") || !b.End("b", 3, "released") || b.End("b", 3, "again") || b.Holds("b", 3) || !b.Holds("a", 7) {
			t.Error("End judged another token, or twice")
		}
		wantFence(t, &b, "a=7")
		if b.Leases()[1].Ended != "released" {
			t.Errorf("leases %+v", b.Leases())
		}
	})
}

func TestBookTakesNoOlderTokenAndNothingThatIsOver(t *testing.T) {
	t.Parallel()
	var b Book
	if !b.Begin(lease("a", 7, time.Time{})) || b.Begin(lease("a", 6, time.Time{})) || b.Begin(lease("b", 1, time.Now())) {
		t.Error("a lease began that must not, or one didn't")
	}
	l := lease("a", 9, time.Time{})
	l.Source = "redis-lock"
	b.Begin(l)
	wantFence(t, &b, "a=9@redis-lock")
}

// A reason for which no lease begins is recorded, unless one is held.
func TestBookRecordsRefusals(t *testing.T) {
	t.Parallel()
	var b Book
	b.Refuse(lease("a", 0, time.Time{}), "no")
	if l := b.Leases()[0]; l.Ended != "no" || !b.Begin(lease("a", 7, time.Time{})) {
		t.Errorf("leases %+v", b.Leases())
	}
	b.Refuse(lease("a", 0, time.Time{}), "no")
	wantFence(t, &b, "a=7")
	b.End("a", 7, "released")
	b.Refuse(lease("a", 0, time.Time{}), "no")
	if l := b.Leases()[0]; l.Ended != "no" || l.Token != 7 || b.Begin(lease("a", 6, time.Time{})) {
		t.Errorf("leases %+v", b.Leases())
	}
}

// A change is announced, the passing of a lease's time too.
func TestBookAnnounces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b Book
		began := b.Changed()
		b.Begin(lease("a", 1, time.Now().Add(time.Minute)))
		<-began
		start, expired := time.Now(), b.Changed()
		<-expired
		if after := time.Since(start); after != time.Minute {
			t.Errorf("announced after %v", after)
		}
		wantFence(t, &b, "")
	})
}

func TestBookIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var b Book
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		all.Go(func() {
			for i := range int64(200) {
				b.Begin(lease(name, i+1, time.Now().Add(time.Minute)))
				if b.Fence() == "" {
					t.Error("no fence")
				}
				b.End(fence.Resource(name), fence.Token(i), "")
			}
		})
	}
	all.Wait()
	wantFence(t, &b, "a=200,b=200,c=200")
}
