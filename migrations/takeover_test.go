package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const insert = "INSERT INTO public.writes VALUES ('orders', $1, 'x')"

// writes returns the number of committed rows of a token.
func (db database) writes(t *testing.T, token int) int {
	t.Helper()
	return look[int](t, db, "SELECT count(*) FROM public.writes WHERE token = $1", token)
}

// Evidence: I8
func TestWritersWithTheCurrentTokenRunInParallel(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.as(t, "issuer"), "SELECT wirefence.seal('orders', 34, 'worker-b', 'etcd')")
		for _, isolation := range isolations {
			one, two := db.app(t), db.app(t)
			mustExec(t, two, "SET statement_timeout = '5s'")
			mustExec(t, one, "BEGIN ISOLATION LEVEL "+isolation)
			mustExec(t, two, "BEGIN ISOLATION LEVEL "+isolation)
			mustExec(t, one, "SELECT wirefence.check('orders=34')")
			mustExec(t, two, "SELECT wirefence.check('orders=34@etcd')")
			mustExec(t, two, "COMMIT")
			mustExec(t, one, "COMMIT")
		}
	})
}

// Two first writers of a new token both want the lock exclusively; a shared
// lock first would make them deadlock.
func TestFirstWritersDoNotDeadlock(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		one, two := db.app(t), db.app(t)
		for _, c := range []struct{ first, second string }{
			{"orders=1", "orders=1"}, {"orders=2", "orders=2"}, {"a=1,b=1,c=1", "c=1,b=1,a=1"}, {"orders=3", "orders=4"},
		} {
			mustExec(t, one, "BEGIN")
			mustExec(t, one, "SELECT wirefence.check($1)", c.first)
			waiting := db.start(t, two, "SELECT wirefence.check($1)", c.second)
			mustExec(t, one, "COMMIT")
			wantCode(t, <-waiting, "")
		}
	})
}

// A transaction that wrote under one token and now has a higher one holds the lock in
// shared mode. It may get the exclusive lock if no other writer is active.
func TestASharedLockIsNotRaisedByWaiting(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		one, two := db.app(t), db.app(t)
		mustExec(t, one, "SELECT wirefence.check('orders=34')")
		mustExec(t, one, "BEGIN")
		mustExec(t, two, "BEGIN")
		mustExec(t, one, "SELECT wirefence.check('orders=34')")
		mustExec(t, two, "SELECT wirefence.check('orders=34')")
		wantCode(t, exec(one, "SELECT wirefence.check('orders=35')"), "40001")
		mustExec(t, one, "ROLLBACK")
		mustExec(t, two, "SELECT wirefence.check('orders=35')")
		mustExec(t, two, "COMMIT")
		if got := db.lastToken(t, "orders"); got != 35 {
			t.Errorf("last_token is %d", got)
		}
	})
}

// zombie opens a transaction that writes under a token and then hangs.
func (db database) zombie(t *testing.T, fence string) (ended func() error) {
	t.Helper()
	conn := db.app(t)
	mustExec(t, conn, "BEGIN")
	mustExec(t, conn, "SELECT wirefence.check($1)", fence)
	mustExec(t, conn, insert, 34)
	return func() error { return exec(conn, "COMMIT") }
}

