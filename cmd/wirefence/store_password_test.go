package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// rotatingRedis is a Redis with a user whose password changes, and a file with the connection string.
type rotatingRedis struct {
	*goredis.Client
	addr, file string
	round      int
}

func startRotatingRedis(t *testing.T) *rotatingRedis {
	server := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	r := &rotatingRedis{Client: goredis.NewClient(&goredis.Options{Addr: server.Addr()}), addr: server.Addr(), file: filepath.Join(t.TempDir(), "url")}
	t.Cleanup(func() { _ = r.Close() })
	r.rotate(t)
	return r
}

// rotate gives the user another password, ends its connections, and writes the file.
func (r *rotatingRedis) rotate(t *testing.T) {
	t.Helper()
	r.round++
	password := fmt.Sprint("secret", r.round)
	for _, command := range [][]any{
		{"ACL", "SETUSER", "app", "on", "resetpass", ">" + password, "~*", "&*", "+@all"}, {"CLIENT", "KILL", "USER", "app"},
	} {
		if err := r.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(r.file+".new", []byte("redis://app:"+password+"@"+r.addr+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(r.file+".new", r.file); err != nil {
		t.Fatal(err)
	}
}

// A sidecar and the command line keep their leases in Redis while its password changes.
func TestTheStoresPasswordChanges(t *testing.T) {
	t.Parallel()
	url, r := database(t, true), startRotatingRedis(t)
	sidecar := startProxy(t, url, "WIREFENCE_LEASE=orders", "WIREFENCE_TTL=3s", "WIREFENCE_REDIS_URL_FILE="+r.file)
	lock := start(t, []string{"WIREFENCE_DATABASE_URL=" + url, "WIREFENCE_TTL=3s", "WIREFENCE_REDIS_URL_FILE=" + r.file}, "lock", "nightly", "--", "sleep", "60")
	keys := []string{redis.LeaseKey("orders"), redis.LeaseKey("nightly")}
	holders := map[string]string{}
	for _, key := range keys {
		stack.Eventually(t, "the lease of "+key, func() bool { holders[key] = r.Get(t.Context(), key).Val(); return holders[key] != "" })
	}
	for range 2 {
		r.rotate(t)
		rotated := time.Now()
		stack.Eventually(t, "a lease that isn't renewed would have ended", func() bool { return time.Since(rotated) > 3500*time.Millisecond })
		for _, key := range keys {
			if got := r.Get(t.Context(), key).Val(); got != holders[key] {
				t.Errorf("%s is held by %q, it was by %q\n%s\n%s", key, got, holders[key], &sidecar.stderr, &lock.stderr)
			}
		}
	}
}

// A relay gives back a lock that can't be sealed, with the password that its file has then.
func TestTheRelaysPasswordChanges(t *testing.T) {
	t.Parallel()
	url, r, listen := database(t, true), startRotatingRedis(t), freeAddress(t)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 1, 'another', 'another-service')")
	p := startProxy(t, url, "WIREFENCE_LEASE_FROM=redis:job=orders", "WIREFENCE_REDIS_URL_FILE="+r.file, "WIREFENCE_REDIS_LISTEN="+listen)
	awaitReadiness(t, p.admin, "ok")
	client := goredis.NewClient(&goredis.Options{Addr: listen})
	t.Cleanup(func() { _ = client.Close() })
	for range 2 {
		r.rotate(t)
		if got, err := client.SetNX(t.Context(), "job", "a", time.Minute).Result(); got || err != nil {
			t.Errorf("a lock that can't be sealed: %v, %v\n%s", got, err, &p.stderr)
		}
		stack.Eventually(t, "it is given back", func() bool { return r.Exists(t.Context(), "job").Val() == 0 })
	}
}
