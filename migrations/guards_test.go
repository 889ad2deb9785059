package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// guardedTables are created by the application, which owns and guards them.
const guardedTables = `
	CREATE TABLE public.orders (id int PRIMARY KEY, item text);
	CREATE TABLE public.lines (id int, order_id int REFERENCES public.orders ON DELETE CASCADE ON UPDATE CASCADE);
	CREATE TABLE public.parts (id int, item text) PARTITION BY RANGE (id);
	CREATE TABLE public.parts_low PARTITION OF public.parts FOR VALUES FROM (0) TO (100);
	CREATE TABLE public.base (id int, item text);
	CREATE TABLE public.heir () INHERITS (public.base);
	CREATE TABLE public.reports (id int, tenant text, body text) PARTITION BY RANGE (id);
	CREATE TABLE public.reports_low PARTITION OF public.reports FOR VALUES FROM (0) TO (100);
	SELECT wirefence.protect('public.orders', 'orders'), wirefence.protect('public.lines', 'lines'),
	       wirefence.protect('public.parts', 'orders'), wirefence.protect('public.base', 'orders'),
	       wirefence.protect('public.reports', 'report:{tenant}:{id}');
	CREATE TABLE public.parts_high PARTITION OF public.parts FOR VALUES FROM (100) TO (200);
	CREATE TABLE public.reports_high (body text, tenant text, id int);
	ALTER TABLE public.reports ATTACH PARTITION public.reports_high FOR VALUES FROM (100) TO (200);
	CREATE TABLE public.free (id int);
	CREATE VIEW public.seen AS SELECT * FROM public.orders;
	CREATE FUNCTION public.writes(n int) RETURNS void LANGUAGE sql AS 'INSERT INTO public.orders VALUES (n, ''f'')';
	CREATE PROCEDURE public.writes_twice(n int) LANGUAGE plpgsql AS
		'BEGIN INSERT INTO public.orders VALUES (n, ''p''); COMMIT; INSERT INTO public.orders VALUES (n + 1, ''p''); END'`

// guarded is a database with those tables, in which token 34 of each resource is current
// and 33 is stale.
func guarded(t *testing.T, db database) *pgx.Conn {
	t.Helper()
	mustExec(t, db.admin(t), "GRANT CREATE ON SCHEMA public TO app")
	app := db.app(t)
	mustExec(t, app, guardedTables)
	for _, resource := range []string{"orders", "lines", "report:a:1", "report:b:1", "report:a:101"} {
		db.seal(t, resource, 33)
		db.seal(t, resource, 34)
	}
	mustExec(t, app, `SET wirefence.token = 'orders=34,lines=34,report:a:1=34,report:b:1=34,report:a:101=34';
		INSERT INTO orders VALUES (1, 'a'), (2, 'b');
		INSERT INTO lines VALUES (1, 1);
		INSERT INTO parts VALUES (1, 'a'), (101, 'a');
		INSERT INTO base VALUES (1, 'a');
		INSERT INTO reports VALUES (1, 'a'), (101, 'a');
		PREPARE w AS UPDATE orders SET item = 'x';
		RESET wirefence.token`)
	return app
}

