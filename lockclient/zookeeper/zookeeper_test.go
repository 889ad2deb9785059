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

func open(t testing.TB, url string) *zookeeper.Store { return storetest.Open(t, zookeeper.Open, url) }

func ownServer(t testing.TB, settings ...string) *servers.ZooKeeper {
	return storetest.Start(t, servers.StartZooKeeper, settings...)
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) lockclient.Store { return open(t, shared.URL()) })
}
