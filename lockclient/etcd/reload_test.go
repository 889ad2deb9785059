package etcd_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/wirefence/wirefence/lockclient/etcd"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

func TestAPasswordIsReadAnew(t *testing.T) {
	ctx := t.Context()
	server := ownServer(t)
	client := direct(t, server.Addr())
	for _, user := range []string{"root", "app"} {
		if _, err := client.UserAdd(ctx, user, "first"); err != nil {
			t.Fatal(err)
		}
		if _, err := client.UserGrantRole(ctx, user, "root"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.AuthEnable(ctx); err != nil {
		t.Fatal(err)
	}
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Username: "root", Password: "first", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	url := func(password string) string { return "etcd://app:" + password + "@" + server.Addr() }
	var now atomic.Value
	now.Store(url("first"))
	store, err := etcd.OpenWith(url("never"), etcd.Options{Reload: func(context.Context) (string, error) { return now.Load().(string), nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	storetest.Win(t, store, "r", "me", time.Minute)
	for _, password := range []string{"second", "third"} {
		if _, err := admin.UserChangePassword(ctx, "app", password); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Renew(ctx, "r", "me", time.Minute); err == nil {
			t.Error("a password that is no more renews")
		}
		now.Store(url(password))
		if held, err := store.Renew(ctx, "r", "me", time.Minute); !held || err != nil {
			t.Errorf("%s: %v, %v", password, held, err)
		}
	}
}
