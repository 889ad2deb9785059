package migrations_test

import (
	"fmt"
	"strings"
	"testing"
)

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

// A member of wirefence_bypass that presents a token has it judged.
func TestABypassersTokenIsJudged(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "CREATE TABLE trial (id int); SELECT wirefence.protect('trial', 'trial', true); GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC")
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE ROLE %[1]s_fixer LOGIN IN ROLE wirefence_bypass", db.name))
		fixer := db.as(t, db.name+"_fixer")
		for _, write := range []string{"TRUNCATE reports", "UPDATE reports SET body = 'x' WHERE id = 1", "INSERT INTO trial VALUES (1); UPDATE reports SET body = 'x' WHERE id = 1"} {
			wantCode(t, exec(fixer, "BEGIN; SET LOCAL wirefence.token = 'report:a:1=33'; "+write), "WF001")
			mustExec(t, fixer, "ROLLBACK")
		}
		mustExec(t, fixer, "TRUNCATE reports; UPDATE orders SET item = 'x'")
	})
}

// A role that may only grant wirefence_bypass, as its creator may from 16 on, is not a
// member.
func TestWhoMayGrantBypassIsNoMember(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE ROLE %[1]s_maker LOGIN IN ROLE app", db.name))
		maker, grant := db.as(t, db.name+"_maker"), "GRANT wirefence_bypass TO "+db.name+"_maker WITH "
		if db.Major >= 16 {
			mustExec(t, db.admin(t), grant+"ADMIN TRUE, INHERIT FALSE, SET FALSE")
			wantCode(t, exec(maker, "UPDATE orders SET item = 'x'"), "WF002")
			mustExec(t, db.admin(t), grant+"SET TRUE")
		} else { // all members are alike there
			mustExec(t, db.admin(t), grant+"ADMIN OPTION")
		}
		mustExec(t, maker, "UPDATE orders SET item = 'x'")
	})
}

// Only an existing guard records shadow rows and bypasses.
func TestNotesAreOfGuardsThatStand(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		mustExec(t, app, "CREATE TABLE trial (id int); SELECT wirefence.protect('trial', 'trial', true)")
		mustExec(t, db.as(t, "issuer"), "SELECT wirefence.declare_resource('quiet', 'a trial', mode => 'shadow')")
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE ROLE %[1]s_fixer LOGIN IN ROLE app, wirefence_bypass; DELETE FROM wirefence.history", db.name))
		mustExec(t, app, `CREATE FUNCTION calls() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN EXECUTE TG_ARGV[0]; RETURN NULL; END'`)
		for i, call := range []string{"guard_shadowed('orders', 'payroll', 'WF001')", "guard_shadowed('trial', 'payroll')", "guard_shadowed('orders', 'orders')", "guard_shadowed('trial', 'trial', 'x')"} {
			mustExec(t, app, fmt.Sprintf("CREATE TEMP TABLE own%[1]d (id int); CREATE TRIGGER t AFTER INSERT ON own%[1]d EXECUTE FUNCTION calls('SELECT wirefence.%[2]s'); INSERT INTO own%[1]d VALUES (1)",
				i, strings.ReplaceAll(call, "'", "''")))
		}
		db.wantNoted(t)
		wantCode(t, exec(app, "SELECT wirefence.guard_unchecked('free', 'quiet')"), "WF002")
		db.wantNoted(t)
		wantCode(t, exec(db.as(t, db.name+"_fixer"), "SELECT wirefence.guard_unchecked('pg_class', 'orders')"), "WF002")
		if n := look[int](t, db, "SELECT count(*) FROM wirefence.bypasses"); n != 0 {
			t.Errorf("%d bypasses recorded", n)
		}
	})
}
