package migrations_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

var isolations = []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

// known has the rows of the resources in the tables below.
const known = `
	INSERT INTO wirefence.resource_locks (resource_id, last_token, holder, granted_at, advance, reuse, used_token, used_xid) VALUES
		('used', 34, NULL, NULL, 'use', 'allow', NULL, NULL),
		('granted', 34, 'worker-b', '2026-11-20 17:00:00.123456+00', 'grant', 'allow', NULL, NULL),
		('once', 34, NULL, NULL, 'grant', 'once', NULL, NULL),
		('spent', 34, NULL, NULL, 'grant', 'once', 34, '5'),
		('we"ird', 34, 'a "b"', '2026-11-20 17:00:00+00', 'grant', 'allow', NULL, NULL);
	INSERT INTO wirefence.resource_locks (resource_id, last_token, advance, reuse, used_token, source, must_name_source) VALUES
		('etcd', 34, 'use', 'allow', NULL, 'etcd', false),
		('redis', 34, 'grant', 'allow', NULL, 'redis', false),
		('strict', 34, 'use', 'allow', NULL, 'etcd', true),
		('single', 34, 'use', 'once', NULL, NULL, false)`

var verdicts = []struct {
	fence, state string
	last         int64 // of the fence's first resource afterwards, in a transaction that may write
}{
	{"used=34", "", 34},
	{"used=33", "WF001", 34},
	{"used=35", "", 35},
	{"used=4611686018427387903", "", 4611686018427387903},
	{"used=4611686018427387904", "WF003", 34}, // from 2^62 on for seals alone
	{"used=9223372036854775807", "WF003", 34},
	{"new=4611686018427387904", "WF003", 0},
	{"granted=34", "", 34},
	{"granted=33", "WF001", 34},
	{"granted=35", "WF003", 34},
	{"once=34", "", 34},
	{"once=33", "WF001", 34},
	{"spent=34", "WF005", 34},
	{"new=7", "", 7},
	{"used=35,granted=34,new=1", "", 35},
	{"used=35,granted=33", "WF001", 34},
	{"used=35,granted=35", "WF003", 34},
	{"used=35,spent=34", "WF005", 34},
	{"used=34,used=34", "", 34},
	{"used=34,used=35", "WF004", 34},
	{"", "WF004", 0},
	{"34", "WF004", 0},
	{"used=034", "WF004", 34},
	{"used=34@zk", "", 34},
	{"used=35@zk", "", 35},
	{"used=33@zk", "WF001", 34},
	{"new=7@zk", "", 7},
	{"granted=34@zk", "", 34},
	{"granted=35@zk", "WF003", 34},
	{"spent=34@zk", "WF005", 34},
	{"single=34@zk", "", 34},
	{"etcd=34", "", 34},
	{"etcd=35", "", 35},
	{"etcd=34@etcd", "", 34},
	{"etcd=35@etcd", "", 35},
	{"etcd=33@etcd", "WF001", 34},
	{"etcd=33@zk", "WF003", 34},
	{"etcd=34@zk", "WF003", 34},
	{"etcd=35@zk", "WF003", 34},
	{"redis=34@redis", "", 34},
	{"redis=35@redis", "WF003", 34},
	{"redis=34@zk", "WF003", 34},
	{"strict=34", "WF003", 34},
	{"strict=33", "WF003", 34},
	{"strict=35", "WF003", 34},
	{"strict=34@etcd", "", 34},
	{"strict=35@etcd", "", 35},
	{"strict=34@zk", "WF003", 34},
	{"etcd=35@etcd,redis=34@redis,used=34@zk", "", 35},
	{"etcd=35@etcd,redis=34@zk", "WF003", 34},
	{"etcd=34@", "WF004", 34},
	{"etcd=34@etcd,etcd=34@zk", "WF004", 34},
}

func TestEveryVerdictInEveryIsolation(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, admin := db.app(t), db.admin(t)
		mustExec(t, admin, known)
		for _, isolation := range isolations {
			for _, mode := range []string{"READ WRITE", "READ ONLY"} {
				for _, v := range verdicts {
					t.Run(strings.Join([]string{isolation, mode, v.fence}, " "), func(t *testing.T) {
						mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation+" "+mode)
						defer mustExec(t, app, "ROLLBACK")
						resource, _, _ := strings.Cut(v.fence, "=")
						observed := value[*string](t, app, "SELECT wirefence.check($1, NULL, false, true)", v.fence)
						if got := observed == nil; got != (v.state == "") {
							t.Errorf("shadow says %v", observed)
						} else if observed != nil && !strings.HasPrefix(*observed, v.state+": ") {
							t.Errorf("shadow says %q, want %s", *observed, v.state)
						}
						err := exec(app, "SELECT wirefence.check($1)", v.fence)
						state := v.state
						if mode == "READ ONLY" && isolation != "READ COMMITTED" && strings.Contains(v.fence, "new=") && state != "WF004" {
							state = "40001" // the snapshot can't tell that there is no row
						}
						wantCode(t, err, state)
						if err != nil || mode == "READ ONLY" {
							return
						}
						mustExec(t, app, "SELECT wirefence.check($1)", v.fence)
						mustExec(t, app, "COMMIT")
						if got := db.lastToken(t, resource); got != v.last {
							t.Errorf("last_token is %d, want %d", got, v.last)
						}
						mustExec(t, admin, "TRUNCATE wirefence.resource_locks;"+known)
						mustExec(t, app, "BEGIN")
					})
				}
			}
		}
	})
}

