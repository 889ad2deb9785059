package migrations_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// noted lists the rows of kind shadow: state, resource, tokens and table.
func (db database) noted(t *testing.T) []string {
	t.Helper()
	return column[string](t, db.as(t, "issuer"), `SELECT concat_ws(' ', h.state, h.resource, h.token, h.current_token, replace(h.relation, 'public.', ''))
		FROM wirefence.history(kinds => '{shadow}') AS h, generate_series(1, h.count) ORDER BY 1`)
}

func (db database) wantNoted(t *testing.T, want ...string) {
	t.Helper()
	got := db.noted(t)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("noted\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	mustExec(t, db.admin(t), "DELETE FROM wirefence.history")
}

// A resource in shadow mode refuses nothing and records what it would have refused.
func TestAResourceInShadowModeRefusesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		db.seal(t, "orders", 34)
		db.seal(t, "lines", 34)
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'a trial', mode => 'shadow')")
		for _, fence := range []string{"orders=34", "orders=33", "orders=35", "orders=33,lines=34"} {
			mustExec(t, app, "SELECT wirefence.check($1)", fence)
		}
		db.wantNoted(t, "WF001 orders 33 34", "WF001 orders 33 34", "WF003 orders 35 34")
		// Other resources of the same fence are judged as ever.
		wantCode(t, exec(app, "SELECT wirefence.check('orders=33,lines=33')"), "WF001")
		wantCode(t, exec(app, "SELECT wirefence.check('orders=x')"), "WF004")
		db.wantNoted(t)
		// A proxy reads the reason.
		if got := value[*string](t, app, "SELECT wirefence.check('orders=34', NULL, false, false)"); got != nil {
			t.Errorf("a current token: %s", *got)
		}
		if got := value[string](t, app, "SELECT wirefence.check('orders=33', NULL, false, false)"); !strings.HasPrefix(got, `WF001: stale fencing token for resource "orders". Resource "orders": presented token 33, current token 34, granted to`) {
			t.Errorf("a former token: %s", got)
		}
		// Nobody waits for an unfenced session, or terminates it.
		before := db.zombie(t, "orders=34")
		mustExec(t, issuer, "SET statement_timeout = '3 s'; SELECT wirefence.seal('orders', 35, 'worker-c')")
		wantCode(t, before(), "")
		// A transaction that cannot write is accepted and not recorded.
		mustExec(t, db.admin(t), "DELETE FROM wirefence.history")
		mustExec(t, app, "BEGIN READ ONLY; SELECT wirefence.check('orders=33'); COMMIT")
		mustExec(t, app, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT wirefence.check('orders=33'); COMMIT")
		db.wantNoted(t, "WF001 orders 33 35")
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'it held', mode => 'enforce')")
		wantCode(t, exec(app, "SELECT wirefence.check('orders=34')"), "WF001")
		mustExec(t, app, "SELECT wirefence.check('orders=35')")
		// A token that advances the resource on its first use is recorded, too.
		mustExec(t, issuer, "SELECT wirefence.declare_resource('used', 'a trial', advance => 'use', mode => 'shadow')")
		mustExec(t, app, "SELECT wirefence.check('used=34'), wirefence.check('used=33')")
		db.wantNoted(t, "WF001 used 33 34")
		if got := db.lastToken(t, "used"); got != 34 {
			t.Errorf("recorded %d", got)
		}
	})
}

// Guards of a resource in shadow mode record each transaction once, and accept it.
func TestGuardsHeedTheModeOfAResource(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, db.as(t, "issuer"), "SELECT wirefence.set_resource('orders', 'a trial', mode => 'shadow')")
		mustExec(t, app, "BEGIN; INSERT INTO orders VALUES (10, 'x'); INSERT INTO orders VALUES (11, 'x'); UPDATE parts SET item = 'x'; COMMIT")
		db.wantNoted(t, "WF002 orders orders")
		mustExec(t, app, "SET wirefence.token = 'orders=33'; INSERT INTO orders VALUES (12, 'x')")
		db.wantNoted(t, "WF001 orders 33 34")
		mustExec(t, app, "SET wirefence.token = 'orders=34'; INSERT INTO orders VALUES (13, 'x')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=33'); INSERT INTO orders VALUES (14, 'x'); COMMIT")
		db.wantNoted(t, "WF001 orders 33 34")
		// A check before a savepoint is valid after a rollback to it, though without a lock.
		mustExec(t, app, "RESET wirefence.token; BEGIN; SELECT wirefence.check('orders=34'); SAVEPOINT s; SELECT wirefence.check('lines=34'); ROLLBACK TO s; INSERT INTO orders VALUES (15, 'x'); COMMIT")
		db.wantNoted(t)
		mustExec(t, app, "BEGIN; SAVEPOINT s; SELECT wirefence.check('orders=34'); ROLLBACK TO s; INSERT INTO orders VALUES (16, 'x'); COMMIT")
		db.wantNoted(t, "WF002 orders orders")
		wantCode(t, exec(app, "UPDATE lines SET id = 2"), "WF002") // of another resource
	})
}

// shadowGuards switches the guards of guardedTables to shadow mode.
const shadowGuards = `SELECT wirefence.protect('public.orders', 'orders', true), wirefence.protect('public.lines', 'lines', true),
	wirefence.protect('public.parts', 'orders', true), wirefence.protect('public.base', 'orders', true),
	wirefence.protect('public.reports', 'report:{tenant}:{id}', true)`

