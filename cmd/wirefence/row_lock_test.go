package main

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// lockTable is a table with locks, and how its page declares it.
type lockTable struct {
	create, row string
	declare     []string
}

// tableLocks are libraries whose lock is a row.
func tableLocks(programs string) []libraryLock {
	return []libraryLock{
		{"ShedLock", javaLock(programs, "SpringLocks", "JdbcTemplateLockProvider"), &lockTable{
			"CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)", "row:shedlock(nightly)",
			[]string{"shedlock", "--table", "public.shedlock", "--key", "name", "--claim", "(extract(epoch from locked_at) * 1000000)::bigint", "--while", "locked_by <> ''", "--until", "lock_until"},
		}, ""},
		{"Spring Integration's JdbcLockRegistry", javaLock(programs, "SpringLocks", "JdbcLockRegistry"), &lockTable{
			"CREATE TABLE int_lock (lock_key char(36) NOT NULL, region varchar(100) NOT NULL, client_id char(36), created_date timestamp NOT NULL, CONSTRAINT int_lock_pk PRIMARY KEY (lock_key, region))",
			"row:int_lock(DEFAULT:0ae34898-1512-3120-8fb6-06170a053745)",
			[]string{"int_lock", "--table", "public.int_lock", "--key", "region,lock_key", "--claim", "hashtextextended(client_id::text, 0)", "--while", "client_id IS NOT NULL", "--until", "created_date + interval '20 s'"},
		}, "20"},
		{"River's leader", goLock(programs, "river"), &lockTable{
			"CREATE UNLOGGED TABLE river_leader (elected_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, leader_id text NOT NULL, name text PRIMARY KEY DEFAULT 'default')", "row:river_leader(default)",
			[]string{"river_leader", "--table", "public.river_leader", "--key", "name", "--claim", "(extract(epoch from elected_at) * 1000000)::bigint", "--while", "leader_id <> ''", "--until", "expires_at"},
		}, ""},
	}
}

// prepare makes the lock's table, and declares its rows.
func (l *lockTable) prepare(t *testing.T, url string) {
	t.Helper()
	stack.Exec(t, url, l.create)
	wirefence(t, []string{"WIREFENCE_DATABASE_URL=" + url}, append([]string{"rows", "declare"}, l.declare...)...).expect(t, 0)
}

// lockTableDatabase has ShedLock's table, and a table that its lock protects.
func lockTableDatabase(t *testing.T) string {
	t.Helper()
	url := database(t, true)
	tableLocks("")[0].table.prepare(t, url)
	stack.Exec(t, url, "CREATE TABLE orders (note text); CREATE TABLE other (note text)", "SELECT wirefence.protect('orders', 'orders')")
	return url
}

// Statements of ShedLock's, with its database time. They return whether they changed the row.
const (
	now       = "timezone('utc', clock_timestamp())"
	takeRow   = "INSERT INTO shedlock VALUES ('nightly', " + now + " + $1::interval, " + now + ", 'host') ON CONFLICT (name) DO UPDATE SET lock_until = " + now + " + $1::interval, locked_at = " + now + ", locked_by = 'host' WHERE shedlock.lock_until <= " + now + " RETURNING true"
	extendRow = "UPDATE shedlock SET lock_until = " + now + " + $1::interval WHERE name = 'nightly' AND locked_by = 'host' AND lock_until > " + now + " RETURNING true"
	giveRow   = "UPDATE shedlock SET lock_until = " + now + " - $1::interval WHERE name = 'nightly' AND locked_by = 'host' RETURNING true"
)

func newRowLeader(t *testing.T, url string, settings ...string) *leader {
	t.Helper()
	return newLeader(t, url, append(settings, "WIREFENCE_LEASE_FROM=row:shedlock(nightly)=orders")...)
}

// changes reports whether a statement changed the row of the lock.
func (l *leader) changes(t *testing.T, sql, interval string) (changed bool) {
	t.Helper()
	rows, err := l.lock.Query(t.Context(), sql, interval)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		changed = true
	}
	if rows.Err() != nil {
		t.Fatalf("%s: %v\n%s", sql, rows.Err(), &l.stderr)
	}
	return changed
}