func TestRefusalsSayWhatAndWhatToDo(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := db.app(t)
		mustExec(t, db.admin(t), known)
		for _, c := range []struct{ sql, state, message, detail string }{
			{"SELECT wirefence.check('granted=33')", "WF001", `stale fencing token for resource "granted"`,
				`Resource "granted": presented token 33, current token 34, granted to "worker-b" at 2026-11-20 17:00:00.123456+00.`},
			{"SELECT wirefence.check('used=33')", "WF001", `stale fencing token for resource "used"`,
				`Resource "used": presented token 33, current token 34.`},
			{"SELECT wirefence.check('we%22ird=35')", "WF003", `unknown fencing token for resource "we""ird"`,
				`Resource "we""ird": presented token 35, current token 34, granted to "a ""b""" at 2026-11-20 17:00:00.000000+00.`},
			{"SELECT wirefence.check('spent=34')", "WF005", `fencing token already used for resource "spent"`,
				`Resource "spent": presented token 34, current token 34.`},
			{"SELECT wirefence.check('etcd=34@zk')", "WF003", `unknown fencing token for resource "etcd": it comes from "zk", not from "etcd"`,
				`Resource "etcd": presented token 34, current token 34. Tokens of different sources cannot be compared.`},
			{"SELECT wirefence.check('strict=34')", "WF003", `unknown fencing token for resource "strict": it does not say that it comes from "etcd"`,
				`Resource "strict": presented token 34, current token 34. Tokens of different sources cannot be compared.`},
			{"SELECT wirefence.check('a=x')", "WF004", "malformed fencing token", "A token is not a decimal number."},
		} {
			for _, zone := range []string{"UTC", "Asia/Tokyo"} {
				mustExec(t, app, "SET timezone = '"+zone+"'; SET datestyle = 'German'")
				pgErr, ok := exec(app, c.sql).(*pgconn.PgError)
				if !ok {
					t.Errorf("%s: accepted", c.sql)
					continue
				}
				if pgErr.Code != c.state || pgErr.Message != c.message || pgErr.Detail != c.detail || pgErr.Hint == "" || pgErr.Severity != "ERROR" {
					t.Errorf("%s: %+v", c.sql, pgErr)
				}
			}
		}
	})
}

func TestWhereAFenceComesFrom(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := db.app(t)
		mustExec(t, db.admin(t), known)
		for _, c := range []struct{ variable, call, state string }{
			{"", "check()", ""},
			{"", "check(NULL)", ""},
			{"", "check(NULL, NULL, NULL, false)", ""},
			{"", "check(NULL, 'granted', true, false); CREATE TABLE public.unfenced ()", "25006"},
			{"", "check('')", "WF004"},
			{"", "check('', 'granted', false, false)", "WF004"},
			{"granted=34", "check()", ""},
			{"granted=33", "check()", "WF001"},
			{"granted=33", "check(NULL, NULL, true, false)", "WF001"},
			{"granted=33", "check('granted=34')", ""},
			{"granted=34", "check('granted=33')", "WF001"},
			{"34", "check()", "WF004"},
			{"34", "check(NULL, 'granted', false, false)", ""},
			{"33", "check(NULL, 'granted', true, false)", "WF001"},
			{"33", "check('34', 'granted', true, false)", ""},
			{"34@redis", "check(NULL, 'redis', true, false)", ""},
			{"34@zk", "check(NULL, 'redis', true, false)", "WF003"},
			{"", "check('34@redis', 'redis', true, false)", ""},
			{"34@redis", "check()", "WF004"},
			{"33", "check('used=34', 'granted', true, false)", ""},
			{"", "check('34,used=34', 'granted', true, false)", ""},
			{"", "check('34,granted=35', 'granted', true, false)", "WF004"},
			{"", "check('34', '', true, false)", "WF004"},
			{"nonsense", "check()", "WF004"},
		} {
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", c.variable)
			if got := code(exec(app, "SELECT wirefence."+c.call)); got != c.state {
				t.Errorf("variable %q, %s: got %q, want %q", c.variable, c.call, got, c.state)
			}
		}
		mustExec(t, app, "RESET wirefence.token")
		mustExec(t, app, "BEGIN; SET LOCAL wirefence.token = 'granted=33'; ROLLBACK")
		mustExec(t, app, "SELECT wirefence.check()")
	})
}

