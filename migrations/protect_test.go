package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// The declarations of guards and the installed triggers are compared.
func TestGuardedFindsWhatHasDrifted(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		wantFaults := func(want map[string]string) { t.Helper(); wantFaults(t, db, want) }
		const later = "a later partition"
		wantFaults(map[string]string{"public.parts_high": later, "public.reports_high": later})
		wantCode(t, exec(app, "TRUNCATE parts_high"), "") // which is why it is a fault
		mustExec(t, app, "SELECT wirefence.protect('parts', 'orders'), wirefence.protect('reports', 'report:{tenant}:{id}')")
		wantFaults(nil)
		wantCode(t, exec(app, "TRUNCATE parts_high"), "WF002")
		wantCode(t, exec(app, "TRUNCATE reports_high"), "WF006")

		mustExec(t, app, `ALTER TABLE orders RENAME TO renamed; ALTER TABLE lines DISABLE TRIGGER wirefence_guard;
			ALTER TABLE reports RENAME COLUMN tenant TO customer; CREATE TABLE heir2 () INHERITS (base)`)
		wantFaults(map[string]string{
			"public.lines": "a trigger of its guard is disabled", "public.heir2": "not guarded, though it inherits from a guarded table",
			"public.reports":      "a column of the template was renamed",
			"public.reports_high": "a column of the template was renamed", "public.reports_low": "a column of the template was renamed",
		})
		wantCode(t, exec(app, "UPDATE renamed SET item = 'x'"), "WF002")
		wantCode(t, exec(app, "SET wirefence.token = 'report:a:1=34'; UPDATE reports SET body = 'x' WHERE id = 1; RESET wirefence.token"), "")
		wantCode(t, exec(app, "UPDATE reports SET body = 'x' WHERE id = 1"), "WF002")
		mustExec(t, app, `SELECT wirefence.unprotect('reports'), wirefence.protect('reports', 'report:{customer}:{id}'),
			wirefence.protect('lines', 'lines'), wirefence.protect('base', 'orders')`)
		wantFaults(nil)

		mustExec(t, app, "DROP TRIGGER wirefence_guard ON lines; DROP TRIGGER wirefence_guard_update ON reports; DROP TABLE base CASCADE; CREATE TABLE base (id int, item text)")
		wantFaults(map[string]string{
			"public.lines": "a trigger of its guard is missing, or it has got a parent since", "public.base": "the table has gone",
			"public.reports": "a trigger of its guard is missing, or it has got a parent since", "public.reports_low": "a trigger of its guard is missing, or it has got a parent since", "public.reports_high": "a trigger of its guard is missing, or it has got a parent since",
		})
		mustExec(t, app, "SELECT wirefence.protect('lines', 'lines'), wirefence.protect('base', 'orders'), wirefence.protect('reports', 'report:{customer}:{id}')")
		wantFaults(nil)
		mustExec(t, app, "SELECT wirefence.unprotect(relation) FROM (VALUES ('lines'::regclass), ('base'), ('reports'), ('renamed'), ('parts')) v(relation)")
		if got := column[string](t, issuer, "SELECT relation FROM wirefence.guarded()"); len(got) > 0 {
			t.Errorf("still guarded: %q", got)
		}
		mustExec(t, app, "UPDATE reports SET body = 'x'; TRUNCATE renamed, lines")
	})
}

// A column of a template has one text in a name, and a row of which it is null, or whose name is too
// long, belongs to no resource.
func TestNamesOfATemplate(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "CREATE TABLE public.odd (\"we ird\" text, flag bool); SELECT wirefence.protect('odd', '{{x}}:{we ird}/{flag}'), wirefence.protect('free', '{{x}}')")
		mustExec(t, app, "SET wirefence.token = '%7Bx%7D:q/true=1'; INSERT INTO odd (\"we ird\", flag) VALUES ('q', true)")
		mustExec(t, app, "SET wirefence.token = '%7Bx%7D=1'; INSERT INTO free VALUES (1); RESET wirefence.token")
		for _, values := range []string{"NULL, true", "repeat('x', 250), false"} {
			wantSaid(t, values, exec(app, "INSERT INTO odd (\"we ird\", flag) VALUES ("+values+")"), "WF002", "belongs to no resource")
		}
	})
}

