package migrations_test

import (
	"fmt"
	"strings"
	"testing"
)

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
