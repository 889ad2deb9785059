package lockclient_test

import (
	"testing"
	"testing/synctest"

	"github.com/wirefence/wirefence/lockclient"
)

// A repeated request for one grant, whose first answer was lost, gets the grant.
func TestAnIDThatComesAgainIsTheSameGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		client := func(id string) *lockclient.Client {
			return newClient(t, store, lockclient.Options{Holder: "worker-1", NewID: func() string { return id }})
		}
		first := acquire(t, client("17"))
		if first.Holder() != "worker-1/17" {
			t.Errorf("holder %q", first.Holder())
		}
		if again := acquire(t, client("17")); again.Holder() != first.Holder() || again.Token() <= first.Token() {
			t.Errorf("the second is %q with %d, the first %d", again.Holder(), again.Token(), first.Token())
		}
		if other, err := client("18").TryAcquire(t.Context(), "orders"); other != nil {
			t.Errorf("another id wins, too: %v", err)
		}
	})
}
