package main

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// holder is an application, perhaps behind a sidecar: its lock is a library's, its SQL pgx'.
type holder struct {
	conn    *pgx.Conn
	program *exec.Cmd
	in      io.Writer
	out     *bufio.Scanner
	log     stack.Log
	sidecar *proxyProcess
}

// newHolder starts an application. With settings it is behind a sidecar that follows its lock.
func newHolder(t *testing.T, lock libraryLock, url, key, seconds string, settings ...string) *holder {
	t.Helper()
	h, where := &holder{}, ""
	if lock.table == nil {
		where = redisServer(t).URL()
	}
	if len(settings) > 0 {
		listen := freeAddress(t)
		if lock.table == nil {
			settings = append(settings, "WIREFENCE_REDIS_URL="+where, "WIREFENCE_REDIS_LISTEN="+listen)
		}
		h.sidecar = startProxy(t, url, settings...)
		url, where = h.sidecar.url, "redis://"+listen+"/0"
	}
	if h.conn = stack.Connect(t, url); lock.table != nil {
		cfg := h.conn.Config()
		where = fmt.Sprintf("jdbc:postgresql://%s:%d/%s?user=postgres", cfg.Host, cfg.Port, cfg.Database)
	}
	h.program = exec.CommandContext(t.Context(), lock.command[0], append(lock.command[1:], where, key, seconds)...)
	h.program.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(servers.CacheDir(), "locks", "node_modules"), "PYTHONDONTWRITEBYTECODE=1")
	h.program.Stderr = &h.log
	var err error
	if h.in, err = h.program.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.program.StdoutPipe()
	if err == nil {
		err = h.program.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewScanner(out)
	t.Cleanup(func() {
		_ = h.program.Wait() // its context has ended
		if t.Failed() && h.sidecar != nil {
			t.Log(&h.sidecar.stderr)
		}
	})
	return h
}

// told tells the program to do something, and returns its answer.
func (h *holder) told(t *testing.T, what string) string {
	t.Helper()
	if _, err := fmt.Fprintln(h.in, what); err != nil || !h.out.Scan() {
		t.Fatalf("%s: %v: run scripts/install-servers --test\n%s", what, err, &h.log)
	}
	return h.out.Text()
}

// does has the program do something, which must answer what is wanted.
func (h *holder) does(t *testing.T, what, want string) {
	t.Helper()
	if got := h.told(t, what); got != want {
		t.Fatalf("%s: %s, want %s\n%s", what, got, want, &h.log)
	}
}

// gets runs statements, each of which must fail with a state, "" for none.
func (h *holder) gets(t *testing.T, state string, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		_, err := h.conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if got := stack.State(err); got != state {
			t.Fatalf("%s: %v, want %q", sql, err, state)
		}
	}
}

// A holder stalls for longer than its lock lasts, and then writes. Without sidecars that lands; with
// them it is refused, and nothing else differs: what the lock's library says, and what is written
// without need of the lock.
func TestLocksOfLibrariesAreFenced(t *testing.T) {
	t.Parallel()
	programs := lockPrograms(t)
	for _, lock := range append(redisLocks(programs), tableLocks(programs)...) {
		t.Run(lock.name, func(t *testing.T) {
			t.Parallel()
			t.Run("direct", func(t *testing.T) { playStall(t, lock, false) })
			t.Run("sidecars", func(t *testing.T) { playStall(t, lock, true) })
		})
	}
}

