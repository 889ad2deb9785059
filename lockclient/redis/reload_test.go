package redis_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/lockclient/storetest"
)

// rotate gives a user another password, and ends its connections. The user app has the rights that
// docs/reference/stores.md names, and no more.
func rotate(t *testing.T, admin *goredis.Client, user, password string) {
	t.Helper()
	set := []any{"ACL", "SETUSER", user, "on", "resetpass", ">" + password}
	if user == "app" {
		set = append(set, "~wirefence:*", "&wirefence:*", "+evalsha", "+eval", "+get", "+set", "+incr", "+del", "+pttl", "+pexpire", "+subscribe", "+publish")
	}
	for _, command := range [][]any{set, {"CLIENT", "KILL", "USER", user}} {
		if err := admin.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// administrator logs in as a user of its own.
func administrator(t *testing.T, server *servers.Redis) *goredis.Client {
	t.Helper()
	if err := direct(t, server).Do(t.Context(), "ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), Username: "admin", Password: "admin"})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// renews renews a lease with each password of a store in turn: the connection string that the store was
// opened with has the first one.
func renews(t *testing.T, url func(password string) string, change func(password string)) {
	t.Helper()
	ctx := t.Context()
	var now atomic.Value
	now.Store(url("first"))
	change("first")
	store, err := redis.OpenWith(url("first"), redis.Options{Reload: func(context.Context) (string, error) {
		text := now.Load().(string)
		if text == "" {
			return "", errors.New("the file is gone")
		}
		return text, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	storetest.Win(t, store, "r", "me", time.Minute)
	for _, password := range []string{"second", "third"} {
		change(password)
		if _, err := store.Renew(ctx, "r", "me", time.Minute); err == nil || strings.Contains(err.Error(), "first") {
			t.Errorf("a password that is no more: %v", err)
		}
		now.Store("")
		if _, err := store.Renew(ctx, "r", "me", time.Minute); err == nil || !strings.Contains(err.Error(), "the file is gone") {
			t.Errorf("without a password: %v", err)
		}
		now.Store(url(password))
		if held, err := store.Renew(ctx, "r", "me", time.Minute); !held || err != nil {
			t.Errorf("%s: %v, %v", password, held, err)
		}
	}
}

func TestAPasswordIsReadAnew(t *testing.T) {
	server := ownServer(t)
	admin := administrator(t, server)
	renews(t, func(password string) string { return "redis://app:" + password + "@" + server.Addr() },
		func(password string) { rotate(t, admin, "app", password) })
}

// The Sentinels have a password of their own.
func TestAPasswordOfSentinelsIsReadAnew(t *testing.T) {
	s := ownSentinel(t)
	var data, sentinels []*goredis.Client
	for _, server := range []*servers.Redis{s.Master, s.Replica} {
		data = append(data, administrator(t, server))
	}
	var hosts []string
	for _, sentinel := range s.Sentinels {
		sentinels = append(sentinels, administrator(t, sentinel))
		hosts = append(hosts, sentinel.Addr())
	}
	renews(t, func(password string) string {
		return "redis-sentinel://app:" + password + "@" + strings.Join(hosts, ",") + "/0?master_name=" + servers.MasterName + "&sentinel_username=default&sentinel_password=of-" + password
	}, func(password string) {
		for _, admin := range sentinels {
			rotate(t, admin, "default", "of-"+password)
		}
		for _, admin := range data {
			rotate(t, admin, "app", password)
		}
	})
}

func TestReloadIsForConnectionStrings(t *testing.T) {
	client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	reload := func(context.Context) (string, error) { return "", nil }
	if _, err := redis.NewWith(client, redis.Options{Reload: reload}); !errors.Is(err, redis.ErrOptions) {
		t.Error(err)
	}
}