// A guard in shadow mode accepts every write that it would refuse, and records it.
func TestGuardsInShadowModeRefuseNothing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, shadowGuards)
		mustExec(t, db.admin(t), "DELETE FROM wirefence.history")
		for _, c := range []struct {
			fence, sql string
			want       []string
		}{
			{"", "INSERT INTO orders VALUES (10, 'x')", []string{"WF002 orders orders"}},
			{"lines=34", "INSERT INTO orders VALUES (11, 'x')", []string{"WF002 orders orders"}},
			{"orders=33", "UPDATE orders SET item = 'y'", []string{"WF001 orders 33 34 orders"}},
			{"orders=35", "UPDATE orders SET item = 'y'", []string{"WF003 orders 35 34 orders"}},
			{"orders=x", "UPDATE orders SET item = 'y'", []string{"WF004 orders orders"}},
			{"orders=34", "UPDATE orders SET item = 'y'", nil},
			{"orders=33", "BEGIN; UPDATE orders SET item = 'y'; UPDATE orders SET item = 'z'; COMMIT", []string{"WF001 orders 33 34 orders"}},
			{"", "DELETE FROM orders WHERE id = 1", []string{"WF002 lines lines", "WF002 orders orders"}},
			{"", "INSERT INTO parts VALUES (102, 'x')", []string{"WF002 orders parts"}},
			{"", "INSERT INTO parts_high VALUES (103, 'x')", []string{"WF002 orders parts_high"}},
			{"", "UPDATE base SET item = 'y'", []string{"WF002 orders base"}},
			{"report:a:1=34", "UPDATE reports SET body = 'y' WHERE id = 1", nil},
			{"report:a:1=33", "UPDATE reports SET body = 'y' WHERE id = 1", []string{"WF001 report:a:1 33 34 reports_low"}},
			{"report:a:1=34", "UPDATE reports SET tenant = 'b' WHERE id = 1", []string{"WF002 report:b:1 reports_low"}},
			{"", "INSERT INTO reports VALUES (2, NULL)", []string{"WF002 report:{tenant}:{id} reports_low"}},
			{"", "TRUNCATE reports", []string{"WF006 report:{tenant}:{id} reports"}},
		} {
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", c.fence)
			if err := exec(app, c.sql); err != nil {
				t.Errorf("%q %s: %v", c.fence, c.sql, err)
			}
			t.Log(c.fence, c.sql)
			db.wantNoted(t, c.want...)
		}
	})
}

// A statement that a guard in shadow mode would refuse for a thousand rows is recorded in
// part, which a row without a resource shows.
func TestAGuardInShadowModeNotesTheFirstRows(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, shadowGuards)
		mustExec(t, db.admin(t), "DELETE FROM wirefence.history")
		mustExec(t, app, "INSERT INTO reports SELECT i % 100, 't' || i FROM generate_series(1, 1000) AS i")
		got := db.noted(t)
		named := slices.DeleteFunc(slices.Clone(got), func(row string) bool { return !strings.Contains(row, "report:t") })
		if len(got) > 100 || len(named) < 20 || len(got) != len(named)+1 {
			t.Errorf("%d rows, %d of them with a name", len(got), len(named))
		}
	})
}

// A write that passes a guard in shadow mode counts as no check for a guard that refuses.
func TestAGuardInShadowModeChecksForNobodyElse(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "SELECT wirefence.protect('parts', 'orders', true)")
		for _, fence := range []string{"", "orders=33", "lines=34"} {
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", fence)
			mustExec(t, app, "BEGIN; UPDATE parts SET item = 'x'")
			want := "WF002"
			if fence == "orders=33" {
				want = "WF001"
			}
			wantCode(t, exec(app, "UPDATE orders SET item = 'x'"), want)
			mustExec(t, app, "ROLLBACK")
		}
	})
}

// The mode of a guard is listed, changed by another protect, and compared.
func TestTheModeOfAGuard(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		listed := func(table string) string {
			t.Helper()
			return value[string](t, issuer, "SELECT concat_ws(' ', mode, fault) FROM wirefence.guarded() WHERE relation = $1", table)
		}
		mustExec(t, app, shadowGuards)
		for _, table := range []string{"public.orders", "public.parts_high", "public.reports", "public.heir"} {
			if got := listed(table); got != "shadow" {
				t.Errorf("%s: %s", table, got)
			}
		}
		mustExec(t, app, "SELECT wirefence.protect('orders', 'orders')")
		if got := listed("public.orders"); got != "enforce" {
			t.Errorf("protected anew: %s", got)
		}
		wantCode(t, exec(app, "UPDATE orders SET item = 'x'"), "WF002")
		mustExec(t, app, `DROP TRIGGER wirefence_guard_insert ON reports; CREATE TRIGGER wirefence_guard_insert AFTER INSERT ON reports
			FOR EACH ROW EXECUTE FUNCTION wirefence.guard_row('report:{tenant}:{id}')`)
		if got := listed("public.reports"); !strings.Contains(got, "in part") {
			t.Errorf("of two modes: %s", got)
		}
	})
}

// snapshot begins a transaction and takes its snapshot.
func snapshot(t *testing.T, conn *pgx.Conn, begin string) {
	t.Helper()
	mustExec(t, conn, begin)
	mustExec(t, conn, "SELECT count(*) FROM pg_class")
}
