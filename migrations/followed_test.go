package migrations_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockTable is that of ShedLock's JDBC providers, whose times are in UTC, followed by its owner.
const lockTable = `CREATE SCHEMA q AUTHORIZATION app; SET ROLE app;
	CREATE TABLE q.shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL);
	SELECT wirefence.declare_rows('shedlock', 'q.shedlock', '{name}', '(extract(epoch FROM locked_at) * 1000000)::bigint', 'locked_by <> ''''', until => 'lock_until');
	RESET ROLE`

// Statements of ShedLock's with its database time, for ten seconds.
const (
	lockRow   = `INSERT INTO q.shedlock VALUES ('nightly', timezone('utc', clock_timestamp()) + '10 s', timezone('utc', clock_timestamp()), 'host') ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', clock_timestamp()) + '10 s', locked_at = timezone('utc', clock_timestamp()), locked_by = 'host' WHERE shedlock.lock_until <= timezone('utc', clock_timestamp())`
	extendRow = `UPDATE q.shedlock SET lock_until = timezone('utc', clock_timestamp()) + '20 s' WHERE name = 'nightly' AND locked_by = 'host' AND lock_until > timezone('utc', clock_timestamp())`
	unlockRow = `UPDATE q.shedlock SET lock_until = timezone('utc', clock_timestamp()) WHERE name = 'nightly' AND locked_by = 'host'`
)

// follower is a session that hears which claims it has changed.
type follower struct {
	*pgx.Conn
	notices *[]*pgconn.Notice
}

func newFollower(t *testing.T, db database) *follower {
	t.Helper()
	conn, notices := db.noticing(t, "app")
	return &follower{conn, notices}
}

// hears runs statements and returns what it heard.
func (f *follower) hears(t *testing.T, sql string) (heard []string) {
	t.Helper()
	*f.notices = nil
	mustExec(t, f.Conn, sql)
	for _, n := range *f.notices {
		if n.SchemaName == "wirefence" && n.TableName == "row_claims" && n.Severity == "INFO" {
			heard = append(heard, n.Detail)
		}
	}
	return heard
}

// takes runs statements and returns the transaction that took the row, as it heard, "" for none.
func (f *follower) takes(t *testing.T, sql string) (taken string) {
	t.Helper()
	heard := f.hears(t, sql)
	if len(heard) != 1 {
		t.Fatalf("%s: it heard %q", sql, heard)
	}
	name, taken, _ := strings.Cut(heard[0], " ")
	if name != "shedlock(nightly)" {
		t.Errorf("%s: it heard of %s", sql, name)
	}
	return taken
}

// A session hears which of its transactions took a row, and of nobody else's.
func TestFollowedRowsTellWhoTookThem(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), lockTable)
		a, b := newFollower(t, db), newFollower(t, db)
		stands := func(want bool, taken, why string) {
			t.Helper()
			if got := look[bool](t, db, "SELECT wirefence.claim_stands('shedlock(nightly)', $1)", taken); got != want {
				t.Errorf("%s: its claim stands: %v", why, got)
			}
		}
		first := a.takes(t, lockRow)
		stands(true, first, "taken")
		for _, f := range []*follower{a, b} {
			if taken := f.takes(t, extendRow); taken != "" {
				t.Errorf("an extension is a take, %q", taken)
			}
		}
		stands(true, first, "extended")
		if a.takes(t, unlockRow) != "" {
			t.Error("an unlock is a take")
		}
		stands(false, first, "unlocked")

		second := b.takes(t, "SET client_min_messages = error; BEGIN; SAVEPOINT s; "+lockRow+"; RELEASE s")
		stands(false, second, "not committed")
		mustExec(t, b.Conn, "COMMIT")
		stands(true, second, "committed")
		stands(false, first, "taken again")
		mustExec(t, b.Conn, unlockRow)

		third := a.takes(t, "BEGIN; SAVEPOINT s; "+lockRow+"; ROLLBACK TO s; COMMIT")
		stands(false, third, "rolled back")
		// A backfill changes nothing of a claim, whatever is recorded of it.
		fifth := a.takes(t, lockRow)
		for _, recorded := range []string{"", "DELETE FROM wirefence.row_claims", "UPDATE wirefence.row_claims SET claim = 0"} {
			mustExec(t, db.admin(t), recorded)
			if b.takes(t, "UPDATE q.shedlock SET locked_by = lower(locked_by)") != "" {
				t.Errorf("%s: a backfill is a take", recorded)
			}
			stands(recorded == "", fifth, "behind a backfill")
		}
		mustExec(t, a.Conn, unlockRow)
		// The same owner takes a lock whose time has passed, without a new claim.
		mustExec(t, a.Conn, "UPDATE q.shedlock SET lock_until = '2001-01-01'")
		fourth := b.takes(t, "UPDATE q.shedlock SET lock_until = timezone('utc', clock_timestamp()) + '10 s'")
		stands(true, fourth, "taken with an old claim")

		if a.takes(t, "DELETE FROM q.shedlock") != "" {
			t.Error("a deletion is a take")
		}
		stands(false, fourth, "deleted")
		if heard := a.hears(t, "INSERT INTO q.shedlock VALUES ('ä b/1', timezone('utc', now()) + '1 d', now(), 'host'); UPDATE q.shedlock SET name = 'c'"); len(heard) != 3 ||
			!strings.HasPrefix(heard[0], "shedlock(%C3%A4%20b/1) ") || heard[1] != "shedlock(%C3%A4%20b/1)" || !strings.HasPrefix(heard[2], "shedlock(c) ") {
			t.Errorf("a row with another key: %q", heard)
		}
		if got := look[string](t, db, "SELECT string_agg(name, ' ') FROM wirefence.row_claims"); got != "shedlock(c)" {
			t.Errorf("the claims of %s are left", got)
		}
	})
}