// guardedWrites are writes to guarded tables and the resources that they need.
var guardedWrites = []struct {
	name, sql string
	wants     []string
	since     int // version of PostgreSQL
}{
	{"insert", "INSERT INTO orders VALUES (9, 'x')", []string{"orders"}, 0},
	{"insert of no row", "INSERT INTO orders SELECT 9, 'x' WHERE false", []string{"orders"}, 0},
	{"update", "UPDATE orders SET item = 'x'", []string{"orders"}, 0},
	{"delete", "DELETE FROM base", []string{"orders"}, 0},
	{"truncate", "TRUNCATE lines", []string{"lines"}, 0},
	{"truncate of several", "TRUNCATE orders, lines", []string{"orders", "lines"}, 0},
	{"upsert", "INSERT INTO orders VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET item = 'x'", []string{"orders"}, 0},
	{"merge", "MERGE INTO orders USING (VALUES (1)) v(id) ON orders.id = v.id WHEN MATCHED THEN UPDATE SET item = 'x'", []string{"orders"}, 15},
	{"data-modifying CTE", "WITH w AS (DELETE FROM base RETURNING id) SELECT * FROM w", []string{"orders"}, 0},
	{"view", "UPDATE seen SET item = 'x'", []string{"orders"}, 0},
	{"function", "SELECT writes(9)", []string{"orders"}, 0},
	{"DO", "DO 'BEGIN UPDATE orders SET item = ''x''; END'", []string{"orders"}, 0},
	{"prepared statement", "EXECUTE w", []string{"orders"}, 0},
	{"cascade of a delete", "DELETE FROM orders WHERE id = 1", []string{"orders", "lines"}, 0},
	{"cascade of an update", "UPDATE orders SET id = 7 WHERE id = 1", []string{"orders", "lines"}, 0},
	{"cascade that meets no row", "DELETE FROM orders WHERE id = 2", []string{"orders", "lines"}, 0},
	{"partition", "UPDATE parts_low SET item = 'x'", []string{"orders"}, 0},
	{"parent of partitions", "UPDATE parts SET item = 'x'", []string{"orders"}, 0},
	{"later partition", "UPDATE parts_high SET item = 'x'", []string{"orders"}, 0},
	{"insert into a later partition", "INSERT INTO parts_high VALUES (102, 'x')", []string{"orders"}, 0},
	{"heir", "INSERT INTO heir VALUES (2, 'x')", []string{"orders"}, 0},
	{"row", "UPDATE reports SET body = 'x' WHERE id = 1", []string{"report:a:1"}, 0},
	{"row of a partition", "UPDATE reports_low SET body = 'x'", []string{"report:a:1"}, 0},
	{"row of a later partition", "UPDATE reports_high SET body = 'x'", []string{"report:a:101"}, 0},
	{"rows of two resources", "UPDATE reports SET body = 'x'", []string{"report:a:1", "report:a:101"}, 0},
	{"row that is moved", "UPDATE reports SET tenant = 'b' WHERE id = 1", []string{"report:a:1", "report:b:1"}, 0},
	{"row that is moved to another partition", "UPDATE reports SET id = 101 WHERE id = 1", []string{"report:a:1", "report:a:101"}, 0},
	{"row that is inserted", "INSERT INTO reports VALUES (1, 'b')", []string{"report:b:1"}, 0},
	{"row that is deleted", "DELETE FROM reports WHERE id = 1", []string{"report:a:1"}, 0},
}

// fenceOf returns a fence that names each resource with a token.
func fenceOf(resources []string, token int) string {
	var pairs []string
	for _, r := range resources {
		pairs = append(pairs, fmt.Sprintf("%s=%d", r, token))
	}
	return strings.Join(pairs, ",")
}

func TestGuardsJudgeEveryWayToWrite(t *testing.T) {
	onEach(t, func(t *testing.T, db database) { judgesWrites(t, db, guarded(t, db), isolations...) })
}

// judgesWrites tries each write without a token, with tokens of other resources, with
// stale and future ones, and with the current ones, in transactions that it rolls back.
func judgesWrites(t *testing.T, db database, app *pgx.Conn, isolations ...string) {
	t.Helper()
	for _, w := range guardedWrites {
		if db.Major < w.since {
			continue
		}
		cases := []struct{ fence, state string }{
			{"", "WF002"}, {"elsewhere=1", "WF002"}, {fenceOf(w.wants, 33), "WF001"}, {fenceOf(w.wants, 35), "WF003"}, {fenceOf(w.wants, 34), ""},
		}
		if len(w.wants) == 2 {
			cases = append(cases, struct{ fence, state string }{fenceOf(w.wants[:1], 34), "WF002"}, struct{ fence, state string }{fenceOf(w.wants[1:], 34), "WF002"},
				struct{ fence, state string }{fenceOf(w.wants[:1], 34) + "," + fenceOf(w.wants[1:], 33), "WF001"})
		}
		for _, c := range cases {
			for _, isolation := range isolations {
				t.Run(strings.Join([]string{w.name, c.fence, isolation}, " "), func(t *testing.T) {
					mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
					defer mustExec(t, app, "ROLLBACK")
					mustExec(t, app, "SELECT set_config('wirefence.token', $1, true)", c.fence)
					wantCode(t, exec(app, w.sql), c.state)
				})
			}
		}
	}
}

