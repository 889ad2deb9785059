package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// locksOf returns the number of resources that the session holds in its transaction.
func locksOf(t *testing.T, conn *pgx.Conn) int {
	t.Helper()
	return value[int](t, conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
}

// callsOf returns how often the session has called functions of the schema with a name
// since its last report, which it makes between transactions.
func callsOf(t *testing.T, conn *pgx.Conn, name string) int {
	t.Helper()
	return value[int](t, conn, `SELECT coalesce(sum(calls), 0)::int FROM pg_stat_xact_user_functions
		WHERE schemaname = 'wirefence' AND funcname = $1`, name)
}

// A statement takes one lock for each resource, however many rows it writes, and calls no
// function for a row.
func TestManyRowsTakeOneLockForEachResource(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, `SET track_functions = 'all'; CREATE TABLE lines (id int NOT NULL, note text); SELECT wirefence.protect('lines', 'line:{id}');
			SELECT wirefence.seal('line:' || n, 34) FROM generate_series(0, 31) AS n`)
		for _, isolation := range isolations {
			for _, c := range []struct{ rows, resources int }{{1, 1}, {100, 1}, {100, 32}, {10000, 1}, {10000, 32}} {
				if c.rows > 100 && isolation != isolations[0] {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%d", isolation, c.rows, c.resources), func(t *testing.T) {
					var pairs []string
					for n := range c.resources {
						pairs = append(pairs, fmt.Sprintf("line:%d=34", n))
					}
					mustExec(t, admin, "BEGIN ISOLATION LEVEL "+isolation)
					defer mustExec(t, admin, "ROLLBACK")
					checks, rows := callsOf(t, admin, "check_current"), callsOf(t, admin, "guard_row")
					mustExec(t, admin, "SELECT set_config('wirefence.token', $1, true)", strings.Join(pairs, ","))
					mustExec(t, admin, "INSERT INTO lines SELECT n % $1 FROM generate_series(1, $2) AS n", c.resources, c.rows)
					mustExec(t, admin, "UPDATE lines SET note = 'x'; DELETE FROM lines")
					if n := locksOf(t, admin); n != c.resources {
						t.Errorf("%d locks", n)
					}
					if n := callsOf(t, admin, "check_current") - checks; n != 1 {
						t.Errorf("checked %d times", n)
					}
					if n := callsOf(t, admin, "guard_row") - rows; n != 0 {
						t.Errorf("%d rows were looked at by a function", n)
					}
				})
			}
		}
		mustExec(t, admin, "SET wirefence.token = 'line:0=34,line:1=34'")
		wantCode(t, exec(admin, "INSERT INTO lines SELECT n % 3 FROM generate_series(1, 10000) AS n"), "WF002")
	})
}

// A transaction is checked once: by the proxy's check or by the first guard.
func TestATransactionIsCheckedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		admin := db.admin(t)
		mustExec(t, admin, "SET track_functions = 'all'")
		for _, begin := range []string{"SELECT wirefence.check('orders=34')", "SET LOCAL wirefence.token = 'orders=34'"} {
			for _, isolation := range isolations {
				mustExec(t, admin, "BEGIN ISOLATION LEVEL "+isolation)
				checks, judged := callsOf(t, admin, "check_current"), callsOf(t, admin, "guard_unchecked")
				mustExec(t, admin, begin)
				for range 3 {
					mustExec(t, admin, "UPDATE orders SET item = 'x'; UPDATE parts SET item = 'x'; INSERT INTO parts_high VALUES (110)")
				}
				if n := callsOf(t, admin, "check_current") - checks; n != 1 {
					t.Errorf("%s, %s: checked %d times", isolation, begin, n)
				}
				if n := callsOf(t, admin, "guard_unchecked") - judged; n != 0 {
					t.Errorf("%s, %s: judged %d times more", isolation, begin, n)
				}
				if n := locksOf(t, admin); n != 1 {
					t.Errorf("%s, %s: %d locks", isolation, begin, n)
				}
				mustExec(t, admin, "ROLLBACK")
			}
		}
	})
}
