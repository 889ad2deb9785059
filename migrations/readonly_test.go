package migrations_test

import (
	"testing"
)

// A READ ONLY transaction with an older snapshot can lock no row. It is refused if the row that
// it sees is not the newest, so it accepts no stale token.
func TestAReadOnlyTransactionWithAnOlderSnapshot(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, app, issuer := db.admin(t), db.app(t), db.as(t, "issuer")
		const fresh, late = "", "40001"
		for _, isolation := range []string{"REPEATABLE READ", "SERIALIZABLE"} {
			for what, c := range map[string]struct {
				since []string // happens behind the snapshot
				state string
			}{
				"nothing":                      {nil, fresh},
				"a seal":                       {[]string{"SELECT wirefence.seal('orders', 35)"}, late},
				"several seals":                {[]string{"SELECT wirefence.seal('orders', 35)", "SELECT wirefence.seal('orders', 36)", "SELECT wirefence.seal('orders', 37)"}, late},
				"an advance":                   {[]string{"SELECT wirefence.check('orders=35')"}, late},
				"a revocation":                 {[]string{"SELECT wirefence.revoke('orders')"}, late},
				"an aborted seal":              {[]string{"BEGIN; SELECT wirefence.seal('orders', 35); ROLLBACK"}, fresh},
				"a reused version":             {[]string{"BEGIN; SELECT wirefence.seal('orders', 35); ROLLBACK", "vacuum", "SELECT wirefence.seal('another', 1)", "SELECT wirefence.seal('another', 2)"}, fresh},
				"a seal and VACUUM":            {[]string{"SELECT wirefence.seal('orders', 35)", "SELECT wirefence.seal('orders', 36)", "vacuum"}, late},
				"another resource":             {[]string{"SELECT wirefence.seal('another', 9)"}, fresh},
				"locks on the row":             {[]string{"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT wirefence.check('orders=34'); COMMIT", "BEGIN; SELECT wirefence.check('orders=34'); COMMIT"}, fresh},
				"an aborted seal, then a seal": {[]string{"BEGIN; SELECT wirefence.seal('orders', 35); ROLLBACK", "SELECT wirefence.seal('orders', 36)"}, late},
			} {
				for _, begin := range []string{"BEGIN ISOLATION LEVEL " + isolation + " READ ONLY", "BEGIN ISOLATION LEVEL " + isolation} {
					mustExec(t, admin, "TRUNCATE wirefence.resource_locks")
					mustExec(t, issuer, "SELECT wirefence.check('orders=34'), wirefence.check('another=1')")
					snapshot(t, app, begin)
					mustExec(t, app, "SAVEPOINT s; SET TRANSACTION READ ONLY")
					for _, sql := range c.since {
						if sql == "vacuum" {
							mustExec(t, admin, "VACUUM wirefence.resource_locks")
							continue
						}
						mustExec(t, issuer, sql)
					}
					if got := code(exec(app, "SELECT wirefence.check('orders=34')")); got != c.state {
						t.Errorf("%s, behind %s: %q, want %q", begin, what, got, c.state)
					}
					mustExec(t, app, "ROLLBACK")
					if c.state == late {
						mustExec(t, app, begin)
						wantCode(t, exec(app, "SELECT wirefence.check('orders=34')"), "WF001") // the retry
						mustExec(t, app, "ROLLBACK")
					}
				}
			}
			// A version on another page, behind many updates.
			mustExec(t, issuer, "SELECT wirefence.check('moved=1')")
			snapshot(t, app, "BEGIN ISOLATION LEVEL "+isolation+" READ ONLY")
			mustExec(t, issuer, "SELECT wirefence.seal('moved', n) FROM generate_series(2, 300) AS n")
			wantCode(t, exec(app, "SELECT wirefence.check('moved=1')"), late)
			mustExec(t, app, "ROLLBACK")
			// A resource that is new.
			snapshot(t, app, "BEGIN ISOLATION LEVEL "+isolation+" READ ONLY")
			mustExec(t, issuer, "SELECT wirefence.seal('new', 2)")
			wantCode(t, exec(app, "SELECT wirefence.check('new=1')"), late)
			mustExec(t, app, "ROLLBACK")
			mustExec(t, admin, "TRUNCATE wirefence.resource_locks")
			// A check as the first statement takes the snapshot before it waits.
			mustExec(t, issuer, "SELECT wirefence.check('orders=34')")
			mustExec(t, issuer, "BEGIN; SELECT wirefence.seal('orders', 35)")
			mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation+" READ ONLY")
			checked := db.start(t, app, "SELECT wirefence.check('orders=34')")
			mustExec(t, issuer, "COMMIT")
			wantCode(t, <-checked, late)
			mustExec(t, app, "ROLLBACK")
		}
	})
}