func playStall(t *testing.T, lock libraryLock, fenced bool) {
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (note text); CREATE TABLE other (note text)")
	key, without, late := "lock:test:"+stack.Connect(t, url).Config().Database, "", ""
	from := "redis:" + key
	if lock.table != nil {
		lock.table.prepare(t, url)
		key, from = "nightly", lock.table.row
	}
	var settings []string
	if fenced {
		stack.Exec(t, url, "SELECT wirefence.protect('orders', 'orders')")
		settings, without, late = []string{"WIREFENCE_LEASE_FROM=" + from + "=orders"}, "WF002", "WF001"
	}
	a, b := newHolder(t, lock, url, key, cmp.Or(lock.both, "8"), settings...), newHolder(t, lock, url, key, cmp.Or(lock.both, "60"), settings...)
	b.does(t, "acquire", "yes") // so that it has started when the time of a's lock begins
	b.does(t, "release", "yes")
	a.gets(t, without, intoOrders)
	a.does(t, "acquire", "yes")
	b.does(t, "acquire", "no")
	a.gets(t, "", intoOrders)
	b.gets(t, without, intoOrders)
	a.does(t, "extend", "yes")
	a.gets(t, "", intoOrders, "BEGIN; SELECT 1")
	if err := a.program.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "the lock expires", func() bool { return b.told(t, "acquire") == "yes" })
	b.gets(t, "", intoOrders)
	if err := a.program.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	a.gets(t, late, "INSERT INTO orders VALUES ('late')")
	a.gets(t, "", "COMMIT")
	a.gets(t, without, intoOrders)
	a.does(t, "extend", "no")
	if got := a.told(t, "release"); got != "no" && !strings.HasPrefix(lock.name, "ShedLock") { // whose unlock returns nothing
		t.Errorf("release: %s", got)
	}
	b.does(t, "extend", "yes")
	for _, reset := range []string{"RESET ALL", "DISCARD ALL", "BEGIN; RESET ALL; COMMIT"} {
		b.gets(t, "", reset, intoOrders)
	}
	for _, all := range []*holder{a, b} {
		all.gets(t, "", "INSERT INTO other VALUES ('x')", "VACUUM other")
	}
	b.does(t, "release", "yes")
	b.gets(t, without, intoOrders)
	a.does(t, "acquire", "yes")
	a.does(t, "release", "yes")
	a.gets(t, without, intoOrders)
	var landed bool
	if err := stack.Connect(t, url).QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM orders WHERE note = 'late')").Scan(&landed); err != nil || landed == fenced {
		t.Errorf("late: %v, %v", landed, err)
	}
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
	type pod struct {
		*proxyProcess
		*holder
	}
	var pods []pod
	var candidates []*apiservertest.Candidate
	for _, name := range []string{"web-1", "web-2"} {
		settings := []string{"WIREFENCE_LEASE_FROM=kubernetes:shop/orders=orders", "WIREFENCE_LEASE_OWNER=" + name, "WIREFENCE_KUBERNETES_URL=" + kube.Setting()}
		if len(pods) > 0 {
			settings = append(settings, "WIREFENCE_ADMIN_TOKEN_FILE="+tokens)
		}
		p := startProxy(t, url, settings...)
		pods, candidates = append(pods, pod{p, &holder{conn: stack.Connect(t, p.url)}}), append(candidates, kube.Candidate("orders", name+"_0d9f3c52-6a0e-4c5a-9a8f-3f0a2b6c7d11"))
	}
	a, b := pods[0], pods[1]
	if status, body := get(t, "http://"+a.admin+"/readyz"); status != 503 || !strings.Contains(body, "kubernetes:shop/orders") {
		t.Errorf("/readyz: %d %s", status, body)
	}
	kube.Forbid(false)
	for _, p := range pods {
		stack.Eventually(t, "it is ready", func() bool { status, _ := get(t, "http://"+p.admin+"/readyz"); return status == 200 })
	}
	adopted := func(h pod, settings ...string) result {
		return wirefence(t, append(settings, "WIREFENCE_ADMIN_LISTEN="+h.admin), "status", "--adopted")
	}
	adopted(a).expect(t, 0).says(t, "kubernetes:shop/orders  orders", "no")
	a.gets(t, "WF002", intoOrders)
	candidates[0].Lead(t)
	a.stderr.Await(t, "the application was elected")
	a.gets(t, "", intoOrders)
	b.gets(t, "WF002", intoOrders)
	b.gets(t, "", "INSERT INTO other VALUES ('x')")
	adopted(a).expect(t, 0).says(t, candidates[0].Identity, "yes")
	documented(t, "wirefence status", 4, wirefence(t, []string{"WIREFENCE_ADMIN_LISTEN=" + a.admin}, "status", "--adopted", "-o", "json").stdout)
	adopted(b).expect(t, 1, "WIREFENCE_ADMIN_TOKEN_FILE")
	adopted(b, "WIREFENCE_ADMIN_TOKEN_FILE="+tokens).expect(t, 0).says(t, "kubernetes:shop/orders", "no")

	a.gets(t, "", "BEGIN; SELECT 1")
	candidates[1].Lead(t)
	b.stderr.Await(t, "the application was elected")
	b.gets(t, "", intoOrders)
	a.gets(t, "WF001", intoOrders)
	a.gets(t, "", "ROLLBACK")
	a.gets(t, "WF002", intoOrders)
	adopted(a).expect(t, 0).says(t, "the Lease is another holder's")
	examine := []string{"WIREFENCE_LEASE_FROM=kubernetes:shop/orders=orders", "WIREFENCE_KUBERNETES_URL=" + kube.Setting(), "WIREFENCE_DATABASE_URL=" + url}
	wirefence(t, examine, "doctor").says(t, "resources.adopted", "kubernetes:shop/orders is sealed for")
	kube.Candidate("orders", "web-3").Lead(t)
	wirefence(t, examine, "doctor").says(t, "no sidecar has sealed that")
	wirefence(t, []string{"WIREFENCE_DATABASE_URL=" + url}, "history", "orders").expect(t, 0).says(t, candidates[1].Identity)
}