// The trigger is on the table of its class alone, and goes with its declaration.
func TestFollowingIsTheOwnersAlone(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), lockTable+"; CREATE ROLE intruder LOGIN; GRANT CREATE ON SCHEMA public TO intruder; SET ROLE intruder; CREATE TABLE forged (name text)")
		stranger := db.as(t, "intruder")
		wantCode(t, exec(stranger, "CREATE TRIGGER t AFTER INSERT ON forged FOR EACH ROW EXECUTE FUNCTION wirefence.row_follow_shedlock()"), "42501")
		wantCode(t, exec(stranger, "SELECT wirefence.note_claim('shedlock(nightly)', 1, now(), NULL, NULL)"), "42501")
		wantCode(t, exec(stranger, "SELECT * FROM wirefence.row_claims"), "42501")
		app := newFollower(t, db)
		for _, undo := range []string{
			"SELECT wirefence.declare_rows('shedlock', 'q.shedlock', '{name}', '1::bigint + length(name)', 'locked_by <> ''''')", "SELECT wirefence.drop_rows('shedlock')",
		} {
			mustExec(t, app.Conn, undo)
			if heard := app.hears(t, lockRow+"; "+unlockRow); len(heard) > 0 {
				t.Errorf("behind %s: %q", undo, heard)
			}
		}
		for expression, state := range map[string]string{"lock_until + now()": "42883", "timezone('utc', now())": "42P17", "locked_by": "42883", "'2001-01-01'::timestamp": "22023"} {
			wantCode(t, exec(app.Conn, "SELECT wirefence.declare_rows('shedlock', 'q.shedlock', '{name}', 'length(name)::bigint', 'locked_by <> ''''', until => $1)", expression), state)
		}
	})
}

// What can't be recorded keeps nobody from the table, whose class says what is wrong.
func TestFollowingKeepsNobodyFromTheTable(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), lockTable)
		app := newFollower(t, db)
		faulty := func(want bool) {
			t.Helper()
			if got := look[bool](t, db, "SELECT fault IS NOT NULL FROM wirefence.rows()"); got != want {
				t.Errorf("its class has a fault: %v", got)
			}
		}
		faulty(false)
		mustExec(t, app.Conn, "INSERT INTO q.shedlock VALUES ('a', 'infinity', 'infinity', 'host')")
		faulty(false)
		for change, back := range map[string]string{
			"ALTER TABLE q.shedlock RENAME locked_at TO taken_at":                                            "ALTER TABLE q.shedlock RENAME taken_at TO locked_at",
			"ALTER TABLE q.shedlock ALTER name TYPE text":                                                    "ALTER TABLE q.shedlock ALTER name TYPE varchar(64)",
			"ALTER TABLE q.shedlock ALTER lock_until TYPE timestamptz":                                       "ALTER TABLE q.shedlock ALTER lock_until TYPE timestamp",
			"ALTER TABLE q.shedlock DISABLE TRIGGER USER":                                                    "ALTER TABLE q.shedlock ENABLE TRIGGER USER",
			"ALTER TABLE q.shedlock RENAME TO former; CREATE TABLE q.shedlock (LIKE q.former INCLUDING ALL)": "DROP TABLE q.shedlock; ALTER TABLE q.former RENAME TO shedlock",
		} {
			mustExec(t, app.Conn, change)
			if heard := newFollower(t, db).hears(t, "INSERT INTO q.shedlock VALUES ('b', now(), now(), 'host')"); len(heard) > 0 {
				t.Errorf("%s: it heard %q", change, heard)
			}
			faulty(true)
			mustExec(t, app.Conn, "DELETE FROM q.shedlock; "+back)
			faulty(false)
		}
		if db.Major >= 18 {
			wantCode(t, exec(app.Conn, `CREATE TABLE q.virtual (id int PRIMARY KEY, claim bigint, taken timestamp, until timestamp GENERATED ALWAYS AS (taken + interval '30 s') VIRTUAL);
				SELECT wirefence.declare_rows('virtual', 'q.virtual', '{id}', 'claim', 'claim > 0', until => 'until')`), "0A000")
		}
		// The trigger of one that owned the table writes no claims of it.
		mustExec(t, db.admin(t), "CREATE ROLE heir; ALTER TABLE q.shedlock OWNER TO heir; GRANT CREATE ON SCHEMA public TO app; DELETE FROM wirefence.row_claims")
		mustExec(t, app.Conn, "CREATE TABLE public.shedlock (name varchar(64), lock_until timestamp, locked_at timestamp, locked_by varchar(255)); CREATE TRIGGER t AFTER INSERT ON public.shedlock FOR EACH ROW EXECUTE FUNCTION wirefence.row_follow_shedlock()")
		if heard := app.hears(t, "INSERT INTO public.shedlock VALUES ('nightly', now() + '1 d', now(), 'host')"); len(heard) > 0 {
			t.Errorf("a forged claim: %q", heard)
		}
	})
}
