package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// two creates a table and two sessions of its owner.
func two(t *testing.T, db database) (one, other *pgx.Conn) {
	t.Helper()
	mustExec(t, db.admin(t), "GRANT CREATE ON SCHEMA public TO app")
	one, other = db.app(t), db.app(t)
	mustExec(t, one, "CREATE TABLE public.cp (id int)")
	return one, other
}

// guardOf returns the guard of a table, and its fault.
func (db database) guardOf(t *testing.T, table string) string {
	t.Helper()
	return strings.Join(column[string](t, db.as(t, "issuer"), "SELECT concat_ws(' ', resource, fault) FROM wirefence.guarded() WHERE relation = 'public."+table+"'"), "; ")
}

// A session that guards a table while another does sees the result of the other.
func TestProtectLooksBehindItsLock(t *testing.T) {
	for _, c := range []struct{ name, before, first, second, state, guard string }{
		{"twice", "", "protect('cp', 'cp')", "protect('cp', 'cp')", "", "cp"},
		{"twice again", "protect('cp', 'cp')", "protect('cp', 'cp')", "protect('cp', 'cp')", "", "cp"},
		{"in two modes", "", "protect('cp', 'cp', true)", "protect('cp', 'cp')", "", "cp"},
		{"for another resource", "protect('cp', 'cp')", "unprotect('cp'), wirefence.protect('cp', 'other')", "protect('cp', 'cp')", "42710", "other"},
		{"for two resources", "", "protect('cp', 'other')", "protect('cp', 'cp')", "42710", "other"},
		{"unguarded meanwhile", "protect('cp', 'cp')", "unprotect('cp')", "protect('cp', 'other')", "", "other"},
		{"unguarded twice", "protect('cp', 'cp')", "unprotect('cp')", "unprotect('cp')", "42704", ""},
		{"guarded and unguarded", "", "protect('cp', 'cp')", "unprotect('cp')", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				one, other := two(t, db)
				if c.before != "" {
					mustExec(t, one, "SELECT wirefence."+c.before)
				}
				mustExec(t, one, "BEGIN; SELECT wirefence."+c.first)
				second := db.start(t, other, "SELECT wirefence."+c.second)
				mustExec(t, one, "COMMIT")
				err := <-second
				wantCode(t, err, c.state)
				if err != nil && !strings.Contains(err.Error(), "is already guarded") && !strings.Contains(err.Error(), "is not guarded") {
					t.Error(err)
				}
				if got := db.guardOf(t, "cp"); got != c.guard {
					t.Errorf("guarded for %q, want %q", got, c.guard)
				}
			})
		})
	}
}

// A partition that was created while protect waited for its parent is guarded completely.
func TestProtectSeesAPartitionOfMeanwhile(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		one, other := two(t, db)
		mustExec(t, one, "CREATE TABLE pt (id int) PARTITION BY LIST (id)")
		mustExec(t, one, "BEGIN; CREATE TABLE pt1 PARTITION OF pt FOR VALUES IN (1) PARTITION BY LIST (id); CREATE TABLE pt11 PARTITION OF pt1 DEFAULT")
		second := db.start(t, other, "SELECT wirefence.protect('pt', 'pt')")
		mustExec(t, one, "COMMIT")
		wantCode(t, <-second, "")
		for _, table := range []string{"pt", "pt1", "pt11"} {
			if got := db.guardOf(t, table); got != "pt" {
				t.Errorf("%s: %q", table, got)
			}
		}
	})
}

// A session that has read a table can write to it although protect waits: protect holds
// no lock that it would have to upgrade.
func TestProtectStrengthensNoLock(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		one, other := two(t, db)
		reader := db.app(t)
		mustExec(t, reader, "BEGIN; SET LOCAL wirefence.token = 'cp=1'; SELECT * FROM cp")
		mustExec(t, one, "BEGIN; SELECT wirefence.protect('cp', 'cp')")
		second := db.start(t, other, "SELECT wirefence.protect('cp', 'cp')")
		mustExec(t, one, "COMMIT")
		mustExec(t, db.admin(t), `SET statement_timeout = '20s'; DO 'BEGIN WHILE NOT EXISTS (
			SELECT FROM pg_locks WHERE relation = ''cp''::regclass AND mode = ''AccessExclusiveLock'' AND NOT granted) LOOP PERFORM pg_sleep(0.002); END LOOP; END'`)
		mustExec(t, reader, "INSERT INTO cp VALUES (1); COMMIT")
		wantCode(t, <-second, "")
	})
}

// An old snapshot does not show which guards exist. They are left alone.
func TestProtectWithAnOldSnapshot(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		one, other := two(t, db)
		mustExec(t, one, "SELECT wirefence.protect('cp', 'cp'); CREATE TABLE fresh (id int)")
		for _, call := range []string{"protect('cp', 'cp')", "unprotect('cp')"} {
			for _, isolation := range isolations[1:] {
				snapshot(t, other, "BEGIN ISOLATION LEVEL "+isolation)
				mustExec(t, one, "SELECT wirefence.unprotect('cp'), wirefence.protect('cp', 'other')")
				wantCode(t, exec(other, "SELECT wirefence."+call), "40001")
				mustExec(t, other, "ROLLBACK")
				if got := db.guardOf(t, "cp"); got != "other" {
					t.Errorf("%s, %s: guarded for %q", call, isolation, got)
				}
				mustExec(t, one, "SELECT wirefence.unprotect('cp'), wirefence.protect('cp', 'cp')")
			}
		}
		snapshot(t, other, "BEGIN ISOLATION LEVEL REPEATABLE READ")
		mustExec(t, one, "SELECT wirefence.protect('fresh', 'other')")
		wantCode(t, exec(other, "SELECT wirefence.protect('fresh', 'fresh')"), "42710")
		mustExec(t, other, "ROLLBACK")
	})
}

// Ownership of a table is enough, whatever rights its owner has revoked from itself.
func TestAnOwnerWithoutRightsGuards(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		one, _ := two(t, db)
		mustExec(t, one, "REVOKE UPDATE, DELETE, TRUNCATE ON cp FROM app; SELECT wirefence.protect('cp', 'cp')")
		wantCode(t, exec(one, "INSERT INTO cp VALUES (1)"), "WF002")
		mustExec(t, one, "SELECT wirefence.protect('cp', 'cp'), wirefence.unprotect('cp'); INSERT INTO cp VALUES (1)")
	})
}
