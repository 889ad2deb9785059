package zookeeper_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

// shared is the server of the tests that don't harm it.
var shared *servers.ZooKeeper

func TestMain(m *testing.M) {
	server, err := servers.StartZooKeeper(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = server
	code := m.Run()
	server.Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
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
