package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
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

// A table that is protected takes writes of the elected leader alone. Its sidecar is ready when an
// election would be seen.
func TestALeaderElectionIsFenced(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (note text); CREATE TABLE other (note text)", "SELECT wirefence.protect('orders', 'orders')")
	kube := apiservertest.Start(t)
	kube.Forbid(true)
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("kubelet read 0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var pods []*holder
	var candidates []*apiservertest.Candidate
	for _, pod := range []string{"web-1", "web-2"} {
		settings := []string{"WIREFENCE_LEASE_FROM=kubernetes:shop/orders=orders", "WIREFENCE_LEASE_OWNER=" + pod, "WIREFENCE_KUBERNETES_URL=" + kube.Setting()}
		if len(pods) > 0 {
			settings = append(settings, "WIREFENCE_ADMIN_TOKEN_FILE="+tokens)
		}
		h := &holder{proxyProcess: startProxy(t, url, settings...)}
		h.conn = stack.Connect(t, h.url)
		pods, candidates = append(pods, h), append(candidates, kube.Candidate("orders", pod+"_0d9f3c52-6a0e-4c5a-9a8f-3f0a2b6c7d11"))
	}
	a, b := pods[0], pods[1]
	if status, body := get(t, "http://"+a.admin+"/readyz"); status != 503 || !strings.Contains(body, "kubernetes:shop/orders") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	kube.Forbid(false)
	for _, pod := range pods {
		stack.Eventually(t, "it is ready", func() bool { status, _ := get(t, "http://"+pod.admin+"/readyz"); return status == 200 })
	}
	adopted := func(h *holder, settings ...string) result {
		return wirefence(t, append(settings, "WIREFENCE_ADMIN_LISTEN="+h.admin), "status", "--adopted")
	}
	adopted(a).expect(t, 0).says(t, "kubernetes:shop/orders  orders", "no")
	const insert = "INSERT INTO orders VALUES ('x')"
	a.gets(t, "WF002", insert)
	candidates[0].Lead(t)
	a.stderr.Await(t, "the application was elected")
	a.gets(t, "", insert)
	b.gets(t, "WF002", insert)
	b.gets(t, "", "INSERT INTO other VALUES ('x')")
	adopted(a).expect(t, 0).says(t, candidates[0].Identity, "yes")
	documented(t, "wirefence status", 4, wirefence(t, []string{"WIREFENCE_ADMIN_LISTEN=" + a.admin}, "status", "--adopted", "-o", "json").stdout)
	adopted(b).expect(t, 1, "WIREFENCE_ADMIN_TOKEN_FILE")
	adopted(b, "WIREFENCE_ADMIN_TOKEN_FILE="+tokens).expect(t, 0).says(t, "kubernetes:shop/orders", "no")

	a.gets(t, "", "BEGIN; SELECT 1")
	candidates[1].Lead(t)
	b.stderr.Await(t, "the application was elected")
	b.gets(t, "", insert)
	a.gets(t, "WF001", insert)
	a.gets(t, "", "ROLLBACK")
	a.gets(t, "WF002", insert)
	adopted(a).expect(t, 0).says(t, "the Lease is another holder's")
	examine := []string{"WIREFENCE_LEASE_FROM=kubernetes:shop/orders=orders", "WIREFENCE_KUBERNETES_URL=" + kube.Setting(), "WIREFENCE_DATABASE_URL=" + url}
	wirefence(t, examine, "doctor").says(t, "resources.adopted", "kubernetes:shop/orders is sealed for")
	kube.Candidate("orders", "web-3").Lead(t)
	wirefence(t, examine, "doctor").says(t, "no sidecar has sealed that")
	wirefence(t, []string{"WIREFENCE_DATABASE_URL=" + url}, "history", "orders").expect(t, 0).says(t, candidates[1].Identity)
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

func TestSettingsOfAdoptedLocks(t *testing.T) {
	for settings, want := range map[[3]string]string{
		{"WIREFENCE_LEASE_FROM=redis:job"}:                                                                                                 "it is written LOCK=RESOURCE",
		{"WIREFENCE_LEASE_FROM=row:jobs(1)=orders"}:                                                                                        "follows advisory locks, locks in Redis and Leases",
		{"WIREFENCE_LEASE_FROM=advisory:42=orders", "WIREFENCE_REDIS_LISTEN=127.0.0.1:1"}:                                                  "needs a lock in Redis",
		{"WIREFENCE_LEASE_FROM=advisory:42=orders", "WIREFENCE_DATABASE_URL="}:                                                             "needs WIREFENCE_DATABASE_URL",
		{"WIREFENCE_LEASE_FROM=redis:job=orders"}:                                                                                          "needs WIREFENCE_REDIS_LISTEN",
		{"WIREFENCE_REDIS_LISTEN=127.0.0.1:1"}:                                                                                             "needs WIREFENCE_LEASE_FROM",
		{"WIREFENCE_LEASE_FROM=kubernetes:shop/orders=orders", "WIREFENCE_REDIS_LISTEN=127.0.0.1:1"}:                                       "needs a lock in Redis",
		{"WIREFENCE_LEASE_FROM=kubernetes:shop/orders=orders", "WIREFENCE_KUBERNETES_URL=https://127.0.0.1:1/x"}:                           "WIREFENCE_KUBERNETES_URL: it is written https://",
		{"WIREFENCE_LEASE_FROM=kubernetes:shop/orders=orders", "WIREFENCE_KUBERNETES_URL=https://127.0.0.1:1?ca=missing"}:                  "WIREFENCE_KUBERNETES_URL: ca:",
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
