package zookeeper_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/lockclient/storetest"
	"github.com/wirefence/wirefence/lockclient/zookeeper"
)

// ZooKeeper takes any password: whose a node is tells with which one a session has logged in.
func TestAPasswordIsReadAnew(t *testing.T) {
	server := ownServer(t)
	reload := func(context.Context) (string, error) { return "zookeeper://app:second@" + server.Addr(), nil }
	store, err := zookeeper.OpenReloading("zookeeper://app:first@"+server.Addr(), reload)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	storetest.Win(t, store, "r", "me", time.Minute)
	for password, want := range map[string]error{"first": zk.ErrNoAuth, "second": nil} {
		conn := direct(t, server)
		if err := conn.AddAuth("digest", []byte("app:"+password)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Get(store.Path("r")); !errors.Is(err, want) {
			t.Errorf("%s: %v", password, err)
		}
	}
}