func TestZombiesAreEndedAfterPreemptAfter(t *testing.T) {
	const later = "UPDATE wirefence.resource_locks SET preempt_after = '300 ms'"
	for name, c := range map[string]struct{ setup, zombie, takeover string }{
		"seal over a shared holder":          {"SELECT wirefence.check('orders=34')", "orders=34", "SELECT wirefence.seal('orders', 35)"},
		"seal over a holder of several":      {"SELECT wirefence.check('lines=1,orders=34')", "lines=1,orders=34", "SELECT wirefence.seal('orders', 35)"},
		"seal over a first writer":           {"SELECT wirefence.check('orders=33')", "orders=34", "SELECT wirefence.seal('orders', 35)"},
		"advance over a shared holder":       {"SELECT wirefence.check('orders=34')", "orders=34", "SELECT wirefence.check('orders=35')"},
		"advance over a first writer":        {"SELECT wirefence.check('orders=33')", "orders=34", "SELECT wirefence.check('orders=35')"},
		"advance in REPEATABLE READ":         {"SELECT wirefence.check('orders=34')", "orders=34", "SET default_transaction_isolation = 'repeatable read'; SELECT wirefence.check('orders=35')"},
		"advance of several":                 {"SELECT wirefence.check('orders=34')", "orders=34", "SELECT wirefence.check('a=1,orders=35,z=1')"},
		"under a lock_timeout of the client": {"SELECT wirefence.check('orders=34')", "orders=34", "SET lock_timeout = '50ms'; SELECT wirefence.seal('orders', 35)"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				issuer := db.as(t, "issuer")
				if strings.HasPrefix(name, "advance") {
					issuer = db.app(t) // it ends only what its own login could
				}
				mustExec(t, issuer, c.setup)
				mustExec(t, db.admin(t), later)
				zombie := db.zombie(t, c.zombie)
				began := time.Now()
				for statement := range strings.SplitSeq(c.takeover, "; ") {
					mustExec(t, issuer, statement)
				}
				if took := time.Since(began); took < 300*time.Millisecond || took > 2*time.Second {
					t.Errorf("taken over after %v", took)
				}
				if err := zombie(); err == nil {
					t.Error("the zombie committed")
				}
				if rows := db.writes(t, 34); rows != 0 {
					t.Errorf("%d rows of the zombie", rows)
				}
				if got := value[string](t, issuer, "SHOW lock_timeout"); strings.Contains(c.takeover, "lock_timeout") != (got == "50ms") {
					t.Errorf("lock_timeout is left at %s", got)
				}
			})
		})
	}
}

// A stale holder that waits must not terminate the newer one, whose token it cannot see
// in the row before the commit.
func TestANewerHolderIsNotEnded(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		newer, older, watch := db.app(t), db.app(t), db.admin(t)
		mustExec(t, newer, "SELECT wirefence.check('orders=33')")
		mustExec(t, watch, "UPDATE wirefence.resource_locks SET preempt_after = '50 ms'")
		mustExec(t, newer, "BEGIN; SELECT wirefence.check('orders=4000000000000000036')")
		waiting := db.start(t, older, "SELECT wirefence.check('orders=4000000000000000035')")
		mustExec(t, watch, "SELECT pg_sleep(0.6)") // several times preempt_after
		mustExec(t, newer, insert, 36)
		mustExec(t, newer, "COMMIT")
		wantCode(t, <-waiting, "WF001")
		if rows := db.writes(t, 36); rows != 1 {
			t.Errorf("%d rows of the newer holder", rows)
		}
	})
}

func TestPreemptAfterNullWaits(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = NULL")
		zombie := db.zombie(t, "orders=34")
		sealed := db.start(t, db.as(t, "issuer"), "SELECT wirefence.seal('orders', 35)")
		mustExec(t, db.admin(t), "SELECT pg_sleep(0.3)")
		wantCode(t, zombie(), "")
		wantCode(t, <-sealed, "")

		// For ever, unless the session's lock_timeout says otherwise.
		zombie = db.zombie(t, "orders=35")
		impatient := db.as(t, "issuer")
		mustExec(t, impatient, "SET lock_timeout = '100ms'")
		wantCode(t, exec(impatient, "SELECT wirefence.seal('orders', 36)"), "55P03")
		wantCode(t, zombie(), "")
		mustExec(t, impatient, "SELECT wirefence.seal('orders', 36)")
	})
}

