package migrations_test

import (
	"strings"
	"testing"
	"time"
)

// source returns the source of a resource's tokens, "" if it is unknown.
func (db database) source(t *testing.T, resource string) string {
	t.Helper()
	return look[string](t, db, "SELECT coalesce(source, '') FROM wirefence.resource_locks WHERE resource_id = $1", resource)
}

func TestAResourceTakesTheFirstSourceThatIsNamed(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, db.admin(t), known)
		for _, c := range []struct{ sql, resource, want string }{
			{"SELECT wirefence.check('new=7')", "new", ""},
			{"SELECT wirefence.check('new=7@zk')", "new", "zk"},
			{"SELECT wirefence.check('new=8')", "new", "zk"},
			{"SELECT wirefence.check('other=7@zk')", "other", "zk"},
			{"SELECT wirefence.check('used=35@zk')", "used", "zk"},
			{"SELECT wirefence.check('single=34@zk')", "single", "zk"},
			{"SELECT wirefence.check('observed=1@zk', NULL, false, true)", "observed", "zk"},
			// Of a resource whose tokens are sealed, no client tells the source.
			{"SELECT wirefence.check('granted=34@zk')", "granted", ""},
			{"SELECT wirefence.check('once=34@zk')", "once", ""},
			{"SELECT wirefence.seal('once', 35, 'w')", "once", ""},
			{"SELECT wirefence.seal('granted', 35, 'w', 'redis')", "granted", "redis"},
			{"SELECT wirefence.seal('granted', 36, 'w')", "granted", "redis"},
			{"SELECT wirefence.seal('sealed', 1, 'w', 'redis')", "sealed", "redis"},
			{"SELECT wirefence.acquire('leased', 'w', '1 min')", "leased", "postgres"},
		} {
			mustExec(t, issuer, c.sql)
			if got := db.source(t, c.resource); got != c.want {
				t.Errorf("after %s: source %q, want %q", c.sql, got, c.want)
			}
		}
	})
}

// Evidence: lock-services-arent-mixed
func TestASealOfAnotherSourceIsRefused(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		mustExec(t, db.admin(t), known+"; UPDATE wirefence.resource_locks SET sealed_at = now()")
		for _, c := range []struct{ sql, state string }{
			{"SELECT wirefence.seal('etcd', 35, 'w', 'redis')", "WF003"},
			{"SELECT wirefence.seal('etcd', 34, 'w', 'redis')", "WF003"},
			{"SELECT wirefence.seal('etcd', 1, 'w', 'redis')", "WF003"},
			{"SELECT wirefence.seal('strict', 35, 'w')", "WF003"},
			{"SELECT wirefence.seal('etcd', 35, 'w', 'Redis')", "WF004"},
			{"SELECT wirefence.seal('etcd', 35, 'w', '')", "WF004"},
			{"SELECT wirefence.acquire('redis', 'w', '1 min')", "WF003"},
		} {
			wantCode(t, exec(issuer, c.sql), c.state)
		}
		err := exec(issuer, "SELECT wirefence.seal('redis', 35, 'w', 'etcd')")
		wantSaid(t, "a seal", err, "WF003", `unknown fencing token for resource "redis": it comes from "etcd", not from "redis"`)
		wantSaid(t, "a seal", err, "WF003", "wirefence resource set NAME --source etcd --reason WHY")
		if n := value[int](t, issuer, "SELECT count(*) FROM wirefence.leases"); n != 0 {
			t.Errorf("a refused acquire left %d leases", n)
		}
		for _, resource := range []string{"etcd", "redis", "strict"} {
			if got := db.lastToken(t, resource); got != 34 {
				t.Errorf("%s is at token %d", resource, got)
			}
		}
		mustExec(t, issuer, "SELECT wirefence.seal('etcd', 35, 'w', 'etcd')")
		mustExec(t, issuer, "SELECT wirefence.seal('etcd', 36, 'w')")
		if value[bool](t, issuer, "SELECT wirefence.seal('etcd', 36, 'w', 'etcd')") {
			t.Error("sealed twice")
		}
	})
}

