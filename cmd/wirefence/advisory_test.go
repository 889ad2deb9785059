package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// leader is an application behind a sidecar that follows its lock, by default its advisory lock 42: it locks in one session
// and works in another, as with a pool.
type leader struct {
	*proxyProcess
	lock, work *pgx.Conn
}

func newLeader(t *testing.T, url string, settings ...string) *leader {
	t.Helper()
	l := &leader{proxyProcess: startProxy(t, url, append([]string{"WIREFENCE_LEASE_FROM=advisory:42=orders,advisory:-7,2=bills"}, settings...)...)}
	l.lock, l.work = stack.Connect(t, l.url), stack.Connect(t, l.url)
	return l
}

// gets runs a statement, which must fail with a state, "" for none.
func (l *leader) gets(t *testing.T, state string, conn *pgx.Conn, sql string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if got := stack.State(err); got != state {
		t.Fatalf("%s: %v, want %q\n%s", sql, err, state, &l.stderr)
	}
}

// tries returns what a call returns, by a prepared statement as pgx has it.
func (l *leader) tries(t *testing.T, sql string, args ...any) (got bool) {
	t.Helper()
	if err := l.lock.QueryRow(t.Context(), sql, args...).Scan(&got); err != nil {
		t.Fatalf("%s: %v\n%s", sql, err, &l.stderr)
	}
	return got
}

const (
	tryLock    = "SELECT pg_try_advisory_lock($1)"
	unlock     = "SELECT pg_advisory_unlock($1)"
	intoOrders = "INSERT INTO orders VALUES ('x')"
)

func advisoryDatabase(t *testing.T) string {
	t.Helper()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (note text); CREATE TABLE bills (note text); CREATE TABLE other (note text)",
		"SELECT wirefence.protect('orders', 'orders'), wirefence.protect('bills', 'bills')")
	return url
}

// A leader by pg_try_advisory_lock, as Rails' with_advisory_lock and golang-migrate take it, writes to
// the tables that its lock protects while it has the lock, in any of its sessions.
func TestAnAdvisoryLockIsFenced(t *testing.T) {
	t.Parallel()
	url := advisoryDatabase(t)
	a, b := newLeader(t, url), newLeader(t, url)
	a.gets(t, "WF002", a.work, intoOrders)
	if !a.tries(t, tryLock, 42) || b.tries(t, tryLock, 42) {
		t.Fatal("not one of them has the lock")
	}
	a.gets(t, "", a.work, intoOrders)
	a.gets(t, "", a.lock, intoOrders)
	a.gets(t, "", a.work, "INSERT INTO other VALUES ('x')")
	a.gets(t, "WF002", a.work, "INSERT INTO bills VALUES ('x')")
	b.gets(t, "WF002", b.work, intoOrders)
	b.gets(t, "", b.work, "VACUUM other")

	// Taken twice, it is held until it was given back twice.
	if !a.tries(t, tryLock, 42) || !a.tries(t, unlock, 42) {
		t.Fatal("the lock isn't counted")
	}
	a.gets(t, "", a.work, intoOrders)
	if !a.tries(t, unlock, 42) {
		t.Fatal("it wasn't held")
	}
	a.gets(t, "WF002", a.work, intoOrders)

	// In a transaction, and by a function: it counts from the end of the transaction on.
	b.gets(t, "", b.lock, "BEGIN; SELECT pg_advisory_lock(-7, 2)")
	b.gets(t, "WF002", b.work, "INSERT INTO bills VALUES ('x')")
	b.gets(t, "", b.lock, "COMMIT")
	b.gets(t, "", b.work, "INSERT INTO bills VALUES ('x')")
	b.gets(t, "", b.lock, "DISCARD ALL")
	b.gets(t, "WF002", b.work, "INSERT INTO bills VALUES ('x')")

	// A lock of the transaction is none of the session.
	a.gets(t, "", a.lock, "BEGIN; SELECT pg_advisory_xact_lock(42); SELECT 1 AS pg_advisory_lock")
	a.gets(t, "WF002", a.work, intoOrders)
	a.gets(t, "", a.lock, "COMMIT")
	a.gets(t, "WF002", a.work, intoOrders)

	// An EXECUTE may run what takes it.
	a.gets(t, "", a.lock, "PREPARE leads AS "+strings.Replace(tryLock, "$1", "42", 1))
	a.gets(t, "", a.lock, "EXECUTE leads")
	a.gets(t, "", a.work, intoOrders)
}