func TestSealsAreMonotone(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		seal := func(token int64) bool {
			return value[bool](t, issuer, "SELECT wirefence.seal('orders', $1, 'w')", token)
		}
		if !seal(34) || seal(34) || seal(33) || !seal(35) {
			t.Error("not monotone")
		}
		// The operator's choice outlives later seals.
		admin := db.admin(t)
		mustExec(t, admin, "UPDATE wirefence.resource_locks SET advance = 'use'")
		seal(36)
		mustExec(t, issuer, "SELECT wirefence.check('orders=37')")
		// The first seal takes a resource that was used before.
		mustExec(t, issuer, "SELECT wirefence.check('plain=5')")
		mustExec(t, issuer, "SELECT wirefence.seal('plain', 6)")
		wantCode(t, exec(issuer, "SELECT wirefence.check('plain=7')"), "WF003")
		mustExec(t, issuer, "SET default_transaction_isolation = 'serializable'")
		if !seal(50) || seal(50) {
			t.Error("not monotone in SERIALIZABLE")
		}
	})
}

func TestRevokeLocksOutAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		db.seal(t, "orders", 34)
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = NULL")
		zombie := db.zombie(t, "orders=34")
		began := time.Now()
		if got := value[int64](t, issuer, "SELECT wirefence.revoke('orders')"); got != 35 {
			t.Errorf("last_token is %d", got)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("revoked after %v", took)
		}
		if zombie() == nil {
			t.Error("the holder committed")
		}
		err := exec(issuer, "SELECT wirefence.check('orders=34')")
		wantCode(t, err, "WF001")
		if pgErr, ok := err.(*pgconn.PgError); ok && strings.Contains(pgErr.Detail, "granted") {
			t.Errorf("after a revocation: %s", pgErr.Detail)
		}
	})
}

func TestAPreparedTransactionIsNamed(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		admin := db.admin(t)
		mustExec(t, admin, "UPDATE wirefence.resource_locks SET preempt_after = '50 ms'")
		app, issuer := db.app(t), db.as(t, "issuer")
		gid := "it's " + db.name
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=34')")
		mustExec(t, app, "PREPARE TRANSACTION '"+strings.ReplaceAll(gid, "'", "''")+"'")
		err := exec(issuer, "SELECT wirefence.seal('orders', 35)")
		rollback := "ROLLBACK PREPARED '" + strings.ReplaceAll(gid, "'", "''") + "'"
		wantSaid(t, "a seal", err, "55006", rollback)
		mustExec(t, app, rollback)
		db.seal(t, "orders", 35)
	})
}

func TestASuperusersBackendIsNamed(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		admin := db.admin(t)
		mustExec(t, admin, "UPDATE wirefence.resource_locks SET preempt_after = '50 ms'")
		mustExec(t, admin, "BEGIN; SELECT wirefence.check('orders=34')")
		err := exec(db.as(t, "issuer"), "SELECT wirefence.seal('orders', 35)")
		wantSaid(t, "a seal", err, "42501", "superuser")
		wantSaid(t, "a seal", err, "42501", value[string](t, admin, "SELECT pg_backend_pid()::text"))
		// The error lists the processes terminated before, which a rollback does not undo.
		app := db.app(t)
		mustExec(t, db.as(t, "issuer"), "SELECT wirefence.declare_resource('first', 'quick', advance => 'use', preempt_after => '50 ms')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('first=1')")
		err = exec(db.as(t, "issuer"), "BEGIN; SELECT wirefence.seal('first', 2); SELECT wirefence.seal('orders', 35)")
		wantSaid(t, "seals", err, "42501", fmt.Sprintf(" Ended before that: process %d of app.", app.PgConn().PID()))
		mustExec(t, admin, "COMMIT")
	})
}