func TestGuardsJudgeCopy(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		for _, c := range []struct{ fence, table, rows, state string }{
			{"orders=34", "orders", "8\tx\n9\ty\n", ""}, {"orders=33", "orders", "8\tx\n", "WF001"}, {"", "orders", "8\tx\n", "WF002"},
			{"report:a:1=34", "reports", "1\ta\tx\n1\ta\ty\n", ""}, {"report:a:1=34", "reports", "1\ta\tx\n1\tb\ty\n", "WF002"},
			{"orders=34", "parts", "5\tx\n105\ty\n", ""}, {"", "parts_high", "105\ty\n", "WF002"},
		} {
			mustExec(t, app, "BEGIN")
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, true)", c.fence)
			_, err := app.PgConn().CopyFrom(t.Context(), strings.NewReader(c.rows), "COPY "+c.table+" FROM STDIN")
			wantCode(t, err, c.state)
			mustExec(t, app, "ROLLBACK")
		}
	})
}

func TestAProcedureIsGuardedAfterItsCommit(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "SET wirefence.token = 'orders=34'")
		mustExec(t, app, "CALL writes_twice(10)")
		mustExec(t, app, `CREATE PROCEDURE late() LANGUAGE plpgsql AS 'BEGIN INSERT INTO orders VALUES (20, ''p''); COMMIT;
			SET wirefence.token = ''orders=33''; INSERT INTO orders VALUES (21, ''p''); END'`)
		wantCode(t, exec(app, "CALL late()"), "WF001")
		if n := value[int](t, app, "SELECT count(*)::int FROM orders WHERE id >= 20"); n != 1 {
			t.Errorf("%d rows are there, want the one before the commit", n)
		}
	})
}

// The checks of a transaction end with it, and with a rollback to an earlier savepoint.
func TestWhatATransactionPassedEndsWithIt(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		const write, rows = "UPDATE orders SET item = 'y'", "UPDATE reports SET body = 'y' WHERE id = 1"
		mustExec(t, app, "BEGIN; SET LOCAL wirefence.token = 'orders=34,report:a:1=34'; "+write+"; "+rows)
		mustExec(t, app, "RESET wirefence.token; "+write+"; "+rows+"; COMMIT") // it was checked for both
		for _, sql := range []string{write, rows} {
			wantCode(t, exec(app, sql), "WF002")
			mustExec(t, app, "BEGIN; SAVEPOINT s; SET LOCAL wirefence.token = 'orders=34,report:a:1=34'; "+sql+"; ROLLBACK TO s")
			wantCode(t, exec(app, sql), "WF002")
			mustExec(t, app, "ROLLBACK")
			mustExec(t, app, "BEGIN; SAVEPOINT s; SET LOCAL wirefence.token = 'orders=34,report:a:1=34'; "+sql+"; RELEASE s; RESET wirefence.token; "+sql+"; ROLLBACK")
		}
	})
}

// A check, such as that of a proxy, serves the guards of its transaction, too.
func TestACheckServesTheGuards(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		for _, isolation := range isolations {
			begin := "BEGIN ISOLATION LEVEL " + isolation
			for _, c := range []struct{ fence, sql, state string }{
				{"orders=34", "UPDATE orders SET item = 'x'", ""},
				{"orders=34", "UPDATE parts SET item = 'x'; INSERT INTO parts_high VALUES (103)", ""},
				{"orders=34,lines=34", "DELETE FROM orders", ""},
				{"orders=34", "DELETE FROM orders", "WF002"},
				{"report:a:1=34,report:b:1=34", "UPDATE reports SET tenant = 'b' WHERE id = 1", ""},
				{"report:a:1=34", "UPDATE reports SET tenant = 'b' WHERE id = 1", "WF002"},
				{"report:new:7=1", "INSERT INTO reports VALUES (7, 'new')", ""},
				{"%7Bx%7D=1,orders=34", "UPDATE orders SET item = 'x'", ""},
			} {
				mustExec(t, app, begin)
				mustExec(t, app, "SELECT wirefence.check($1)", c.fence)
				wantCode(t, exec(app, c.sql), c.state)
				mustExec(t, app, "ROLLBACK")
				if c.fence == "orders=34" {
					mustExec(t, app, begin+" READ ONLY")
					mustExec(t, app, "SELECT wirefence.check($1)", c.fence)
					mustExec(t, app, "COMMIT")
				}
			}
			mustExec(t, app, begin+"; SAVEPOINT s; SELECT wirefence.check('orders=34'); ROLLBACK TO s")
			wantCode(t, exec(app, "UPDATE orders SET item = 'x'"), "WF002")
			mustExec(t, app, "ROLLBACK")
		}
		mustExec(t, app, "SELECT wirefence.check('orders=34')") // a transaction of its own
		wantCode(t, exec(app, "UPDATE orders SET item = 'x'"), "WF002")
		// A resource that was recorded before its table was guarded leaves a note, too.
		mustExec(t, app, "SELECT wirefence.check('late=5'); SELECT wirefence.protect('free', 'late')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('late=5'); INSERT INTO free VALUES (1); COMMIT")
	})
}