// Before a pooler in transaction mode each transaction has the lease of its own holder's lock.
func TestALockInRedisBeforeATransactionPooler(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PgBouncer")
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (note text)", "SELECT wirefence.protect('orders', 'orders')")
	programs, pooler, key := lockPrograms(t), transactionPooler(t, url), "lock:pooled:"+stack.Connect(t, url).Config().Database
	newHolder := func(seconds string) *holder {
		return newHolder(t, redisLocks(programs)[0], url, key, seconds, "WIREFENCE_LEASE_FROM=redis:"+key+"=orders", "WIREFENCE_UPSTREAM="+pooler)
	}
	a, b := newHolder("2"), newHolder("60")
	a.does(t, "acquire", "yes")
	a.gets(t, "", intoOrders, "BEGIN; SELECT 1")
	b.gets(t, "WF002", intoOrders)
	stack.Eventually(t, "the lock expires", func() bool { return b.told(t, "acquire") == "yes" })
	b.gets(t, "", intoOrders)
	a.gets(t, "WF001", intoOrders)
	a.gets(t, "", "ROLLBACK")
	a.gets(t, "WF002", intoOrders)
	b.gets(t, "", intoOrders)
	b.does(t, "release", "yes")
	b.gets(t, "WF002", intoOrders)
}

// With the scope all the application's writes need its lock, whatever the table.
func TestALockInRedisFencesAll(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (note text)")
	key := "lock:all:" + stack.Connect(t, url).Config().Database
	h := newHolder(t, redisLocks(lockPrograms(t))[0], url, key, "60", "WIREFENCE_LEASE_SCOPE=all", "WIREFENCE_LEASE_FROM=redis:"+key+"=orders")
	h.gets(t, "WF007", intoOrders)
	h.does(t, "acquire", "yes")
	h.gets(t, "", intoOrders)
	h.does(t, "release", "yes")
	h.gets(t, "WF007", intoOrders)
}

// A Redis that is away or loads its data keeps the sidecar from being ready, and not from starting. One
// whose locks can't be followed ends it, then as at the start. Its clients may use TLS.
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
	ca := authority.New(t)
	pair := ca.Issue(t, "relay.test", "127.0.0.1")
	start := func(user string) (p *proxyProcess, listen string) {
		listen = freeAddress(t)
		return startProxy(t, url, "WIREFENCE_TLS_CERT_FILE="+pair.CertFile, "WIREFENCE_TLS_KEY_FILE="+pair.KeyFile, "WIREFENCE_LEASE_FROM=redis:job=orders", "WIREFENCE_REDIS_URL=redis://"+user+redis.Addr(), "WIREFENCE_REDIS_LISTEN="+listen), listen
	}
	p, listen := start("")
	refused, _ := start("nobody:wrong@")
	for _, p := range []*proxyProcess{p, refused} {
		awaitReadiness(t, p.admin, "connection refused")
	}
	conn := stack.Connect(t, p.url)
	_, err := conn.Exec(t.Context(), intoOrders)
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
	client := goredis.NewClient(&goredis.Options{Addr: listen, TLSConfig: &tls.Config{RootCAs: ca.Pool()}})
	defer client.Close()
	if err := client.SetNX(t.Context(), "job", "a", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), intoOrders); err != nil {
		t.Fatal(err)
	}
	refused.end(t).expect(t, 1, "WRONGPASS")
}

func TestSettingsOfAdoptedLocks(t *testing.T) {
	for settings, want := range map[[3]string]string{
		{"WIREFENCE_LEASE_FROM=redis:job"}:                                                                                                 "it is written LOCK=RESOURCE",
		{"WIREFENCE_LEASE_FROM=row:jobs(1)=orders", "WIREFENCE_LEASE_SCOPE=all"}:                                                           "to take it is a write",
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