// An advance on use ends nobody that its login could not end itself, and gives up after
// preempt_after. A client can compute a name whose lock is that of another resource, or any
// advisory lock of another application.
func TestAnAdvanceEndsNobodyElse(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		const same, fence = "evil........V$gAVzBx^S?3", "evil........V%24gAVzBx%5ES%3F3=1"
		if look[bool](t, db, "SELECT wirefence.lock_key($1) <> wirefence.lock_key('orders')", same) {
			t.Fatal("the name has another lock")
		}
		issuer, admin := db.as(t, "issuer"), db.admin(t)
		db.seal(t, "orders", 34)
		mustExec(t, issuer, "SELECT wirefence.declare_resource('used', 'why', advance => 'use')")
		mustExec(t, issuer, "SELECT wirefence.declare_resource($1, 'why', advance => 'use')", same)
		mustExec(t, admin, "UPDATE wirefence.resource_locks SET preempt_after = '700 ms'") // over the first look, which ends idle sessions
		for name, c := range map[string]struct{ holds, fence string }{
			"a lower token's holder":        {"BEGIN; SELECT wirefence.check('used=1')", "used=2"},
			"one who has to be waited for":  {"BEGIN; SELECT wirefence.check('orders=34')", fence},
			"a lock of another application": {"SELECT pg_advisory_lock(wirefence.lock_key('orders'))", fence},
			"the same, in a transaction":    {"BEGIN; SELECT pg_advisory_xact_lock(wirefence.lock_key('orders'))", fence},
			"the same, shared":              {"SELECT pg_advisory_lock_shared(wirefence.lock_key('orders'))", fence},
		} {
			for _, login := range []string{"issuer", "admin"} {
				holder := admin
				if login == "issuer" {
					holder = db.as(t, "issuer")
				}
				mustExec(t, admin, "UPDATE wirefence.resource_locks SET last_token = 0 WHERE resource_id = 'used'")
				mustExec(t, admin, "GRANT EXECUTE ON FUNCTION wirefence.lock_key(text) TO PUBLIC")
				mustExec(t, holder, c.holds)
				if !strings.HasPrefix(c.holds, "BEGIN") {
					db.asleep(t, holder)
				}
				attacker, began := db.app(t), time.Now()
				err := exec(attacker, "SELECT wirefence.check('"+c.fence+"')")
				wantSaid(t, name, err, "55P03", fmt.Sprintf("process %d of role ", holder.PgConn().PID()))
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("%s: it gave up after %v", name, took)
				}
				if strings.HasPrefix(c.holds, "BEGIN") {
					mustExec(t, holder, "COMMIT")
				} else {
					mustExec(t, holder, "SELECT pg_advisory_unlock_all()")
				}
			}
		}
	})
}

// ANALYZE, by autovacuum too, calls the functions of an index with the rights of the table's owner, in
// the session of another login. They gain none of that login's rights.
func TestCodeInSomebodyElsesSession(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, app := db.admin(t), db.app(t)
		mustExec(t, admin, `GRANT CREATE ON SCHEMA public TO app; CREATE TABLE jobs (id bigint PRIMARY KEY, claim bigint);
			SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0'), wirefence.check('used=1');
			UPDATE wirefence.resource_locks SET preempt_after = '50 ms'`)
		mustExec(t, app, `CREATE TABLE own (id int); INSERT INTO own VALUES (1);
			CREATE FUNCTION tries(id int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN
				IF session_user = 'app' THEN RETURN id; END IF;
				BEGIN PERFORM wirefence.drop_rows('job'); EXCEPTION WHEN insufficient_privilege THEN NULL; END;
				BEGIN PERFORM wirefence.check('used=2'); EXCEPTION WHEN lock_not_available THEN NULL; END;
				RETURN id; END $$;
			CREATE INDEX ON own (tries(id))`)
		victim := db.admin(t)
		mustExec(t, victim, "BEGIN; SELECT wirefence.check('used=1')")
		mustExec(t, admin, "ANALYZE own")
		mustExec(t, victim, "COMMIT; INSERT INTO jobs VALUES (1, 5); SELECT wirefence.check('job(1)=5')")
	})
}