// A check that was made READ ONLY is none for a guard: the end of a savepoint, or of a block
// with EXCEPTION, makes the transaction READ WRITE again.
func TestAGuardTrustsNoReadOnlyCheck(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		mustExec(t, app, `CREATE FUNCTION pg_temp.checks(fence text) RETURNS void LANGUAGE plpgsql AS $$
			BEGIN
				PERFORM set_config('transaction_read_only', 'on', true), set_config('wirefence.token', fence, false), wirefence.check(), wirefence.check(fence);
			EXCEPTION WHEN division_by_zero THEN NULL;
			END $$`)
		mustExec(t, issuer, "SELECT wirefence.check('advanced=5')")
		mustExec(t, app, "SELECT wirefence.protect('free', 'advanced')")
		for _, isolation := range isolations {
			for _, c := range []struct{ fence, write, state string }{
				{"orders=34", "UPDATE orders SET item = 'x'", ""}, {"report:a:1=34", "UPDATE reports SET body = 'x' WHERE id = 1", ""},
				{"advanced=6", "INSERT INTO free VALUES (1)", ""},
			} {
				for _, check := range []string{"SAVEPOINT s; SET TRANSACTION READ ONLY; SET wirefence.token = 'F'; SELECT wirefence.check(); RELEASE s", "SELECT pg_temp.checks('F')"} {
					mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation)
					mustExec(t, app, "SELECT 1")
					mustExec(t, app, strings.ReplaceAll(check, "F", c.fence))
					if passed := value[string](t, app, "SELECT coalesce(current_setting('wirefence.checked', true), '')"); passed != "" {
						t.Errorf("%s, %s: %q is noted", isolation, c.fence, passed)
					}
					wantCode(t, exec(app, c.write), c.state)
					mustExec(t, app, "ROLLBACK; RESET wirefence.token")
				}
			}
		}
	})
}

// protect takes as long as its transaction, which the owner of a table can leave open. No
// grant waits for that, and a check of a resource that is granted meanwhile leaves a note
// for the guard.
func TestProtectHoldsUpNoGrant(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "GRANT CREATE ON SCHEMA public TO app")
		issuer, app := db.as(t, "issuer"), db.app(t)
		mustExec(t, issuer, "SET statement_timeout = '30s'; SELECT wirefence.seal('orders', 1)")
		mustExec(t, app, "BEGIN; CREATE TABLE public.notes (id text NOT NULL); SELECT wirefence.protect('public.notes', '{id}')")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 2), wirefence.seal('new', 2)")
		mustExec(t, app, "COMMIT")
		for _, fence := range []string{"new=2", "orders=2", "orders=2,new=2"} { // not in the session's variable
			mustExec(t, app, "BEGIN")
			mustExec(t, app, "SELECT wirefence.check($1)", fence)
			name, _, _ := strings.Cut(fence, "=")
			mustExec(t, app, "INSERT INTO public.notes VALUES ($1)", name)
			mustExec(t, app, "COMMIT")
		}
	})
}

// A takeover waits for a guarded writer as for a checked one, and terminates it after
// preempt_after; its later writes are refused.
func TestATakeoverEndsAGuardedWriter(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		zombie := guarded(t, db)
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = '200 ms'")
		mustExec(t, zombie, "SET wirefence.token = 'orders=34'; BEGIN; UPDATE orders SET item = 'zombie'")
		db.seal(t, "orders", 35)
		if err := exec(zombie, "COMMIT"); err == nil {
			t.Error("the former holder's transaction was committed")
		}
		late := db.app(t)
		mustExec(t, late, "SET wirefence.token = 'orders=34'")
		wantCode(t, exec(late, "UPDATE orders SET item = 'zombie'"), "WF001")
		if n := value[int](t, late, "SELECT count(*)::int FROM orders WHERE item = 'zombie'"); n != 0 {
			t.Errorf("%d rows of the former holder", n)
		}
	})
}