// stalling are the processes of a leader that may stall.
var stalling = map[string]func(a *leader) (wakes func()){
	"the application": func(*leader) func() { return func() {} },
	"its sidecar": func(a *leader) func() {
		_ = a.cmd.Process.Signal(syscall.SIGSTOP)
		return func() { _ = a.cmd.Process.Signal(syscall.SIGCONT) }
	},
}

// stallsUntil has a leader stall until another leads: what it writes late is refused.
func (l *leader) stallsUntil(t *testing.T, next *leader, stalls func(a *leader) (wakes func()), leads func() bool) {
	t.Helper()
	l.gets(t, "", l.work, "BEGIN; SELECT 1")
	wakes := stalls(l)
	stack.Eventually(t, "the next one leads", leads)
	next.gets(t, "", next.work, intoOrders)
	wakes()
	l.gets(t, "WF001", l.work, intoOrders)
	l.gets(t, "", l.work, "ROLLBACK")
	stack.Eventually(t, "its sidecar knows", func() bool {
		_, err := l.work.Exec(t.Context(), intoOrders)
		return stack.State(err) == "WF002"
	})
	next.gets(t, "", next.work, intoOrders)
}

// A leader that stalls is refused once its session was ended and another has the lock.
func TestAStalledAdvisoryLeaderIsRefused(t *testing.T) {
	t.Parallel()
	url := advisoryDatabase(t)
	for name, stalls := range stalling {
		t.Run(name, func(t *testing.T) {
			a, b := newLeader(t, url), newLeader(t, url)
			var pid int32
			if err := a.lock.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil || !a.tries(t, tryLock, 42) {
				t.Fatal(err)
			}
			a.stallsUntil(t, b, stalls, func() bool {
				stack.Exec(t, url, fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid))
				return b.tries(t, tryLock, 42)
			})
		})
	}
}

// With the scope all the application's writes need its lock, whatever the table.
func TestAnAdvisoryLockFencesAll(t *testing.T) {
	t.Parallel()
	a := newLeader(t, advisoryDatabase(t), "WIREFENCE_LEASE_SCOPE=all")
	const insert = "INSERT INTO other VALUES ('x')"
	a.gets(t, "WF007", a.work, insert)
	if !a.tries(t, tryLock, 42) {
		t.Fatal("the lock is taken")
	}
	a.gets(t, "", a.work, insert)
	a.lock.Close(t.Context())
	stack.Eventually(t, "its session is over", func() bool {
		_, err := a.work.Exec(t.Context(), insert)
		return stack.State(err) == "WF007"
	})
}

// Where a grant can't be sealed there is no lock: the session ends, and with it the lock.
func TestAnAdvisoryLockWithoutASeal(t *testing.T) {
	t.Parallel()
	url := advisoryDatabase(t)
	a := newLeader(t, url)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 1, 'another', 'another-service')")
	a.gets(t, "57P01", a.lock, "SELECT pg_advisory_lock(42)")
	if _, err := a.lock.Exec(context.Background(), "SELECT 1"); err == nil {
		t.Error("the session goes on")
	}
	again := stack.Connect(t, url)
	stack.Eventually(t, "the lock is free", func() (free bool) {
		return again.QueryRow(t.Context(), tryLock, 42).Scan(&free) == nil && free
	})
}

// Before a pooler in transaction mode a session-level lock is the next client's, too: none is followed,
// and the log says so.
func TestAnAdvisoryLockBeforeATransactionPooler(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PgBouncer")
	url := advisoryDatabase(t)
	a := newLeader(t, url, "WIREFENCE_UPSTREAM="+transactionPooler(t, url))
	if !a.tries(t, tryLock, 42) {
		t.Fatal("the lock is taken")
	}
	a.gets(t, "WF002", a.work, intoOrders)
	a.stderr.Await(t, "cannot follow the session's advisory locks")
}

// transactionPooler is a PgBouncer in transaction mode before the server of a URL.
func transactionPooler(t *testing.T, url string) string {
	t.Helper()
	cfg := stack.Connect(t, url).Config()
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
		Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 20, PoolSize: 2, PoolMode: "transaction"})).EndWith(t)
	return "postgres://" + pooler.Addr() + "/"
}