// A cascade runs the triggers and rules of a referencing table with the rights of that table's owner,
// in the session of the login that deletes. They gain none of that login's rights.
func TestCodeBehindACascade(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, app, victim := db.admin(t), db.app(t), db.as(t, "issuer")
		mustExec(t, admin, `GRANT CREATE ON SCHEMA public TO app, issuer; SELECT wirefence.check('used=1');
			UPDATE wirefence.resource_locks SET preempt_after = '50 ms'`)
		mustExec(t, victim, `CREATE TABLE parents (id bigint PRIMARY KEY); GRANT REFERENCES, SELECT ON parents TO app; INSERT INTO parents VALUES (1), (2);
			CREATE TABLE jobs (id bigint PRIMARY KEY, claim bigint); CREATE TABLE gone (); CREATE TABLE orders ();
			SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0'), wirefence.protect('gone', 'gone'), wirefence.protect('orders', 'orders');
			DROP TABLE gone; DROP TRIGGER wirefence_guard ON orders`)
		mustExec(t, victim, value[string](t, victim, `SELECT format('DROP TRIGGER %I ON orders', tgname) FROM pg_trigger WHERE tgrelid = 'orders'::regclass`))
		mustExec(t, app, `CREATE TABLE tried (what text, as_role name, login name, error text); GRANT ALL ON tried TO PUBLIC;
			CREATE FUNCTION try(what text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
				BEGIN EXECUTE 'SELECT ' || what; INSERT INTO tried VALUES (what, current_user, session_user, '');
				EXCEPTION WHEN OTHERS THEN INSERT INTO tried VALUES (what, current_user, session_user, SQLSTATE); END;
			END $$;
			CREATE FUNCTION tries() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				PERFORM try(w) FROM unnest(ARRAY[$a$wirefence.drop_rows('job')$a$, $a$wirefence.forget_guard('public.gone')$a$, $a$wirefence.unprotect('orders')$a$,
					$a$wirefence.retract_guard('orders'::regclass::oid::text)$a$, $a$wirefence.check('used=2')$a$, $a$set_config('wirefence.token', 'used=2', true), wirefence.proxy_hold(1, NULL, NULL, 'nothing', false, 'needed')$a$]) AS w;
				RETURN OLD; END $$;
			CREATE TABLE children (id bigint REFERENCES parents ON DELETE CASCADE); INSERT INTO children VALUES (1), (2);
			CREATE TRIGGER tries BEFORE DELETE ON children FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION tries();
			CREATE RULE tries AS ON DELETE TO children WHERE OLD.id = 2 DO ALSO SELECT try($a$wirefence.check('used=2')$a$)`)
		holder := db.as(t, "issuer")
		mustExec(t, holder, "BEGIN; SELECT wirefence.check('used=1')")
		mustExec(t, victim, "DELETE FROM parents WHERE id = 1; DELETE FROM parents WHERE id = 2")
		for _, got := range column[string](t, admin, "SELECT concat_ws(' ', what, as_role, login, error) FROM tried WHERE (as_role, login) <> ('app', 'issuer') OR error NOT IN ('42501', '55P03')") {
			t.Errorf("behind the cascade: %s", got)
		}
		if n := look[int](t, db, "SELECT count(*) FROM tried"); n < 6 {
			t.Errorf("only %d tries", n)
		}
		mustExec(t, holder, "COMMIT")
		if got := look[string](t, db, "SELECT concat_ws(' ', (SELECT count(*) FROM wirefence.guards), (SELECT count(*) FROM wirefence.row_classes), last_token) FROM wirefence.resource_locks WHERE resource_id = 'used'"); got != "2 1 1" {
			t.Errorf("guards, classes and the token are %s", got)
		}
	})
}

// A guard's advance that had to wait is refused: the statement around it has a snapshot from
// before the last holder's commit, so it would not see what that has written.
func TestAnAdvanceThatWaitedInATrigger(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		first, second := db.app(t), db.app(t)
		mustExec(t, first, "CREATE TABLE sums (total int); SELECT wirefence.protect('free', 'free'), wirefence.protect('sums', 'free')")
		mustExec(t, first, "BEGIN; SET LOCAL wirefence.token = 'free=1'; INSERT INTO free VALUES (100)")
		mustExec(t, second, "SET wirefence.token = 'free=2'")
		const sum = "INSERT INTO sums SELECT sum(id) FROM free"
		waiting := db.start(t, second, sum)
		mustExec(t, first, "INSERT INTO free VALUES (10); COMMIT")
		wantCode(t, <-waiting, "40001")
		mustExec(t, second, sum)
		if got := value[int](t, second, "SELECT total FROM sums"); got != 110 {
			t.Errorf("the sum is %d", got)
		}
	})
}

