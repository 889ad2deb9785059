package migrations_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// faultsOf returns the faults of guards by table, without the advice.
func faultsOf(t *testing.T, db database) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, line := range column[string](t, db.as(t, "issuer"), "SELECT relation || '|' || fault FROM wirefence.guarded() WHERE fault IS NOT NULL") {
		name, fault, _ := strings.Cut(line, "|")
		found[name], _, _ = strings.Cut(fault, ":")
	}
	return found
}

func wantFaults(t *testing.T, db database, want map[string]string) {
	t.Helper()
	if got := faultsOf(t, db); !maps.Equal(got, want) {
		t.Errorf("faults %q, want %q", got, want)
	}
}

// A detached partition keeps only its own triggers, which for a template are few. An
// attached partition needs its parent's guard.
func TestPartitionsComeAndGo(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "SELECT wirefence.protect('parts', 'orders'), wirefence.protect('reports', 'report:{tenant}:{id}')")
		wantFaults(t, db, map[string]string{})
		mustExec(t, app, `ALTER TABLE parts DETACH PARTITION parts_low; ALTER TABLE reports DETACH PARTITION reports_low;
			CREATE TABLE reports_later PARTITION OF reports FOR VALUES FROM (200) TO (300);
			ALTER TABLE reports DETACH PARTITION reports_later`)
		wantFaults(t, db, map[string]string{
			"public.parts_low":   "guarded, but not declared",
			"public.reports_low": "its rows are not guarded any more, as those of a detached partition",
		})
		wantCode(t, exec(app, "UPDATE parts_low SET item = 'x'"), "WF002")
		wantCode(t, exec(app, "UPDATE reports_low SET body = 'x'"), "")
		wantCode(t, exec(app, "UPDATE reports_later SET body = 'x'"), "")
		mustExec(t, app, "SELECT wirefence.protect('parts_low', 'orders'), wirefence.protect('reports_low', 'report:{tenant}:{id}')")
		wantFaults(t, db, map[string]string{})
		wantCode(t, exec(app, "UPDATE reports_low SET body = 'x'"), "WF002")

		mustExec(t, app, "ALTER TABLE parts ATTACH PARTITION parts_low FOR VALUES FROM (0) TO (100)")
		wantFaults(t, db, map[string]string{})
		wantCode(t, exec(app, "UPDATE parts_low SET item = 'x'"), "WF002")
		// A partition's triggers for rows are its parent's.
		const attach = "ALTER TABLE reports ATTACH PARTITION reports_low FOR VALUES FROM (0) TO (100)"
		wantCode(t, exec(app, attach), "42710")
		mustExec(t, app, "SELECT wirefence.unprotect('reports_low'); "+attach)
		wantFaults(t, db, map[string]string{"public.reports_low": "a later partition"})
		wantCode(t, exec(app, "UPDATE reports_low SET body = 'x'"), "WF002")
		mustExec(t, app, "SELECT wirefence.protect('reports', 'report:{tenant}:{id}')")
		wantFaults(t, db, map[string]string{})
		if got := column[string](t, db.as(t, "issuer"), "SELECT relation FROM wirefence.guarded() GROUP BY 1 HAVING count(*) > 1"); len(got) > 0 {
			t.Errorf("listed twice: %q", got)
		}
	})
}

// A table is identified by its number, whatever its name; the name distinguishes a
// dropped table from the one that took its place, and from one that has its number.
func TestTablesThatMoveOrGo(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, admin := guarded(t, db), db.admin(t)
		mustExec(t, admin, "GRANT CREATE ON DATABASE "+db.name+" TO app")
		mustExec(t, app, "SELECT wirefence.protect('parts', 'orders'), wirefence.protect('reports', 'report:{tenant}:{id}')")
		mustExec(t, app, `CREATE SCHEMA shop; ALTER TABLE orders SET SCHEMA shop; ALTER TABLE shop.orders RENAME TO purchases;
			CREATE SCHEMA depot; CREATE TABLE depot.bins (id int); SELECT wirefence.protect('depot.bins', 'bins');
			ALTER SCHEMA depot RENAME TO store`)
		wantFaults(t, db, map[string]string{})
		wantCode(t, exec(app, "UPDATE shop.purchases SET item = 'x'"), "WF002")
		wantCode(t, exec(app, "INSERT INTO store.bins VALUES (1)"), "WF002")
		// Another table by the former name is another table.
		mustExec(t, app, "CREATE TABLE orders (id int, item text); INSERT INTO orders VALUES (1); SELECT wirefence.protect('orders', 'orders')")
		wantFaults(t, db, map[string]string{})
		mustExec(t, app, "SELECT wirefence.unprotect('orders'), wirefence.protect('shop.purchases', 'orders')")
		wantFaults(t, db, map[string]string{})

		mustExec(t, app, "DROP TABLE store.bins; CREATE TABLE store.bins (id int); INSERT INTO store.bins VALUES (1)")
		wantFaults(t, db, map[string]string{"depot.bins": "the table has gone"})
		wantCode(t, exec(app, "SELECT wirefence.unprotect('store.bins')"), "42704")
		mustExec(t, app, "SELECT wirefence.protect('store.bins', 'bins')")
		// The number now belongs to a table that was not guarded.
		mustExec(t, admin, "UPDATE wirefence.guards SET relation = 'free'::regclass WHERE name = 'depot.bins'")
		mustExec(t, admin, "INSERT INTO wirefence.guards SELECT 'lines', 'public.past', 'past', false, false, 'app'")
		// This one belongs to a partition, which is guarded and has no declaration of its own.
		mustExec(t, admin, "INSERT INTO wirefence.guards SELECT 'parts_low', 'public.ended', 'ended', false, false, 'app'")
		gone := map[string]string{"depot.bins": "the table has gone", "public.past": "the table has gone", "public.ended": "the table has gone"}
		wantFaults(t, db, gone)
		mustExec(t, app, "SELECT wirefence.protect('lines', 'lines'), wirefence.protect('free', 'free')")
		delete(gone, "public.past") // 'lines' has been declared anew
		delete(gone, "depot.bins")
		wantFaults(t, db, gone)
	})
}

// The declaration of a dropped table can be removed.
func TestForgetAGuard(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		mustExec(t, app, "SELECT wirefence.protect('parts', 'orders'), wirefence.protect('reports', 'report:{tenant}:{id}'), wirefence.protect('free', 'free')")
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE ROLE %s_other LOGIN", db.name))
		other := db.as(t, db.name+"_other")
		for _, c := range []struct{ call, state string }{
			{"NULL", "42704"}, {"''", "42704"}, {"'public.nowhere'", "42704"}, {"'free'", "42704"}, {"'public.free'", "55000"},
		} {
			wantCode(t, exec(issuer, "SELECT wirefence.forget_guard("+c.call+")"), c.state)
		}
		mustExec(t, app, "DROP TABLE free, base CASCADE")
		wantFaults(t, db, map[string]string{"public.free": "the table has gone", "public.base": "the table has gone"})
		wantCode(t, exec(other, "SELECT wirefence.forget_guard('public.free')"), "42501")
		mustExec(t, app, "SELECT wirefence.forget_guard('public.free')")
		mustExec(t, issuer, "SELECT wirefence.forget_guard('public.base')")
		wantFaults(t, db, map[string]string{})
		wantCode(t, exec(issuer, "SELECT wirefence.forget_guard('public.base')"), "42704")
	})
}
