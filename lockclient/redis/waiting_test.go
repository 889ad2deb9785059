package redis_test

import (
	"regexp"
	"runtime"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/lockclient/redis"
)

// A client that is closed under its waiters, as where deferred calls are in the wrong order,
// leaves a listener that waits for them to leave.
func TestAListenerOfAClosedClientRests(t *testing.T) {
	t.Parallel()
	client := goredis.NewClient(&goredis.Options{Addr: shared.Addr()})
	store := redis.New(client)
	t.Cleanup(func() { _ = store.Close() })
	notices := make(chan struct{}, 1)
	stop, err := store.Notify(t.Context(), "orders", notices)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	<-notices // it listens
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	resting := regexp.MustCompile(`goroutine \d+ \[chan receive[^]]*\]:\n\S*redis\.\(\*Store\)\.listen\(`)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		all := make([]byte, 1<<20)
		if all = all[:runtime.Stack(all, true)]; resting.Match(all) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the listener doesn't rest:\n%s", all)
		}
	}
}