// Two instances of an application on one host have one name in the table. Each writes while it has the
// lock, in each of its sessions.
func TestALockInARowIsFenced(t *testing.T) {
	t.Parallel()
	url := lockTableDatabase(t)
	a, b := newRowLeader(t, url), newRowLeader(t, url)
	a.gets(t, "WF002", a.work, intoOrders)
	if !a.changes(t, takeRow, "60 s") || b.changes(t, takeRow, "60 s") {
		t.Fatal("not one of them has the lock")
	}
	a.gets(t, "", a.work, intoOrders)
	a.gets(t, "", a.work, "INSERT INTO other VALUES ('x')")
	b.gets(t, "WF002", b.work, intoOrders)
	b.gets(t, "", b.work, "VACUUM other")
	wirefence(t, []string{"WIREFENCE_ADMIN_LISTEN=" + a.admin}, "status", "--adopted").expect(t, 0).says(t, "row:shedlock(nightly)", "yes")

	// The other one has the same name, so it may extend the lock: it doesn't come by a lease.
	if !b.changes(t, extendRow, "60 s") {
		t.Fatal("the row says another name")
	}
	b.gets(t, "", b.lock, "UPDATE shedlock SET locked_by = lower(locked_by)")
	b.gets(t, "WF002", b.work, intoOrders)
	a.gets(t, "", a.work, intoOrders)
	if !a.changes(t, giveRow, "1 s") {
		t.Fatal("the lock isn't its own")
	}
	a.gets(t, "WF002", a.work, intoOrders)

	// In a transaction: the lease begins with the commit, and never behind a rollback.
	b.gets(t, "", b.lock, "BEGIN")
	if !b.changes(t, takeRow, "60 s") {
		t.Fatal("the lock is taken")
	}
	b.gets(t, "WF002", b.work, intoOrders)
	b.gets(t, "", b.lock, "ROLLBACK")
	b.gets(t, "WF002", b.work, intoOrders)
	b.gets(t, "", b.lock, "BEGIN")
	if !b.changes(t, takeRow, "60 s") {
		t.Fatal("the lock is taken")
	}
	b.gets(t, "", b.lock, "COMMIT AND CHAIN")
	b.gets(t, "", b.work, intoOrders)
	// The session of the lock may go: the row stays.
	b.lock.Close(t.Context())
	b.gets(t, "", b.work, intoOrders)
	stack.Exec(t, url, "DELETE FROM shedlock")
	stack.Eventually(t, "somebody has deleted the row", func() bool {
		_, err := b.work.Exec(t.Context(), intoOrders)
		return stack.State(err) == "WF002"
	})
	a.gets(t, "", a.lock, "INSERT INTO shedlock VALUES ('nightly', 'infinity', now(), 'host')")
	a.gets(t, "", a.work, intoOrders)
}

// A leader by a row that stalls is refused once its time has passed and another leads. One whose time has
// passed by the database's clock when it takes the row never leads.
func TestAStalledLeaderByARowIsRefused(t *testing.T) {
	t.Parallel()
	url := lockTableDatabase(t)
	for name, stalls := range stalling {
		t.Run(name, func(t *testing.T) {
			stack.Exec(t, url, "DELETE FROM shedlock")
			a, b := newRowLeader(t, url), newRowLeader(t, url)
			if a.changes(t, takeRow, "-300 s"); b.changes(t, extendRow, "1 s") {
				t.Fatal("a lock that has ended is held")
			}
			a.gets(t, "WF002", a.work, intoOrders)
			if !a.changes(t, takeRow, "5 s") {
				t.Fatal("the lock is taken")
			}
			a.stallsUntil(t, b, stalls, func() bool { return b.changes(t, takeRow, "60 s") })
		})
	}
}

// Where a grant can't be sealed the session ends, so the application doesn't learn that it has the lock.
func TestALockInARowWithoutASeal(t *testing.T) {
	t.Parallel()
	url := lockTableDatabase(t)
	a := newRowLeader(t, url)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 1, 'another', 'another-service')")
	a.gets(t, "57P01", a.lock, strings.ReplaceAll(takeRow, "$1", "'60 s'"))
	a.gets(t, "WF002", a.work, intoOrders)
}

// Before a pooler in transaction mode each transaction has its own holder's lease: two sidecars and a client
// without one share the pool's connections.
func TestALockInARowBeforeATransactionPooler(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PgBouncer")
	url := lockTableDatabase(t)
	pooler := transactionPooler(t, url)
	a, b := newRowLeader(t, url, "WIREFENCE_UPSTREAM="+pooler), newRowLeader(t, url, "WIREFENCE_UPSTREAM="+pooler)
	unfenced := stack.Connect(t, strings.Replace(pooler, "//", "//postgres@", 1)+stack.Connect(t, url).Config().Database+"?sslmode=disable")
	take := func(l *leader, lasts string) {
		t.Helper()
		l.gets(t, "", l.lock, strings.ReplaceAll(takeRow, "$1", "'"+lasts+"'"))
	}
	take(a, "2 s")
	for range 3 {
		a.gets(t, "", a.work, intoOrders)
		a.gets(t, "WF002", unfenced, intoOrders)
		b.gets(t, "WF002", b.work, intoOrders)
		if _, err := a.work.Exec(t.Context(), intoOrders); err != nil { // by the extended protocol
			t.Error(err)
		}
	}
	a.gets(t, "", a.work, "BEGIN; SELECT 1")
	stack.Eventually(t, "the lock's time passes", func() bool {
		take(b, "60 s")
		_, err := b.work.Exec(t.Context(), intoOrders)
		return err == nil
	})
	a.gets(t, "WF001", a.work, intoOrders)
	a.gets(t, "", a.work, "ROLLBACK")
	a.gets(t, "WF002", a.work, intoOrders)
	a.gets(t, "WF002", unfenced, intoOrders)
	b.gets(t, "", b.work, intoOrders)
}

// A class that isn't declared, or without an end, is waited for, and the log says what to do.
func TestALockInARowOfAnUndeclaredClass(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	p := startProxy(t, url, "WIREFENCE_LEASE_FROM=row:shedlock(nightly)=orders")
	p.stderr.Await(t, "wirefence rows declare shedlock --until EXPRESSION")
	stack.Exec(t, url, "CREATE TABLE shedlock (name text PRIMARY KEY, lock_until timestamp, claim bigint); SELECT wirefence.declare_rows('shedlock', 'shedlock', '{name}', 'claim', 'claim > 0', until => 'lock_until')")
	stack.Eventually(t, "it is ready", func() bool { status, _ := get(t, "http://"+p.admin+"/readyz"); return status == 200 })
}
