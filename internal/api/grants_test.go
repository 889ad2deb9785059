package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

func TestALeaseFromAcquireToRelease(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		first := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":30}`).want(200, "")
		id := first.string("grant_id")
		if first.fields["sealed"] != true {
			t.Errorf("not said to be sealed: %s", first.text)
		}
		if first.string("resource") != name || first.string("holder") != "worker-a" || !strings.HasPrefix(id, "worker-a/") ||
			first.string("fence") != fmt.Sprintf("%s=%.0f", fence.Resource(name).Encode(), first.number("token")) {
			t.Errorf("granted %s", first.text)
		}
		if in, after := first.number("expires_in_seconds"), first.number("renew_after_seconds"); in < 20 || in > 30.5 || after > in-19 || after < 9 {
			t.Errorf("expires in %v, renew after %v", in, after)
		}
		conn := w.admin(t)
		if err := checkFence(t, conn, first); err != nil {
			t.Errorf("the token is refused: %v", err)
		}

		held := w.post(t, path(name, "acquire"), `{"holder":"worker-b"}`).want(409, "lease-held")
		if held.string("held_by") != lockclient.HolderOf(id) || held.number("held_for_seconds") <= 0 || held.number("held_for_seconds") > 30 {
			t.Errorf("held: %s", held.text)
		}
		renewed := w.post(t, path(name, "renew"), `{"grant_id":"`+id+`","ttl_seconds":60}`).want(200, "")
		if in := renewed.number("expires_in_seconds"); in < 59.9 || in > 65 || renewed.number("ttl_seconds") != 60 {
			t.Errorf("renewed: %s", renewed.text)
		}
		if held := w.post(t, path(name, "acquire"), `{"holder":"worker-b"}`).want(409, "lease-held"); held.number("held_for_seconds") < 31 {
			t.Errorf("not renewed in the store: %s", held.text)
		}
		w.post(t, path(name, "renew"), `{"grant_id":"worker-b/none"}`).want(409, "lease-lost")

		for _, want := range []bool{true, false} {
			if released := w.post(t, path(name, "release"), `{"grant_id":"`+id+`"}`).want(200, ""); released.fields["was_held"] != want {
				t.Errorf("released: %s", released.text)
			}
		}
		if lost := w.post(t, path(name, "renew"), `{"grant_id":"`+id+`"}`).want(409, "lease-lost"); lost.string("cause") != "lost" {
			t.Errorf("released, and told: %s", lost.text)
		}
		second := w.post(t, path(name, "acquire"), `{"holder":"worker-b"}`).want(200, "")
		if second.number("token") <= first.number("token") || second.number("ttl_seconds") != 15 {
			t.Errorf("%s after %s", second.text, first.text)
		}
		if err := checkFence(t, conn, first); !fence.IsStale(err) {
			t.Errorf("the first token after the second: %v", err)
		}
		if !regexp.MustCompile(`msg="lease granted over HTTP" client=127\.0\.0\.1:.* holder=worker-b/\S+ `).MatchString(w.log.String()) {
			t.Errorf("the grant is not in the log:\n%s", w.log)
		}
	})
}

// Unsealed grants are marked, and must be permitted.
func TestUnsealedGrants(t *testing.T) {
	if _, err := New(Options{Store: openRedis(t, store.URL())}); !errors.Is(err, lockclient.ErrUnsealed) {
		t.Errorf("not permitted: %v", err)
	}
	w := serve(t, "redis", func(o *Options) { o.Sealers, o.Unsealed = nil, true })
	granted := w.post(t, path("unsealed", "acquire"), `{"holder":"worker-a"}`).want(200, "")
	if sealed, said := granted.fields["sealed"]; !said || sealed != false {
		t.Errorf("said to be sealed: %s", granted.text)
	}
}

// checkFence has the database check a grant's fence.
func checkFence(t *testing.T, conn fence.Querier, granted answer) error {
	t.Helper()
	f, err := fence.Parse(granted.string("fence"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), f.Check())
	return err
}

// A lease that isn't renewed ends at the time that the answer gives, and not before.
func TestALeaseExpires(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		before := time.Now()
		first := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":1}`).want(200, "")
		second := w.post(t, path(name, "acquire"), `{"holder":"worker-b","wait_seconds":60}`).want(200, "")
		elapsed, promised := time.Since(before), time.Duration(first.number("expires_in_seconds")*float64(time.Second))
		if elapsed < promised {
			t.Errorf("another has it after %v, it was promised for %v", elapsed, promised)
		}
		// Its time counts from before its request, so what it waited is in there.
		if in := second.number("expires_in_seconds"); in < 15 || in > 15+elapsed.Seconds() {
			t.Errorf("after waiting: %s", second.text)
		}
		w.post(t, path(name, "renew"), `{"grant_id":"`+first.string("grant_id")+`"}`).want(409, "lease-lost")
	})
}

