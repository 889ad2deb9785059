package zookeeper_test

import (
	"context"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

// shared is the server of the tests that do not harm it.
var shared *servers.ZooKeeper

func TestMain(m *testing.M) {
	os.Exit(storetest.Main(m, func(ctx context.Context) (err error) {
		shared, err = servers.StartZooKeeper(ctx)
		return err
	}, func() { shared.Close() }, func() error { return goleak.Find() }))
}

func open(t testing.TB, url string) *zookeeper.Store {
	t.Helper()
	store, err := zookeeper.Open(url)
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

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) lockclient.Store { return open(t, shared.URL()) })
}