// The first statements of many workers with one new token: those that began after the first of them had
// advanced see what former holders have committed. They pass, and don't wait for each other.
func TestACrowdWithANewToken(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		first, second, third, early, gate := db.app(t), db.app(t), db.app(t), db.app(t), db.app(t)
		mustExec(t, first, `SELECT wirefence.protect('free', 'free'); CREATE TABLE late (id int); SELECT wirefence.protect('late', 'free');
			CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
			CREATE TRIGGER a_waits BEFORE INSERT ON late FOR EACH STATEMENT EXECUTE FUNCTION waits()`)
		for _, worker := range []*pgx.Conn{first, second, third, early} {
			mustExec(t, worker, "SET wirefence.token = 'free=2'")
		}
		mustExec(t, gate, "SELECT pg_advisory_lock(1)")
		before := db.start(t, early, "INSERT INTO late VALUES (1)")
		mustExec(t, first, "BEGIN; INSERT INTO free VALUES (1)")
		mustExec(t, second, "BEGIN")
		mustExec(t, third, "BEGIN")
		waiting, too := db.start(t, second, "INSERT INTO free VALUES (2)"), db.start(t, third, "INSERT INTO free VALUES (3)")
		mustExec(t, gate, "SELECT pg_advisory_unlock(1)")
		mustExec(t, gate, fmt.Sprintf(`DO $$ BEGIN
			WHILE NOT EXISTS (SELECT FROM pg_locks WHERE pid = %d AND NOT granted AND objid <> 1) LOOP PERFORM pg_sleep(0.002); END LOOP; END $$`, early.PgConn().PID()))
		mustExec(t, first, "COMMIT")
		wantCode(t, <-waiting, "")
		wantCode(t, <-too, "")
		wantCode(t, <-before, "40001")
		mustExec(t, second, "COMMIT")
		mustExec(t, third, "COMMIT")
	})
}

// Writers behind the takeover, which proceed when its wait ends, get time to finish: only
// holders from before are terminated.
func TestOnlyWhatStoodInTheWayIsEnded(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		mustExec(t, db.admin(t), "UPDATE wirefence.resource_locks SET preempt_after = '3 s'")
		zombie := db.zombie(t, "orders=34")
		bystander := db.app(t)
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		tx, err := bystander.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		sealed := db.start(t, db.as(t, "issuer"), "SELECT wirefence.seal('orders', 35)")
		mustExec(t, bystander, "SELECT wirefence.check('orders=34')") // behind the seal, until it gives up its place
		if err := tx.Commit(ctx); err != nil {
			t.Errorf("a bystander was ended: %v", err)
		}
		wantCode(t, <-sealed, "")
		if zombie() == nil {
			t.Error("the zombie committed")
		}
	})
}

// Between the look at the holders and their end a session may have begun another transaction, which is
// none that stood in the way.
func TestALaterTransactionIsSpared(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		app, admin := db.app(t), db.admin(t)
		mustExec(t, app, "SELECT wirefence.proxy_hold(7, 'orders=34', NULL, 'nothing', false, 'needed'); BEGIN")
		const end = "SELECT wirefence.end_holder('orders', $1, NULL, $2::text::timestamptz)"
		mustExec(t, admin, end, int(app.PgConn().PID()), "2026-01-01")
		mustExec(t, app, "SELECT 1")
		mustExec(t, admin, end, int(app.PgConn().PID()), nil)
		if exec(app, "SELECT 1") == nil {
			t.Error("the present transaction goes on")
		}
	})
}
