package main

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// redisPyLock is a program with a lock of redis-py, which it takes and gives back as it is told.
const redisPyLock = `
import redis, sys
lock = redis.Redis.from_url(sys.argv[1]).lock(sys.argv[2], timeout=float(sys.argv[3]))
for line in sys.stdin:
    print(lock.acquire(blocking=False) if line.strip() == "acquire" else lock.release(), flush=True)
`

// holder is an application behind a sidecar: its lock is redis-py's, its SQL pgx'.
type holder struct {
	*proxyProcess
	conn *pgx.Conn
	in   io.Writer
	out  *bufio.Scanner
}

// newHolder starts an application, whose lock lasts for so many seconds.
func newHolder(t *testing.T, url, key, seconds string, settings ...string) *holder {
	t.Helper()
	listen := freeAddress(t)
	h := &holder{proxyProcess: startProxy(t, url, append(settings, "WIREFENCE_LEASE_FROM=redis:"+key+"=orders", "WIREFENCE_REDIS_URL="+redisServer(t).URL(), "WIREFENCE_REDIS_LISTEN="+listen)...)}
	h.conn = stack.Connect(t, h.url)
	cmd := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", redisPyLock, "redis://"+listen+"/0", key, seconds)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	h.in, h.out = in, bufio.NewScanner(out)
	return h
}

// does has the lock's program do something, which must say what is wanted.
func (h *holder) does(t *testing.T, what, want string) {
	t.Helper()
	if _, err := fmt.Fprintln(h.in, what); err != nil || !h.out.Scan() || h.out.Text() != want {
		t.Fatalf("%s: %q, %v, want %q\n%s", what, h.out.Text(), err, want, &h.stderr)
	}
}

// gets runs a statement, which must fail with a state, "" for none.
func (h *holder) gets(t *testing.T, state, sql string) {
	t.Helper()
	_, err := h.conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if got := stack.State(err); got != state {
		t.Fatalf("%s: %v, want %q\n%s", sql, err, state, &h.stderr)
	}
}

// A table that is protected takes writes under the application's own lock in Redis alone, and all
// else that it does is left alone.
func TestALockInRedisIsFenced(t *testing.T) {
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (note text); CREATE TABLE other (note text)", "SELECT wirefence.protect('orders', 'orders')")
	key := "lock:" + stack.Connect(t, url).Config().Database
	a, b := newHolder(t, url, key, "3"), newHolder(t, url, key, "60")
	const insert = "INSERT INTO orders VALUES ('x')"
	a.gets(t, "WF002", insert)
	a.does(t, "acquire", "True")
	b.does(t, "acquire", "False")
	a.gets(t, "", insert)
	for _, all := range []*holder{a, b} {
		all.gets(t, "", "INSERT INTO other VALUES ('x')")
		all.gets(t, "", "VACUUM other")
	}
	b.gets(t, "WF002", insert)
	for _, reset := range []string{"RESET ALL", "DISCARD ALL", "BEGIN; RESET ALL; COMMIT"} {
		a.gets(t, "", reset)
		a.gets(t, "", insert)
	}

	// The holder stalls in a transaction, and its lock expires.
	a.gets(t, "", "BEGIN; SELECT 1")
	stack.Eventually(t, "the lock expires", func() bool {
		_, err := fmt.Fprintln(b.in, "acquire")
		return err == nil && b.out.Scan() && b.out.Text() == "True"
	})
	b.gets(t, "", insert)
	a.gets(t, "WF001", insert)
	a.gets(t, "", "ROLLBACK")
	a.gets(t, "WF002", insert)

	b.does(t, "release", "None")
	b.gets(t, "WF002", insert)
}

// With the scope all the application's writes need its lock, whatever the table.
func TestALockInRedisFencesAll(t *testing.T) {
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE other (note text)")
	h := newHolder(t, url, "lock:all:"+stack.Connect(t, url).Config().Database, "60", "WIREFENCE_LEASE_SCOPE=all")
	h.gets(t, "WF007", "INSERT INTO other VALUES ('x')")
	h.does(t, "acquire", "True")
	h.gets(t, "", "INSERT INTO other VALUES ('x')")
	h.does(t, "release", "None")
	h.gets(t, "WF007", "INSERT INTO other VALUES ('x')")
}