func TestMembersOfBypassMayWriteAndAreRecorded(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		admin := db.admin(t)
		mustExec(t, admin, fmt.Sprintf("CREATE ROLE %[1]s_fixer LOGIN; CREATE ROLE %[1]s_team IN ROLE wirefence_bypass; GRANT app TO %[1]s_fixer", db.name))
		fixer := db.as(t, db.name+"_fixer")
		const write = "UPDATE orders SET item = 'm'; UPDATE reports SET body = 'm'; TRUNCATE reports"
		wantCode(t, exec(fixer, write), "WF002")
		wantCode(t, exec(admin, write), "WF002") // a superuser is no member by that alone
		mustExec(t, admin, fmt.Sprintf("GRANT %[1]s_team TO %[1]s_fixer", db.name))
		mustExec(t, fixer, "SET application_name = 'repair'; BEGIN; "+write+"; "+write+"; COMMIT")
		mustExec(t, fixer, "INSERT INTO orders VALUES (50, 'm')")
		mustExec(t, db.app(t), "CREATE TABLE trial (id int); SELECT wirefence.protect('trial', 'trial', true)")
		for _, judged := range []string{"TRUNCATE reports", "UPDATE reports SET body = 'x' WHERE id = 1", "INSERT INTO trial VALUES (1); UPDATE reports SET body = 'x' WHERE id = 1", "UPDATE orders SET item = 'm'"} {
			wantCode(t, exec(fixer, "BEGIN; SET LOCAL wirefence.token = 'report:a:1=33,orders=33'; "+judged), "WF001") // a token that is presented
			mustExec(t, fixer, "ROLLBACK")
		}
		if got := column[string](t, admin, "SELECT relation || ' ' || resource || ' ' || application FROM wirefence.bypasses ORDER BY written_at"); strings.Join(got, ";") != "public.orders orders repair;public.orders orders repair" {
			t.Errorf("recorded: %q", got)
		}
	})
}

// Appliers of logical replication, and other sessions that run as a replica, write
// without guards, as with any table with triggers.
func TestReplicasAreNotGuarded(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		replica := db.admin(t)
		mustExec(t, replica, "SET session_replication_role = replica; UPDATE orders SET item = 'r'; UPDATE reports SET body = 'r'; RESET session_replication_role")
		wantCode(t, exec(replica, "UPDATE orders SET item = 'r'"), "WF002")
	})
}

// A rollback to a savepoint removes the checks made after the savepoint. Earlier checks
// stay valid.
func TestARollbackBehindACheckLeavesItStanding(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "CREATE TABLE trial (id int PRIMARY KEY); SELECT wirefence.protect('trial', 'trial', true)")
		mustExec(t, app, `CREATE FUNCTION tries(sql text) RETURNS void LANGUAGE plpgsql AS
			'BEGIN BEGIN EXECUTE sql; RAISE EXCEPTION ''back''; EXCEPTION WHEN raise_exception THEN NULL; END; END'`)
		const order, report = "UPDATE orders SET item = 'x'", "UPDATE reports SET body = 'x' WHERE id = 1"
		for _, behind := range []string{
			"SELECT wirefence.check('lines=34')", "INSERT INTO trial VALUES (1)", "SET LOCAL wirefence.token = 'lines=34'; UPDATE lines SET id = 2",
			"SELECT tries('SELECT wirefence.check(''lines=34'')')", "SELECT tries('INSERT INTO trial VALUES (1)')",
		} {
			for _, isolation := range isolations {
				mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation+"; SELECT wirefence.check('orders=34,report:a:1=34'); SAVEPOINT s; "+behind+"; ROLLBACK TO s")
				wantCode(t, exec(app, order+"; "+report), "")
				wantCode(t, exec(app, "UPDATE lines SET id = 3"), "WF002")
				mustExec(t, app, "ROLLBACK")
			}
		}
		// The notes of the shadow guard do not change that.
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=34,trial=1'); SAVEPOINT s; SELECT wirefence.check('lines=34'); ROLLBACK TO s; INSERT INTO trial VALUES (2); COMMIT")
		db.wantNoted(t)
		// A lock alone is no check.
		mustExec(t, app, "BEGIN")
		mustExec(t, app, "SELECT pg_advisory_xact_lock_shared($1)", look[int64](t, db, "SELECT wirefence.lock_key('orders')"))
		wantCode(t, exec(app, order), "WF002")
		mustExec(t, app, "ROLLBACK")
	})
}