// A partition that was attached with a guard for another resource can be included by
// following the hints of the errors.
func TestAPartitionWithAGuardOfItsOwn(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		for _, c := range []struct{ table, resource, columns string }{{"parts", "orders", "id int, item text"}, {"reports", "report:{tenant}:{id}", "id int, tenant text, body text"}} {
			own := c.table + "_own"
			mustExec(t, app, fmt.Sprintf(`CREATE TABLE %[1]s (%[3]s); SELECT wirefence.protect('%[1]s', 'own');
				ALTER TABLE %[2]s ATTACH PARTITION %[1]s FOR VALUES FROM (200) TO (300)`, own, c.table, c.columns))
			protect := fmt.Sprintf("SELECT wirefence.protect('%s', '%s')", c.table, c.resource)
			err := exec(app, protect)
			wantCode(t, err, "42710")
			pgErr := (*pgconn.PgError)(nil)
			if !errors.As(err, &pgErr) || pgErr.Hint != "Run SELECT wirefence.unprotect('public."+own+"') first." {
				t.Fatalf("%v", err)
			}
			advised := strings.TrimSuffix(strings.TrimPrefix(pgErr.Hint, "Run "), " first.")
			mustExec(t, app, advised)
			wantCode(t, exec(app, advised), "42809")
			if got := column[string](t, db.admin(t), "SELECT name FROM wirefence.guards WHERE resource = 'own'"); len(got) > 0 {
				t.Errorf("still declared: %q", got)
			}
			mustExec(t, app, protect)
			if got := db.guardOf(t, own); got != c.resource {
				t.Errorf("guarded as %q", got)
			}
		}
	})
}

// A guard without its declaration, as in a dump of the table alone, still judges tokens.
func TestAGuardThatIsNotDeclaredJudges(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, db.admin(t), "DELETE FROM wirefence.guards")
		for _, sql := range []string{"UPDATE orders SET item = 'x'", "INSERT INTO parts_high VALUES (104)", "UPDATE reports SET body = 'x' WHERE id = 1"} {
			for _, c := range []struct{ token, state string }{{"34", ""}, {"33", "WF001"}, {"", "WF002"}} {
				fence := ""
				if c.token != "" {
					fence = "orders=" + c.token + ",report:a:1=" + c.token
				}
				mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", fence)
				wantCode(t, exec(app, sql), c.state)
			}
		}
	})
}

// Two tables may be guarded at the same time.
func TestFirstGuardsAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, "CREATE TABLE a (id int); CREATE TABLE b (id int)")
		one, other := db.admin(t), db.admin(t)
		mustExec(t, one, "BEGIN; SELECT wirefence.protect('a', 'a')")
		second := db.start(t, other, "SELECT wirefence.protect('b', 'b')")
		mustExec(t, one, "COMMIT")
		wantCode(t, <-second, "")
		mustExec(t, admin, "BEGIN; SELECT wirefence.check('a=1,b=1'); INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); COMMIT")
	})
}

// A session that has checked before any table was guarded has a plan of check that leaves
// no note. It learns of the first guard.
func TestASessionLearnsOfTheFirstGuard(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, admin := db.app(t), db.admin(t)
		mustExec(t, admin, "CREATE TABLE first (id int); GRANT INSERT ON first TO app")
		for range 10 {
			mustExec(t, app, "SELECT wirefence.check('orders=34')")
		}
		mustExec(t, admin, "SELECT wirefence.protect('first', 'orders')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=34'); INSERT INTO first VALUES (1); COMMIT")
	})
}

// protect warns of subscriptions into the table, its partitions and heirs, and of no others. They are
// those of another database of the same server.
func TestProtectWarnsOfReplication(t *testing.T) {
	onEachAlone(t, func(t *testing.T, db database) {
		const tables = `CREATE TABLE other (id int); CREATE TABLE alone (id int); CREATE TABLE tree (id int) PARTITION BY RANGE (id);
			CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9); CREATE TABLE inherited () INHERITS (alone)`
		publisher := create(t, db.Postgres, "")
		source := db.connectTo(t, "postgres", publisher.name)
		mustExec(t, source, tables+"; CREATE PUBLICATION p FOR TABLE leaf, inherited")
		mustExec(t, source, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", db.name)

		conn, notices := db.noticing(t, "app")
		mustExec(t, db.admin(t), "GRANT CREATE ON SCHEMA public TO PUBLIC")
		mustExec(t, conn, tables)
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s' PUBLICATION p WITH (create_slot = false)",
			db.name, db.Port, publisher.name))
		t.Cleanup(func() { mustExec(t, db.admin(t), "DROP SUBSCRIPTION "+db.name) })
		for table, warned := range map[string]bool{"tree": true, "alone": true, "other": false} {
			*notices = nil
			mustExec(t, conn, "SELECT wirefence.protect('"+table+"', 'orders')")
			want := map[bool]string{true: "WARNING: guards don't check rows that are replicated into public." + table + ": subscription " + db.name}[warned]
			got := ""
			for _, n := range *notices {
				got += n.Severity + ": " + n.Message
			}
			if got != want {
				t.Errorf("%s: %q, not %q", table, got, want)
			}
		}
		mustExec(t, source, "INSERT INTO leaf VALUES (1)") // without a token, there and here
		await(t, conn, "the row in the guarded table", "SELECT EXISTS (SELECT FROM leaf)")
	})
}