// A snapshot from before the handoff must not let a stale token pass, whether its check comes before or
// after the commit of the handoff; nor is a token that was granted after it unknown. 40001 makes the
// client retry, and the retry gets the verdict.
func TestOldSnapshotsGiveNoVerdict(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		for i, isolation := range isolations[1:] {
			for j, c := range []struct{ fence, state string }{{"R=34", "WF001"}, {"R=34,otherR=1", "WF001"}, {"R=35", ""}, {"freshR=35", ""}} {
				resource := fmt.Sprintf("r%d%d", i, j)
				text := strings.ReplaceAll(c.fence, "R", resource)
				db.seal(t, resource, 34)
				db.seal(t, "other"+resource, 1)
				app := db.app(t)
				mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation+"; SELECT count(*) FROM public.writes")
				db.seal(t, resource, 35)
				db.seal(t, "fresh"+resource, 35)
				wantCode(t, exec(app, "SELECT wirefence.check($1)", text), "40001")
				mustExec(t, app, "ROLLBACK; BEGIN ISOLATION LEVEL "+isolation)
				wantCode(t, exec(app, "SELECT wirefence.check($1)", text), c.state)
			}
		}
	})
}

func TestSingleUse(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), known)
		one, two := db.app(t), db.app(t)
		mustExec(t, one, "BEGIN; SELECT wirefence.check('once=34')")
		mustExec(t, one, "SAVEPOINT s")
		mustExec(t, one, "SELECT wirefence.check('once=34')")
		waiting := db.start(t, two, "SELECT wirefence.check('once=34')")
		mustExec(t, one, "ROLLBACK")
		wantCode(t, <-waiting, "") // the first use never happened
		wantCode(t, exec(one, "SELECT wirefence.check('once=34')"), "WF005")
		db.seal(t, "once", 35)
		mustExec(t, one, "BEGIN; SELECT wirefence.check('once=35')")
		waiting = db.start(t, two, "SELECT wirefence.check('once=35')")
		mustExec(t, one, "COMMIT")
		wantCode(t, <-waiting, "WF005")
	})
}

func TestObserveWaitsForNobodyAndAdvances(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		holder, app := db.app(t), db.app(t)
		mustExec(t, db.admin(t), known)
		mustExec(t, holder, "BEGIN; SELECT wirefence.check('used=34')")
		const observe = "SELECT coalesce(wirefence.check($1, NULL, $2, true), '')"
		if got := value[string](t, app, observe, "used=35", false); got != "" {
			t.Error(got)
		}
		if got := db.lastToken(t, "used"); got != 34 {
			t.Errorf("advanced to %d beside an open writer", got)
		}
		mustExec(t, holder, "COMMIT")
		value[string](t, app, observe, "used=35", false)
		value[string](t, app, observe, "brand/new=1", false)
		if a, b := db.lastToken(t, "used"), db.lastToken(t, "brand/new"); a != 35 || b != 1 {
			t.Errorf("recorded %d and %d", a, b)
		}
		want := `WF001: stale fencing token for resource "used". Resource "used": presented token 34, current token 35.`
		if got := value[string](t, app, observe, "used=34", false); got != want {
			t.Errorf("got %s", got)
		}
		if got := value[string](t, app, observe, nil, true); got != "unfenced" {
			t.Errorf("got %s", got)
		}
		mustExec(t, db.admin(t), "REVOKE SELECT ON wirefence.resource_locks FROM wirefence_owner")
		if got := value[string](t, app, observe, "used=35", false); !strings.HasPrefix(got, "42501: ") {
			t.Errorf("an internal error came out as %q", got)
		}
	})
}

// No check raises an error that it catches itself: under exit_on_error the session would end.
func TestAGoodFenceUnderExitOnError(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := guarded(t, db), db.as(t, "issuer")
		mustExec(t, issuer, "SELECT wirefence.set_resource('lines', 'a trial', mode => 'shadow')")
		mustExec(t, app, "SET exit_on_error = on")
		for _, fence := range []string{"orders=34", "orders=34,report:a:1=34", "new=1", "new=2", "lines=33", "%6Frders=34"} {
			mustExec(t, app, "SELECT wirefence.check($1), wirefence.check($1, NULL, false, true)", fence)
			mustExec(t, app, "SELECT set_config('wirefence.token', $1, false)", fence)
			for _, isolation := range isolations {
				mustExec(t, app, "BEGIN ISOLATION LEVEL "+isolation+"; SELECT wirefence.check(); COMMIT")
			}
		}
		mustExec(t, app, "SET wirefence.token = 'orders=34'; UPDATE orders SET item = 'x'")
	})
}