// The listener's timeouts are shorter than the wait.
func TestAWaitOutlastsTheListenersTimeouts(t *testing.T) {
	t.Parallel()
	w := serve(t, "redis", nil)
	name := fresh(t)
	holder := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":60}`).want(200, "").string("grant_id")
	hasty := *w
	hasty.http = httptest.NewUnstartedServer(w.Server)
	hasty.http.Config.ReadTimeout, hasty.http.Config.WriteTimeout = time.Second, time.Second
	hasty.http.Start()
	defer hasty.http.Close()
	waited := make(chan answer, 1)
	go func() { waited <- hasty.post(t, path(name, "acquire"), `{"holder":"worker-b","wait_seconds":60}`) }()
	select {
	case a := <-waited:
		t.Fatalf("it didn't wait: %s", a.text)
	case <-time.After(2500 * time.Millisecond): // more than two of them
	}
	w.post(t, path(name, "release"), `{"grant_id":"`+holder+`"}`).want(200, "")
	(<-waited).want(200, "")
}

func TestAWaitEnds(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":60}`).want(200, "")
		began := time.Now()
		held := w.post(t, path(name, "acquire"), `{"holder":"worker-b","wait_seconds":0.2}`).want(409, "lease-held")
		if time.Since(began) < 200*time.Millisecond || !strings.HasPrefix(held.string("held_by"), "worker-a/") {
			t.Errorf("after %v: %s", time.Since(began), held.text)
		}
	})
}

// A caller that goes away while it waits gets no lease.
func TestACallerThatGoesAwayLeavesNoLease(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		holder := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":600}`).want(200, "").string("grant_id")
		ctx, leave := context.WithCancel(t.Context())
		var gone sync.WaitGroup
		for range 5 {
			gone.Go(func() {
				if a, err := w.try(t, ctx, request{method: "POST", path: path(name, "acquire"), body: `{"holder":"gone","ttl_seconds":600,"wait_seconds":60}`}); err == nil {
					t.Errorf("answered: %s", a.text)
				}
			})
		}
		stack.Eventually(t, "five wait", func() bool { return len(w.waits) == 5 })
		leave()
		gone.Wait()
		stack.Eventually(t, "nobody waits", func() bool { return len(w.waits) == 0 })
		w.post(t, path(name, "release"), `{"grant_id":"`+holder+`"}`).want(200, "")
		// The last try of a caller that has gone may still be under way.
		w.post(t, path(name, "acquire"), `{"holder":"worker-b","wait_seconds":60}`).want(200, "")
	})
}

// A repeated request after a lost answer gets the same lease, however the first one ends.
func TestAnAcquireCanBeRepeated(t *testing.T) {
	onEach(t, nil, func(t *testing.T, w *world) {
		name := fresh(t)
		const body = `{"holder":"worker-a","idempotency_key":"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"}`
		first := w.post(t, path(name, "acquire"), body).want(200, "")
		again := w.post(t, path(name, "acquire"), body).want(200, "")
		if again.string("grant_id") != "worker-a/0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9" || first.string("grant_id") != again.string("grant_id") ||
			again.number("token") <= first.number("token") {
			t.Errorf("%s, then %s", first.text, again.text)
		}
		w.post(t, path(name, "renew"), `{"grant_id":"`+again.string("grant_id")+`"}`).want(200, "")
		w.post(t, path(name, "acquire"), `{"holder":"worker-b","idempotency_key":"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"}`).want(409, "lease-held")
	})
}

func TestNoMoreWaitThanMay(t *testing.T) {
	t.Parallel()
	w := serve(t, "redis", func(o *Options) { o.MaxWaits = 1 })
	name := fresh(t)
	w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":60}`).want(200, "")
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	const body = `{"holder":"worker-b","wait_seconds":60}`
	waiting.Go(func() {
		_, _ = w.try(t, ctx, request{method: "POST", path: path(name, "acquire"), body: body})
	})
	stack.Eventually(t, "one waits", func() bool { return len(w.waits) == 1 })
	if refused := w.post(t, path(name, "acquire"), body).want(429, "too-many-waits"); refused.header.Get("Retry-After") == "" {
		t.Error("it isn't said when to try again")
	}
	w.post(t, path(name, "acquire"), `{"holder":"worker-b"}`).want(409, "lease-held") // which doesn't wait
	w.post(t, path(fresh(t), "acquire"), body).want(200, "")                          // nor this
	leave()
	waiting.Wait()
	stack.Eventually(t, "nobody waits", func() bool { return len(w.waits) == 0 })
}

func TestADrainEndsWaits(t *testing.T) {
	t.Parallel()
	w := serve(t, "redis", nil)
	name := fresh(t)
	holder := w.post(t, path(name, "acquire"), `{"holder":"worker-a","ttl_seconds":60}`).want(200, "").string("grant_id")
	waited := make(chan answer)
	go func() { waited <- w.post(t, path(name, "acquire"), `{"holder":"worker-b","wait_seconds":60}`) }()
	stack.Eventually(t, "one waits", func() bool { return len(w.waits) == 1 })
	w.Drain()
	(<-waited).want(http.StatusServiceUnavailable, "draining")
	w.post(t, path(fresh(t), "acquire"), `{"holder":"worker-b"}`).want(http.StatusServiceUnavailable, "draining")
	w.post(t, path(name, "renew"), `{"grant_id":"`+holder+`"}`).want(200, "") // holders can hold on
	w.post(t, path(name, "release"), `{"grant_id":"`+holder+`"}`).want(200, "")
}