// A Redis that is away or loads its data keeps the sidecar from being ready, and not from starting. One
// whose locks can't be followed ends it, then as at the start.
func TestASidecarWaitsForItsRedis(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (note text)", "SELECT wirefence.protect('orders', 'orders')")
	redis := stack.Started(servers.StartRedis(t.Context(), "--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no")).EndWith(t)
	data := []any{"MSET"}
	for i := range 2000 {
		data = append(data, i, strings.Repeat("x", 2000))
	}
	for _, command := range [][]any{data, {"SAVE"}} {
		if _, err := redis.Do(t.Context(), command...); err != nil {
			t.Fatal(err)
		}
	}
	redis.Kill()
	start := func(user string) (p *proxyProcess, listen string) {
		listen = freeAddress(t)
		return startProxy(t, url, "WIREFENCE_LEASE_FROM=redis:job=orders", "WIREFENCE_REDIS_URL=redis://"+user+redis.Addr(), "WIREFENCE_REDIS_LISTEN="+listen), listen
	}
	p, listen := start("")
	refused, _ := start("nobody:wrong@")
	for _, p := range []*proxyProcess{p, refused} {
		awaitReadiness(t, p.admin, "connection refused")
	}
	conn := stack.Connect(t, p.url)
	_, err := conn.Exec(t.Context(), "INSERT INTO orders VALUES ('x')")
	stack.WantState(t, err, "WF002")

	started := make(chan error, 1)
	go func() { started <- redis.Start(t.Context()) }()
	awaitReadiness(t, p.admin, "LOADING")
	if _, err := redis.Do(t.Context(), "CONFIG", "SET", "key-load-delay", "0"); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	awaitReadiness(t, p.admin, "ok")
	for _, line := range []string{"not ready: Redis can't be reached", "ready: Redis takes commands", "passing connections to Redis on"} {
		if !strings.Contains(p.stderr.String(), line) {
			t.Errorf("the log lacks %q:\n%s", line, &p.stderr)
		}
	}
	client := goredis.NewClient(&goredis.Options{Addr: listen})
	defer client.Close()
	if err := client.SetNX(t.Context(), "job", "a", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "INSERT INTO orders VALUES ('x')"); err != nil {
		t.Fatal(err)
	}
	refused.end(t).expect(t, 1, "WRONGPASS")
}

func TestSettingsOfAdoptedLocks(t *testing.T) {
	for settings, want := range map[[3]string]string{
		{"WIREFENCE_LEASE_FROM=redis:job"}:                                                "it is written LOCK=RESOURCE",
		{"WIREFENCE_LEASE_FROM=row:jobs(1)=orders"}:                                       "follows advisory locks and locks in Redis",
		{"WIREFENCE_LEASE_FROM=advisory:42=orders", "WIREFENCE_REDIS_LISTEN=127.0.0.1:1"}: "needs a lock in Redis",
		{"WIREFENCE_LEASE_FROM=advisory:42=orders", "WIREFENCE_DATABASE_URL="}:            "needs WIREFENCE_DATABASE_URL",
		{"WIREFENCE_LEASE_FROM=redis:job=orders"}:                                         "needs WIREFENCE_REDIS_LISTEN",
		{"WIREFENCE_REDIS_LISTEN=127.0.0.1:1"}:                                            "needs WIREFENCE_LEASE_FROM",
		{"WIREFENCE_LEASE_FROM=redis:job=orders", "WIREFENCE_REDIS_LISTEN=127.0.0.1:1", "WIREFENCE_REDIS_URL=redis-cluster://127.0.0.1:2"}: "luster",
	} {
		all := []string{"WIREFENCE_UPSTREAM=postgres://127.0.0.1:1/", "WIREFENCE_DATABASE_URL=postgres://127.0.0.1:1/x"}
		for _, setting := range settings {
			if setting != "" {
				all = append(all, setting)
			}
		}
		wirefence(t, all, "proxy", "--check-config").expect(t, 2, want)
	}
}
