package etcd_test

import (
	"context"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

// shared is the server of the tests that do not harm it.
var shared *servers.Etcd

func TestMain(m *testing.M) {
	os.Exit(storetest.Main(m, func(ctx context.Context) (err error) {
		shared, err = servers.StartEtcd(ctx)
		return err
	}, func() { shared.Close() }, func() error { return goleak.Find() }))
}

func open(t testing.TB, url string) *etcd.Store { return storetest.Open(t, etcd.Open, url) }

func ownServer(t testing.TB, args ...string) *servers.Etcd {
	return storetest.Start(t, servers.StartEtcd, args...)
}

func direct(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) lockclient.Store { return open(t, shared.URL()) })
}