// Two first writers name different sources: exactly one wins, and neither deadlocks nor
// is terminated.
func TestOneOfTwoFirstSourcesWins(t *testing.T) {
	cases := map[string]struct{ setup, first, second, secondState string }{
		"checks of a new resource":     {"", "SELECT wirefence.check('r=7@etcd')", "SELECT wirefence.check('r=7@zk')", "WF003"},
		"a higher token":               {"", "SELECT wirefence.check('r=7@etcd')", "SELECT wirefence.check('r=8@zk')", "WF003"},
		"an advance":                   {"SELECT wirefence.check('r=6')", "SELECT wirefence.check('r=7@etcd')", "SELECT wirefence.check('r=8@zk')", "WF003"},
		"the current token":            {"SELECT wirefence.check('r=7')", "SELECT wirefence.check('r=7@etcd')", "SELECT wirefence.check('r=7@zk')", "WF003"},
		"seals":                        {"", "SELECT wirefence.seal('r', 7, 'a', 'etcd')", "SELECT wirefence.seal('r', 8, 'b', 'zk')", "WF003"},
		"seals of an old resource":     {"SELECT wirefence.seal('r', 6)", "SELECT wirefence.seal('r', 7, 'a', 'etcd')", "SELECT wirefence.seal('r', 7, 'b', 'zk')", "WF003"},
		"a seal and a check":           {"", "SELECT wirefence.seal('r', 7, 'a', 'etcd')", "SELECT wirefence.check('r=7@zk')", "WF003"},
		"a check and a seal":           {"", "SELECT wirefence.check('r=7@etcd')", "SELECT wirefence.seal('r', 8, 'b', 'zk')", ""}, // a client doesn't say for seals
		"a check and an acquire":       {"", "SELECT wirefence.check('r=7@etcd')", "SELECT wirefence.acquire('r', 'b', '1 min')", ""},
		"repeatable read":              {"", "SELECT wirefence.check('r=7@etcd')", "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT wirefence.check('r=8@zk')", "40001"},
		"several resources, crosswise": {"", "SELECT wirefence.check('r=7@etcd,s=1@etcd')", "SELECT wirefence.check('s=1@zk,r=7@zk')", "WF003"},
	}
	onEach(t, func(t *testing.T, db database) {
		admin, one, two := db.admin(t), db.as(t, "issuer"), db.as(t, "issuer")
		for name, c := range cases {
			for _, end := range []string{"COMMIT", "ROLLBACK"} {
				t.Run(name+", "+end, func(t *testing.T) {
					mustExec(t, admin, "TRUNCATE wirefence.resource_locks, wirefence.leases")
					if c.setup != "" {
						mustExec(t, one, c.setup)
					}
					mustExec(t, one, "BEGIN")
					mustExec(t, one, c.first)
					waiting := db.start(t, two, c.second)
					mustExec(t, one, end)
					err := <-waiting
					want, state := "etcd", c.secondState
					if end == "ROLLBACK" || state == "" {
						want, state = "zk", ""
						if strings.Contains(c.second, "acquire") {
							want = "postgres"
						}
					}
					wantCode(t, err, state)
					if two.PgConn().TxStatus() != 'I' {
						mustExec(t, two, "COMMIT")
					}
					if got := value[string](t, admin, "SELECT source FROM wirefence.resource_locks WHERE resource_id = 'r'"); got != want {
						t.Errorf("the source is %q, want %q", got, want)
					}
				})
			}
		}
	})
}

// A writer with the same token, without its source, is not an older holder: the first
// writer that names the source neither terminates that transaction nor waits for it. A
// writer records the source when no other is active.
//
// Evidence: I8
func TestTheFirstToNameASourceRunsBesideOthers(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := db.app(t)
		mustExec(t, app, "SET statement_timeout = '30s'")
		mustExec(t, app, "SELECT wirefence.check('orders=34')")
		for _, isolation := range isolations {
			holder := db.zombie(t, "orders=34")
			mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
			mustExec(t, app, "SELECT wirefence.check('orders=34@etcd')")
			mustExec(t, app, "COMMIT")
			if got := db.source(t, "orders"); got != "" {
				t.Errorf("%s: the source is %q beside another writer", isolation, got)
			}
			wantCode(t, holder(), "")
		}
		mustExec(t, app, "SELECT wirefence.check('orders=34@etcd')")
		if got := db.source(t, "orders"); got != "etcd" {
			t.Errorf("the source is %q", got)
		}
	})
}

// A writer whose source turns out to be foreign during its wait must not terminate those
// that it waited for, whatever its token.
func TestATokenOfAnotherSourceEndsNobody(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, issuer := db.admin(t), db.as(t, "issuer")
		for _, takeover := range []string{"SELECT wirefence.check('orders=40@zk')", "SELECT wirefence.seal('orders', 40, 'w', 'zk')"} {
			mustExec(t, issuer, "SELECT wirefence.check('orders=34')")
			mustExec(t, admin, "UPDATE wirefence.resource_locks SET preempt_after = '3 s', source = NULL, sealed_at = now()")
			holder := db.zombie(t, "orders=34")
			waiting := db.start(t, issuer, takeover)
			mustExec(t, admin, "UPDATE wirefence.resource_locks SET source = 'etcd'")
			wantCode(t, <-waiting, "WF003")
			wantCode(t, holder(), "")
		}
	})
}

func TestRevokeEndsTheLease(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, waiter := db.as(t, "issuer"), db.as(t, "issuer")
		mustExec(t, waiter, "LISTEN wirefence_released")
		grant, token := win(t, issuer, "orders", "worker-a", time.Hour)
		if got := value[int64](t, issuer, "SELECT wirefence.revoke('orders')"); got != token+1 {
			t.Errorf("last_token is %d after token %d", got, token)
		}
		wantNotice(t, waiter, "orders")
		if value[bool](t, issuer, renewSQL, "orders", grant) {
			t.Error("a revoked lease was renewed")
		}
		if _, next := win(t, waiter, "orders", "worker-b", time.Minute); next != token+2 {
			t.Errorf("the next token is %d", next)
		}
	})
}

// A revocation meets an acquire that waits for an older transaction and has locked the
// row of its lease.
func TestRevokeBesideAnAcquire(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, operator := db.as(t, "issuer"), db.as(t, "issuer")
		db.seal(t, "orders", 34)
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = NULL")
		zombie := db.zombie(t, "orders=34")
		acquired := db.start(t, issuer, "SELECT wirefence.acquire('orders', 'worker-b', '1 min')")
		mustExec(t, operator, "SELECT wirefence.revoke('orders')")
		if state := code(<-acquired); state != "" && state != "57P01" { // it may have come first, and was in the way
			t.Errorf("the acquire failed by %s", state)
		}
		if zombie() == nil {
			t.Error("the holder committed")
		}
		// The present holder has the last token, and nobody has a revoked one.
		if n := value[int](t, operator, `SELECT count(*) FROM wirefence.resource_locks AS l LEFT JOIN wirefence.leases AS h USING (resource_id)
			WHERE l.holder IS DISTINCT FROM h.holder`); n != 0 {
			t.Error("a revoked lease is still held")
		}
	})
}
