package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// queue is a table of jobs that the application owns. Job 1 to 9 run, under a claim that is
// ten times their number; take takes a job again.
const queue = `CREATE SCHEMA q AUTHORIZATION app; SET ROLE app;
	CREATE TYPE q.state AS ENUM ('available', 'running', 'completed');
	CREATE TABLE q.job (id bigint PRIMARY KEY, state q.state NOT NULL, claim bigint, note text);
	INSERT INTO q.job SELECT n, 'running', 10 * n FROM generate_series(1, 9) AS n;
	CREATE TABLE q.results (job_id bigint, body text);
	SELECT wirefence.declare_rows('job', 'q.job', '{id}', 'claim', 'state = ''running''');
	RESET ROLE`

const take = "UPDATE q.job SET claim = claim + 1, state = 'running' WHERE id = 1"

func onQueue(t *testing.T, test func(t *testing.T, db database, app *pgx.Conn)) {
	t.Helper()
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), queue)
		test(t, db, db.app(t))
	})
}

// What one transaction does and what gets it refused. Each case is a text of its own, which is
// run in each isolation level and rolled back.
//
// Evidence: a-worker-that-lost-its-row-writes-nothing
func TestRowsJudgeClaims(t *testing.T) {
	cases := []struct{ sql, state string }{
		{"SELECT wirefence.check('job(1)=10')", ""},
		{"SELECT wirefence.check('job(1)=10,job(2)=20')", ""},
		{"SELECT wirefence.check('job(1)=10,job(2)=21')", "WF001"},
		{"SELECT wirefence.check('job(1)=11')", "WF001"},
		{"SELECT wirefence.check('job(77)=10')", "WF001"},
		{"SELECT wirefence.check('job(-1)=10')", "WF001"},
		{"SELECT wirefence.check('job(9223372036854775807)=10')", "WF001"},
		{"SELECT wirefence.check('job(9223372036854775808)=10')", "WF004"},
		{"SELECT wirefence.check('job(01)=10')", "WF004"},
		{"SELECT wirefence.check('job(1:1)=10')", "WF004"},
		{"SELECT wirefence.check('job(one)=10')", "WF004"},
		{"SELECT wirefence.check('job(1)=10,job(1)=11')", "WF004"},
		{"SELECT wirefence.check('none(1)=10')", "WF008"},
		{"SELECT wirefence.check('job(1)=10,none(1)=10')", "WF008"},
		{"SELECT wirefence.check('orders=34,job(1)=10')", ""},
		{"SELECT wirefence.check('orders=33,job(1)=10')", "WF001"},
		{"SELECT wirefence.check('orders=34,job(1)=11')", "WF001"},
		{"SET LOCAL wirefence.token = 'job(1)=10'; SELECT wirefence.check()", ""},
		{"SET LOCAL wirefence.token = 'job(1)=11'; SELECT wirefence.check()", "WF001"},

		// What was checked stays good, whatever the transaction itself does to it.
		{"SELECT wirefence.check('job(1)=10'); UPDATE q.job SET state = 'completed' WHERE id = 1; SELECT wirefence.check('job(1)=10')", ""},
		{"SELECT wirefence.check('job(1)=10'); DELETE FROM q.job WHERE id = 1; SELECT wirefence.check('job(1)=10')", ""},
		{"SELECT wirefence.check('job(1)=10'); " + take + "; SELECT wirefence.check('job(1)=10')", ""},
		{"SELECT wirefence.check('job(1)=10,job(2)=20'); DELETE FROM q.job; SELECT wirefence.check('job(2)=20')", ""},
		{"SELECT wirefence.check('job(1)=10'); DELETE FROM q.job; SELECT wirefence.check('job(1)=10,job(2)=20')", "WF001"},
		{"SELECT wirefence.check('job(1)=10'); DELETE FROM q.job; SELECT wirefence.check('job(1)=11')", "WF001"},
		{"UPDATE q.job SET state = 'completed' WHERE id = 1; SELECT wirefence.check('job(1)=10')", "WF001"},
		{"UPDATE q.job SET note = 'alive' WHERE id = 1; SELECT wirefence.check('job(1)=10')", ""},
		{take + "; SELECT wirefence.check('job(1)=11')", ""},
		{take + "; SELECT wirefence.check('job(1)=10')", "WF001"},

		// ROLLBACK TO takes it back, RELEASE does not.
		{"SAVEPOINT s; SELECT wirefence.check('job(1)=10'); ROLLBACK TO s; DELETE FROM q.job; SELECT wirefence.check('job(1)=10')", "WF001"},
		{"SAVEPOINT s; SELECT wirefence.check('job(1)=10'); RELEASE s; DELETE FROM q.job; SELECT wirefence.check('job(1)=10')", ""},
		{"SAVEPOINT s; SAVEPOINT u; SELECT wirefence.check('job(1)=10'); RELEASE u; DELETE FROM q.job; ROLLBACK TO s; SELECT wirefence.check('job(1)=10')", ""},
		{"SELECT wirefence.check('job(1)=10'); SAVEPOINT s; DELETE FROM q.job; SELECT wirefence.check('job(1)=10'); ROLLBACK TO s; SELECT wirefence.check('job(1)=10')", ""},
		// The same fence again, once one of its jobs is done, in any order and with a token.
		{"SELECT wirefence.check('job(2)=20,orders=34,job(1)=10'); DELETE FROM q.job; SELECT wirefence.check('job(2)=20,orders=34,job(1)=10'), wirefence.check('job(1)=10,job(2)=20')", ""},
		{"SELECT wirefence.check('job(2)=20,job(1)=10'); SAVEPOINT s; SELECT wirefence.check('job(2)=20,job(1)=10,job(3)=30'); ROLLBACK TO s; DELETE FROM q.job; SELECT wirefence.check('job(2)=20,job(1)=10,job(3)=30')", "WF001"},
		// A check that was made READ ONLY locks nothing.
		{"SET TRANSACTION READ ONLY; SELECT wirefence.check('job(1)=10')", ""},
		{"SET TRANSACTION READ ONLY; SELECT wirefence.check('job(1)=11')", "WF001"},
		{"SAVEPOINT s; SET TRANSACTION READ ONLY; SELECT wirefence.check('job(1)=10'); RELEASE s; DELETE FROM q.job WHERE id = 1; SELECT wirefence.check('job(1)=10')", "WF001"},
	}
	onQueue(t, func(t *testing.T, db database, _ *pgx.Conn) {
		mustExec(t, db.admin(t), "SELECT wirefence.seal('orders', 33); SELECT wirefence.seal('orders', 34)")
		conn := db.admin(t)
		for _, isolation := range isolations {
			for _, c := range cases {
				state := c.state
				if strings.Contains(c.sql, "READ ONLY") && isolation != "READ COMMITTED" {
					state = "WF006"
				}
				if got := transaction(t, conn, isolation, c.sql); got != state {
					t.Errorf("%s: %s: got %q, want %q", isolation, c.sql, got, state)
				}
			}
		}
		if got := look[int](t, db, "SELECT count(*)::int FROM q.job WHERE state = 'running'"); got != 9 {
			t.Errorf("%d jobs run, want 9", got)
		}
	})
}

// transaction runs a text in a transaction that it rolls back, and returns the SQLSTATE.
func transaction(t *testing.T, conn *pgx.Conn, isolation, sql string) string {
	t.Helper()
	mustExec(t, conn, "BEGIN ISOLATION LEVEL "+isolation)
	defer mustExec(t, conn, "ROLLBACK")
	_, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
	return code(err)
}

func TestRowsAreNotHeld(t *testing.T) {
	onQueue(t, func(t *testing.T, _ database, app *pgx.Conn) {
		for fence, want := range map[string]string{"job(1)=10": "once", "job(1)=10,orders=1": "once", "job(1)=11": "WF001", "none(1)=1": "WF008"} {
			var got string
			if err := app.QueryRow(context.Background(), "SELECT wirefence.proxy_hold(1, $1, NULL, 'nothing', false, 'group')", fence).Scan(&got); err != nil {
				got = code(err)
			}
			if got != want {
				t.Errorf("%s: proxy_hold says %q, want %q", fence, got, want)
			}
		}
	})
}

// A check and a take of the same job, one of which waits for the other.
//
// Evidence: a-worker-that-lost-its-row-writes-nothing
func TestACheckMeetsATake(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		const check = "SELECT wirefence.check('job(1)=10')"
		other := db.app(t)
		reset := func() {
			mustExec(t, app, "ROLLBACK")
			mustExec(t, other, "ROLLBACK; DELETE FROM q.job WHERE id = 1; INSERT INTO q.job VALUES (1, 'running', 10)")
		}
		for _, isolation := range isolations {
			stale := "WF001"
			if isolation != "READ COMMITTED" {
				stale = "40001" // the retry gets the verdict
			}
			begin := "BEGIN ISOLATION LEVEL " + isolation + "; "
			for _, c := range []struct{ take, end, state string }{
				{take, "COMMIT", stale},
				{take, "ROLLBACK", ""},
				{"DELETE FROM q.job WHERE id = 1", "COMMIT", stale},
				{"UPDATE q.job SET state = 'completed' WHERE id = 1", "COMMIT", stale},
			} {
				mustExec(t, other, "BEGIN; "+c.take)
				mustExec(t, app, begin+"SELECT 1 FROM pg_class LIMIT 1") // takes the snapshot
				done := db.start(t, app, check)
				mustExec(t, other, c.end)
				if got := code(<-done); got != c.state {
					t.Errorf("%s: %s; %s: the check got %q, want %q", isolation, c.take, c.end, got, c.state)
				}
				reset()
			}
			// A take that meets a checked transaction waits for its end, and no longer; one that
			// skips locked rows passes by.
			mustExec(t, app, begin+check)
			if n := value[int](t, other, "SELECT count(*)::int FROM (SELECT FROM q.job WHERE id = 1 FOR UPDATE SKIP LOCKED) AS found"); n != 0 {
				t.Errorf("%s: a take that skips locked rows finds the job", isolation)
			}
			done := db.start(t, other, take)
			mustExec(t, app, "UPDATE q.job SET state = 'completed' WHERE id = 1; COMMIT")
			wantCode(t, <-done, "")
			mustExec(t, app, begin)
			wantCode(t, exec(app, check), "WF001")
			reset()
			// The snapshot is older than the take that the claim comes from.
			if isolation != "READ COMMITTED" {
				mustExec(t, app, begin+"SELECT 1 FROM pg_class LIMIT 1")
				mustExec(t, other, take)
				wantCode(t, exec(app, "SELECT wirefence.check('job(1)=11')"), "40001")
				mustExec(t, app, "ROLLBACK; "+begin)
				wantCode(t, exec(app, "SELECT wirefence.check('job(1)=11')"), "")
				reset()
			}
		}
		// A heartbeat that replaces the row during the check.
		mustExec(t, other, "BEGIN; DELETE FROM q.job WHERE id = 1; INSERT INTO q.job VALUES (1, 'running', 10)")
		for _, fence := range []string{"job(1)=10", "job(1)=10,job(2)=20"} {
			done := db.start(t, app, "SELECT wirefence.check('"+fence+"')")
			mustExec(t, other, "COMMIT")
			if got := code(<-done); got != "" && got != "40001" {
				t.Errorf("%s: a live worker gets %q", fence, got)
			}
			mustExec(t, other, "BEGIN; DELETE FROM q.job WHERE id = 1; INSERT INTO q.job VALUES (1, 'running', 10)")
		}
		reset()
		// Two workers with the same two jobs, in different orders.
		mustExec(t, app, "BEGIN; SELECT wirefence.check('job(1)=10')")
		mustExec(t, other, "BEGIN; SELECT wirefence.check('job(2)=20')")
		done := db.start(t, app, "UPDATE q.job SET state = 'completed' WHERE id = 2")
		second := code(exec(other, "UPDATE q.job SET state = 'completed' WHERE id = 1"))
		if first := code(<-done); first != "40P01" && second != "40P01" {
			t.Errorf("a deadlock ends with %q and %q", first, second)
		}
	})
}

// Keys of each kind and of several columns, in tables of each sort.
func TestKeysOfRows(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), `CREATE SCHEMA q AUTHORIZATION app; CREATE SCHEMA "odd(schema" AUTHORIZATION app; GRANT CREATE ON SCHEMA public TO app`)
		app := db.app(t)
		mustExec(t, app, `
			CREATE TABLE q.texts (name text PRIMARY KEY, claim int);
			INSERT INTO q.texts VALUES ('plain', 1), ('a:b,c=(d)%é', 2), ('`+strings.Repeat("x", 255)+`', 3), ('', 4);
			CREATE TABLE q.uuids (id uuid PRIMARY KEY, claim smallint);
			INSERT INTO q.uuids VALUES ('0190a5b2-6d4e-7c31-8f00-00aa00bb00cc', 1);
			CREATE TABLE q.pairs (n smallint, tenant varchar, claim bigint, PRIMARY KEY (n, tenant)) PARTITION BY LIST (n);
			CREATE TABLE q.pairs_1 PARTITION OF q.pairs FOR VALUES IN (1); CREATE TABLE q.pairs_2 PARTITION OF q.pairs FOR VALUES IN (2);
			INSERT INTO q.pairs VALUES (1, 'a:b', 1), (2, 'a', 2);
			CREATE TABLE "odd(schema".t (id int PRIMARY KEY, claim bigint); INSERT INTO "odd(schema".t VALUES (1, 1);
			CREATE TABLE public."Odd Name" ("Key ""1""" int PRIMARY KEY, "Claim" bigint, p int, t int, place int);
			INSERT INTO public."Odd Name" VALUES (1, 1);
			SELECT wirefence.declare_rows('text', 'q.texts', '{name}', 'claim', 'true OR claim > 0'),
			       wirefence.declare_rows('uuid', 'q.uuids', '{id}', 'claim', 'claim > 0'),
			       wirefence.declare_rows('pair', 'q.pairs', '{tenant,n}', 'claim', 'claim > 0'),
			       wirefence.declare_rows('oddschema', '"odd(schema".t', '{id}', 'claim', 'claim > 0'),
			       wirefence.declare_rows('odd', '"Odd Name"', '{"Key \"1\""}', '"Claim" + coalesce(p, t, place, 0)', '"Claim" > 0'),
			       wirefence.declare_rows('`+strings.Repeat("l", 63)+`', 'q.uuids', '{id}', 'claim', 'claim > 0')`)
		for fence, state := range map[string]string{
			"text(plain)=1": "", "text(plain)=2": "WF001", "text(a%3Ab%2Cc%3D%28d%29%25%C3%A9)=2": "", "text(" + strings.Repeat("x", 255) + ")=3": "",
			"text(plain)=1)=2": "WF004", "text(plain(a)=1": "WF004", "text(a=5=b)=7": "WF004",
			"text(plain:a)=1": "WF004", "uuid(0190a5b2-6d4e-7c31-8f00-00aa00bb00cc)=1": "", "uuid(0190a5b2-6d4e-7c31-8f00-00aa00bb00cd)=1": "WF001",
			"uuid(0190A5B2-6D4E-7C31-8F00-00AA00BB00CC)=1": "WF004", "uuid(0190a5b26d4e7c318f0000aa00bb00cc)=1": "WF004",
			"pair(a%3Ab:1)=1": "", "pair(a:2)=2": "", "pair(a:1)=2": "WF001", "pair(a:3)=2": "WF001", "pair(a:2)=1": "WF001", "pair(1:a)=2": "WF004", "pair(a)=2": "WF004",
			"pair(a%3Ab:1)=1,pair(a:2)=2,text(plain)=1,odd(1)=1": "", "pair(a:02)=2": "WF004", "pair(a:99999)=2": "WF001",
			"odd(1)=1": "", "odd(1)=2": "WF001", "oddschema(1)=1": "", strings.Repeat("l", 63) + "(0190a5b2-6d4e-7c31-8f00-00aa00bb00cc)=1": "",
		} {
			if got := code(exec(app, "SELECT wirefence.check($1)", fence)); got != state {
				t.Errorf("%s: got %q, want %q", fence, got, state)
			}
		}
		// A row that moves to another partition has the key of another row.
		mustExec(t, app, "BEGIN; SELECT wirefence.check('pair(a:2)=2'); UPDATE q.pairs SET n = 1 WHERE tenant = 'a'; SELECT wirefence.check('pair(a:2)=2'); COMMIT")
		wantCode(t, exec(app, "SELECT wirefence.check('pair(a:2)=2')"), "WF001")
		wantCode(t, exec(app, "SELECT wirefence.check('pair(a:1)=2')"), "")
		// Two names stay two where a collation calls them equal.
		mustExec(t, app, `
			CREATE COLLATION q.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
			CREATE TABLE q.results (n smallint, tenant varchar COLLATE q.caseless);
			SELECT wirefence.protect('q.results', 'pair({tenant}:{n})'); SET wirefence.token = 'pair(a:1)=2'`)
		wantCode(t, exec(app, "INSERT INTO q.results VALUES (1, 'a'), (1, 'a')"), "")
		wantCode(t, exec(app, "INSERT INTO q.results VALUES (1, 'a'), (1, 'A')"), "WF002")
		wantCode(t, exec(app, "UPDATE q.results SET tenant = 'A'"), "WF002")
	})
}

func TestDeclaringChecksWhatItIsGiven(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, app, `
			CREATE FUNCTION q.f(bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT $1';
			CREATE DOMAIN q.positive AS bigint CHECK (q.f(VALUE) > 0);
			CREATE TYPE q.own AS RANGE (subtype = bigint);
			CREATE OPERATOR q.>>> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = int8gt);
			CREATE TYPE q.letter AS ENUM ('a', 'b');
			CREATE TABLE q.times (id int PRIMARY KEY, taken timestamptz, local timestamp, state q.letter);
			CREATE TABLE q.deferred (id int NOT NULL, claim bigint, UNIQUE (id) DEFERRABLE);
			CREATE TABLE q.partly (id int NOT NULL, claim bigint); CREATE UNIQUE INDEX ON q.partly (id) WHERE claim > 0;
			CREATE TABLE q.computed (id int NOT NULL, claim bigint); CREATE UNIQUE INDEX ON q.computed ((id + 1));
			CREATE TABLE q.wide (id int NOT NULL, other int NOT NULL, claim bigint NOT NULL, UNIQUE (id, other));
			CREATE TABLE q.including (id int NOT NULL, claim bigint, UNIQUE (id) INCLUDE (claim));
			CREATE TABLE q.nullable (id int UNIQUE, claim bigint);
			CREATE TABLE q.numbers (id numeric PRIMARY KEY, claim bigint);
			CREATE TABLE q.base (id int PRIMARY KEY, claim bigint); CREATE TABLE q.heir (PRIMARY KEY (id)) INHERITS (q.base);
			CREATE TABLE q.forced (id int PRIMARY KEY, claim bigint); ALTER TABLE q.forced FORCE ROW LEVEL SECURITY;
			CREATE TABLE q.marked (id int PRIMARY KEY, claim bigint, wirefence_at int);
			CREATE TABLE q.texts (id text COLLATE "C" PRIMARY KEY, claim bigint, doubtful q.positive);
			CREATE TEMP TABLE passing (id int PRIMARY KEY, claim bigint);
			CREATE VIEW q.seen AS SELECT * FROM q.job`)
		for _, c := range []struct{ class, table, key, claim, condition, state string }{
			{"job", "q.job", "{id}", "claim", "state = 'running'", ""}, // again
			{"other", "q.job", "{id}", "claim", "state IN ('running', 'available')", ""},
			{"including", "q.including", "{id}", "claim", "claim > 0", ""},
			{"texts", "q.texts", "{id}", "claim", "claim > 0", ""},
			{"job", "q.texts", "{id}", "claim", "claim > 0", "42710"},
			{"Job", "q.job", "{id}", "claim", "claim > 0", "22023"},
			{"9", "q.job", "{id}", "claim", "claim > 0", "22023"},
			{"", "q.job", "{id}", "claim", "claim > 0", "22023"},
			{strings.Repeat("x", 64), "q.job", "{id}", "claim", "claim > 0", "22023"},
			{"x", "q.seen", "{id}", "claim", "claim > 0", "42809"},
			{"x", "passing", "{id}", "claim", "claim > 0", "42809"},
			{"x", "q.base", "{id}", "claim", "claim > 0", "42809"},
			{"x", "q.heir", "{id}", "claim", "claim > 0", "42809"},
			{"x", "q.forced", "{id}", "claim", "claim > 0", "42809"},
			{"x", "q.marked", "{id}", "claim", "claim > 0", "42809"},
			{"x", "pg_catalog.pg_class", "{oid}", "relpages", "relpages > 0", "42501"},
			{"x", "q.deferred", "{id}", "claim", "claim > 0", "22023"},
			{"x", "q.partly", "{id}", "claim", "claim > 0", "22023"},
			{"x", "q.computed", "{id}", "claim", "claim > 0", "22023"},
			{"x", "q.wide", "{id}", "claim", "claim > 0", "22023"},
			{"x", "q.wide", "{id,other,claim}", "claim", "claim > 0", "22023"},
			{"x", "q.nullable", "{id}", "claim", "claim > 0", "22023"},
			{"x", "q.numbers", "{id}", "claim", "claim > 0", "42804"},
			{"x", "q.job", "{}", "claim", "claim > 0", "22023"},
			{"x", "q.job", "{id,id}", "claim", "claim > 0", "42701"},
			{"x", "q.job", "{nothing}", "claim", "claim > 0", "42703"},
			{"x", "q.job", "{ctid}", "claim", "claim > 0", "42703"},
			{"x", "q.job", "{id}", "nothing", "claim > 0", "42703"},
			{"x", "q.job", "{id}", "note", "claim > 0", "42883"},
			{"x", "q.job", "{id}", "claim::numeric", "claim > 0", "42883"},
			{"x", "q.job", "{id}", "claim", "claim", "42883"},
			{"x", "q.job", "{id}", "claim", "", "42883"},
			{"x", "q.job", "{id}", "5", "claim > 0", "22023"},
			{"x", "q.job", "{id}", "claim", "true", "22023"},
			{"x", "q.job", "{id}", "xmin::text::bigint", "claim > 0", "0A000"},
			{"x", "q.job", "{id}", "(SELECT claim)", "claim > 0", "0A000"},
			{"x", "q.job", "{id}", "claim", "EXISTS (SELECT FROM q.results)", "0A000"},
			{"x", "q.job", "{id}", "max(claim)", "claim > 0", "42803"},
			{"x", "q.job", "{id}", "q.f(claim)", "claim > 0", "22023"},
			{"x", "q.job", "{id}", "claim", "claim::q.positive > 0", "22023"},
			{"x", "q.job", "{id}", "claim", "claim OPERATOR(q.>>>) 0", "22023"},
			{"x", "q.job", "{id}", "claim", "lower('[1,2)'::q.own) > claim", "22023"},
			{"x", "q.job", "{id}", "claim", "id > 'q.job'::regclass::oid::bigint", "22023"},
			{"x", "q.job", "{id}", "claim", "wirefence_rows IS NOT NULL", "22023"},
			// What a setting or another row decides.
			{"x", "q.times", "{id}", "extract(epoch FROM local::timestamptz)::bigint", "id > 0", "42P17"},
			{"x", "q.times", "{id}", "length(local::text)", "id > 0", "42P17"},
			{"x", "q.times", "{id}", "extract(epoch FROM taken)::bigint", "taken < now()", "42P17"},
			{"times", "q.times", "{id}", "extract(day FROM date_trunc('day', taken))::bigint", "state IN ('a', 'b') AND taken > '2026-01-01'", ""},
			{"x", "q.job", "{id}", "claim + (random() * 9)::int", "claim > 0", "42P17"},
			{"x", "q.job", "{id}", "claim", "claim > length(current_setting('my.own'))", "42P17"},
			{"x", "q.job", "{id}", "claim", "table_to_xml(note::regclass, true, true, '') IS NULL", "42P17"},
			{"x", "q.job", "{id}", "claim) + wirefence.is_claim(id", "claim > 0", "22023"},
			{"x", "q.job", "{id}", "claim", "claim > 0) OR (true", "22023"},
			{"x", "q.job", "{id}", "claim", "claim > 0); DROP TABLE q.results; SELECT (true", "42601"},
			{"x", "q.job", "{id}", "claim", "claim > 0 -- always", ""},
		} {
			err := exec(app, "SELECT wirefence.declare_rows($1, $2::text::regclass, $3::text[], $4, $5)", c.class, c.table, c.key, c.claim, c.condition)
			if code(err) != c.state {
				t.Errorf("%+v: got %v", c, err)
			}
		}
		if n := look[int](t, db, "SELECT count(*)::int FROM pg_class WHERE relname = 'wirefence_rows'"); n != 0 {
			t.Errorf("%d copies are left", n)
		}
		// Only the owner.
		mustExec(t, db.admin(t), "CREATE ROLE stranger LOGIN; GRANT USAGE, CREATE ON SCHEMA q TO stranger; GRANT ALL ON q.job TO stranger")
		stranger := db.as(t, "stranger")
		for _, sql := range []string{
			"SELECT wirefence.declare_rows('mine', 'q.job', '{id}', 'claim', 'claim > 0')",
			"SELECT wirefence.drop_rows('job')",
			`CREATE TEMPORARY TABLE wirefence_rows (claim bigint);
				CREATE INDEX wirefence_claim ON wirefence_rows (wirefence.is_claim(claim)); CREATE INDEX wirefence_condition ON wirefence_rows (wirefence.is_condition(claim > 0));
				SELECT wirefence.record_rows('job', 'q.job'::regclass::oid::text, '{id}', 'false')`,
		} {
			wantCode(t, exec(stranger, sql), "42501")
		}
		// An array may have other subscripts and dimensions than its text shows.
		for call, state := range map[string]string{
			"drop_class(VARIADIC '[0:1]={app,job}')": "42704", "drop_class(VARIADIC '[-1:0]={app,job}')": "42704", "drop_class(VARIADIC '[2:2]={job}')": "42501",
			"drop_class(VARIADIC '{{app,job}}')": "22000", "drop_class(VARIADIC '{}')": "42704", "drop_class(VARIADIC NULL::text[])": "42704",
		} {
			wantCode(t, exec(stranger, "SELECT wirefence."+call), state)
		}
		mustExec(t, db.admin(t), "DROP OWNED BY stranger; DROP ROLE stranger")
	})
}

// A caller of record_rows past declare_rows may have a copy of its own, with other types. The claim is judged
// as the table's types read it.
func TestAClaimIsReadWithTheTablesTypes(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "GRANT CREATE ON SCHEMA public TO app")
		app := db.app(t)
		mustExec(t, app, `CREATE TABLE odd (id bigint PRIMARY KEY, n int); CREATE TEMP TABLE wirefence_rows (id bigint, n text);
			CREATE INDEX wirefence_claim ON wirefence_rows ((wirefence.is_claim(length(n || 'x')))); CREATE INDEX wirefence_condition ON wirefence_rows ((wirefence.is_condition(id > 0)))`)
		err := exec(app, "SELECT wirefence.record_rows('odd', 'odd'::regclass::oid::text, '{id}', 'false')")
		wantSaid(t, "record_rows", err, "22023", "uses anytextcat")
	})
}

// The judge reads a row alike whatever the settings of a session are.
func TestSettingsChangeNoVerdict(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), `CREATE SCHEMA q AUTHORIZATION app; SET ROLE app; SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Tokyo';
			CREATE TYPE q.state AS ENUM ('waits', 'runs');
			CREATE TABLE q.job (id int PRIMARY KEY, taken timestamptz, state q.state);
			INSERT INTO q.job VALUES (1, '2026-02-01 00:00:00.000001+00', 'runs');
			SELECT wirefence.declare_rows('job', 'q.job', '{id}', '(extract(epoch FROM taken) * 1000000)::bigint', $$state = 'runs' AND taken > '02/01/2026' AND taken < '02/02/2026'$$)`)
		app := db.app(t)
		for _, setting := range []string{"timezone = 'America/New_York'", "datestyle = 'German'", "intervalstyle = 'sql_standard'", "extra_float_digits = -15", "transform_null_equals = on"} {
			mustExec(t, app, "SET "+setting)
			wantCode(t, exec(app, "SELECT wirefence.check('job(1)=1769904000000001')"), "")
			wantCode(t, exec(app, "SELECT wirefence.check('job(1)=1769904000000002')"), "WF001")
		}
	})
}

// What a class needs and loses makes its checks fail, and the list say why.
func TestRowsNoticeChanges(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		admin := db.admin(t)
		checks := []string{"SELECT wirefence.check('job(1)=10')", "SELECT wirefence.check('job(1)=10,job(2)=20')"}
		for _, c := range []struct{ change, undo, state string }{
			{"ALTER TABLE q.job RENAME TO jobs", "ALTER TABLE q.jobs RENAME TO job", "WF008"},
			{"ALTER TABLE q.job RENAME TO jobs; CREATE VIEW q.job AS SELECT * FROM q.jobs", "DROP VIEW q.job; ALTER TABLE q.jobs RENAME TO job", "42703"},
			{"ALTER TABLE q.job RENAME id TO number", "ALTER TABLE q.job RENAME number TO id", "42703"},
			{"ALTER TABLE q.job RENAME claim TO taken", "ALTER TABLE q.job RENAME taken TO claim", "42703"},
			{"ALTER TABLE q.job ALTER claim TYPE int", "ALTER TABLE q.job ALTER claim TYPE bigint", "42883"},
			{"ALTER TABLE q.job ALTER id TYPE int", "ALTER TABLE q.job ALTER id TYPE bigint", "42883"},
			{"ALTER TABLE q.job ALTER state TYPE text", "ALTER TABLE q.job ALTER state TYPE q.state USING state::q.state", "42883"},
			{"ALTER TABLE q.job DROP CONSTRAINT job_pkey; INSERT INTO q.job VALUES (1, 'running', 11)", "DELETE FROM q.job WHERE claim = 11; ALTER TABLE q.job ADD PRIMARY KEY (id)", "WF001"},
			{"RESET ROLE; ALTER FUNCTION wirefence.row_judge_job RENAME TO lost", "ALTER FUNCTION wirefence.lost RENAME TO row_judge_job", "WF008"},
		} {
			mustExec(t, admin, "SET ROLE app; "+c.change)
			for _, check := range checks {
				if err := exec(app, check); code(err) != c.state {
					t.Errorf("%s: %s got %v, want %s", c.change, check, err, c.state)
				}
			}
			if fault := look[*string](t, db, "SELECT fault FROM wirefence.rows() WHERE class = 'job'"); fault == nil {
				t.Errorf("%s: the list says nothing", c.change)
			}
			mustExec(t, admin, c.undo)
			for _, check := range checks {
				if err := exec(app, check); err != nil {
					t.Errorf("%s: %v", c.undo, err)
				}
			}
			if fault := look[*string](t, db, "SELECT fault FROM wirefence.rows() WHERE class = 'job'"); fault != nil {
				t.Errorf("%s: the list says %s", c.undo, *fault)
			}
		}
		mustExec(t, app, "ALTER TABLE q.job DROP COLUMN note; ALTER TABLE q.job ADD COLUMN more int; REINDEX TABLE q.job; "+checks[1])
		// Another table of the same name judges from then on.
		mustExec(t, app, "ALTER TABLE q.job RENAME TO old; CREATE TABLE q.job (LIKE q.old INCLUDING ALL); INSERT INTO q.job SELECT * FROM q.old; UPDATE q.job SET claim = 21 WHERE id = 2; "+checks[0])
		wantCode(t, exec(app, "SELECT wirefence.check('job(2)=20')"), "WF001")
		mustExec(t, app, "SELECT wirefence.drop_rows('job')")
		wantCode(t, exec(app, checks[0]), "WF008")
		if n := look[int](t, db, "SELECT count(*)::int FROM pg_proc WHERE proname ~ '^row_(judge|claim)_'"); n != 0 {
			t.Errorf("%d judges are left", n)
		}
		mustExec(t, app, "SELECT wirefence.declare_rows('job', 'q.job', '{id}', 'claim', 'state = ''running'''); DROP TABLE q.job")
		wantCode(t, exec(app, checks[0]), "WF008")
		if fault := look[*string](t, db, "SELECT fault FROM wirefence.rows()"); fault == nil {
			t.Error("the list says nothing about a table that has gone")
		}
		mustExec(t, app, "SELECT wirefence.drop_rows('job')")
		wantCode(t, exec(app, checks[0]), "WF008")
	})
}

// A check needs the rights of a worker on its job, and sees the rows that the worker sees.
func TestAJudgeHasTheRightsOfTheCaller(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, db.admin(t), `CREATE ROLE worker LOGIN; CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA q TO worker, reader; GRANT SELECT ON q.job TO reader, worker;
			GRANT UPDATE (note) ON q.job TO worker; GRANT INSERT ON q.results TO worker`)
		mustExec(t, app, "SELECT wirefence.protect('q.results', 'job({job_id})')")
		worker, reader := db.as(t, "worker"), db.as(t, "reader")
		for _, fence := range []string{"job(1)=10", "job(1)=10,job(2)=20", "job(1)=11"} {
			for _, call := range []string{"wirefence.check($1)", "wirefence.proxy_hold(1, $1, NULL, 'nothing', false, 'group')"} {
				wantCode(t, exec(reader, "SELECT "+call, fence), "42501")
				wantCode(t, exec(worker, "SELECT "+call, fence), map[bool]string{true: "WF001", false: ""}[fence == "job(1)=11"])
			}
		}
		mustExec(t, worker, "SET wirefence.token = 'job(1)=10'; INSERT INTO q.results VALUES (1)")
		wantCode(t, exec(worker, "INSERT INTO q.results VALUES (2)"), "WF002")
		mustExec(t, app, "ALTER TABLE q.job ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON q.job TO worker USING (id <> 1)")
		wantCode(t, exec(worker, "SELECT wirefence.check('job(1)=10')"), "WF001")
		wantCode(t, exec(worker, "SELECT wirefence.check('job(2)=20')"), "")
		mustExec(t, db.admin(t), "DROP OWNED BY worker, reader; DROP ROLE worker, reader")
	})
}

// A note of what was checked ends with its transaction, also if that is prepared.
func TestCheckedRowsOfAPreparedTransaction(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, app, "BEGIN; SELECT wirefence.check('job(1)=10'); PREPARE TRANSACTION 'jobs'")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('job(1)=10')")
		mustExec(t, db.admin(t), "COMMIT PREPARED 'jobs'")
		wantCode(t, exec(db.admin(t), "SELECT FROM q.job WHERE id = 1 FOR UPDATE NOWAIT"), "55P03")
		mustExec(t, app, "ROLLBACK")
	})
}

func TestShadowOfRows(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		const want = "WF001: stale claim for row job(1). Row job(1): presented claim 11, but it is under another claim."
		if got := value[string](t, app, "SELECT wirefence.check('job(1)=11', NULL, false, true)"); got != want {
			t.Errorf("a check in shadow mode says %q", got)
		}
		mustExec(t, app, "SELECT wirefence.declare_rows('job', 'q.job', '{id}', 'claim', 'state = ''running''', true)")
		mustExec(t, app, "SELECT wirefence.check('job(1)=10')")
		if n := look[int](t, db, "SELECT count(*)::int FROM wirefence.history"); n != 0 {
			t.Errorf("%d events of a claim that fits", n)
		}
		mustExec(t, app, "SELECT wirefence.check('job(1)=11'), wirefence.check('job(2)=21')")
		if got := look[string](t, db, "SELECT string_agg(concat_ws(' ', kind, state, resource), ', ') FROM wirefence.history"); got != "shadow WF001 job()" {
			t.Errorf("the history has %q", got)
		}
	})
}

// Tables each of whose rows belongs to a row that judges.
func TestGuardsOfRows(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, app, `
			CREATE TABLE q.parts (job_id bigint, body text) PARTITION BY RANGE (job_id);
			CREATE TABLE q.parts_low PARTITION OF q.parts FOR VALUES FROM (0) TO (100);
			SELECT wirefence.protect('q.results', 'job({job_id})'), wirefence.protect('q.parts', 'job({job_id})');
			CREATE TABLE q.parts_high PARTITION OF q.parts FOR VALUES FROM (100) TO (200)`)
		for _, resource := range []string{"none({job_id})", "job({body})", "job({job_id}:{body})", "job(x{job_id})"} {
			mustExec(t, app, "CREATE TABLE q.more (job_id bigint, body text)")
			if err := exec(app, "SELECT wirefence.protect('q.more', $1)", resource); err == nil {
				t.Errorf("a guard takes %s", resource)
			}
			mustExec(t, app, "DROP TABLE q.more")
		}
		mustExec(t, app, "BEGIN; SET LOCAL wirefence.token = 'job(1)=10'; INSERT INTO q.results VALUES (1, 'old'); INSERT INTO q.parts VALUES (1, 'old'); COMMIT")
		for _, c := range []struct{ fence, sql, state string }{
			{"job(2)=20", "UPDATE q.results SET job_id = 2", "WF002"}, {"job(2)=20", "UPDATE q.parts SET job_id = 2", "WF002"}, {"job(2)=20", "DELETE FROM q.results", "WF002"},
			{"job(1)=10", "INSERT INTO q.results VALUES (1, 'a')", ""},
			{"job(1)=11", "INSERT INTO q.results VALUES (1, 'a')", "WF001"},
			{"", "INSERT INTO q.results VALUES (1, 'a')", "WF002"},
			{"job(1)=10", "INSERT INTO q.results VALUES (2, 'a')", "WF002"},
			{"job(1)=10", "INSERT INTO q.results VALUES (1, 'a'), (2, 'a')", "WF002"},
			{"job(1)=10,job(2)=20", "INSERT INTO q.results VALUES (1, 'a'), (2, 'a')", ""},
			{"job(1)=10", "INSERT INTO q.results VALUES (NULL, 'a')", "WF002"},
			{"", "INSERT INTO q.results SELECT 1 WHERE false", ""},
			{"job(1)=10", "INSERT INTO q.results VALUES (1, 'a'); UPDATE q.results SET body = 'b'", ""},
			{"job(1)=10", "INSERT INTO q.results VALUES (1, 'a'); UPDATE q.results SET job_id = 2", "WF002"},
			{"job(1)=10,job(2)=20", "INSERT INTO q.results VALUES (1, 'a'); UPDATE q.results SET job_id = 2; DELETE FROM q.results", ""},
			{"job(1)=10", "TRUNCATE q.results", "WF006"},
			{"job(1)=10", "UPDATE q.job SET state = 'completed' WHERE id = 1; INSERT INTO q.results VALUES (1, 'a')", "WF001"},
			{"job(1)=10", "SELECT wirefence.check(); UPDATE q.job SET state = 'completed' WHERE id = 1; INSERT INTO q.results VALUES (1, 'a')", ""},
			{"", "SELECT wirefence.check('job(1)=10'); INSERT INTO q.results VALUES (1, 'a')", ""},
			{"", "SELECT wirefence.check('job(1)=10'); SET LOCAL wirefence.token = 'job(1)=11'; INSERT INTO q.results VALUES (1, 'a')", "WF001"},
			{"", "SAVEPOINT s; SELECT wirefence.check('job(1)=10'); ROLLBACK TO s; INSERT INTO q.results VALUES (1, 'a')", "WF002"},
			{"job(1)=10", "SET LOCAL wirefence.token = ''; INSERT INTO q.results VALUES (1, 'a')", "WF002"},
			{"job(1)=10", "INSERT INTO q.parts VALUES (1, 'a'); UPDATE q.parts_low SET body = 'b'", ""},
			{"job(1)=11", "INSERT INTO q.parts_low VALUES (1, 'a')", "WF001"},
			{"job(1)=10", "INSERT INTO q.parts_high VALUES (101, 'a')", "WF002"},
			{"", "INSERT INTO q.parts VALUES (1, 'a')", "WF002"},
			{"job(1)=10", "WITH w AS (INSERT INTO q.results VALUES (2, 'a') RETURNING 1) SELECT * FROM w", "WF002"},
		} {
			for _, isolation := range isolations {
				if got := transaction(t, app, isolation, "SET LOCAL wirefence.token = '"+c.fence+"'; "+c.sql); got != c.state {
					t.Errorf("%s: %s under %q: got %q, want %q", isolation, c.sql, c.fence, got, c.state)
				}
			}
		}
		mustExec(t, app, "BEGIN; SET LOCAL wirefence.token = 'job(1)=10'; DELETE FROM q.results; DELETE FROM q.parts; COMMIT")
		for fence, state := range map[string]string{"job(1)=10": "", "job(1)=11": "WF001", "": "WF002"} {
			if db.Major >= 15 {
				const merge = "MERGE INTO q.results AS r USING (VALUES (1::bigint)) AS v(id) ON r.job_id = v.id WHEN NOT MATCHED THEN INSERT VALUES (v.id, 'm')"
				if got := transaction(t, app, "READ COMMITTED", "SET LOCAL wirefence.token = '"+fence+"'; "+merge); got != state {
					t.Errorf("MERGE under %q: got %q, want %q", fence, got, state)
				}
			}
			mustExec(t, app, "BEGIN; SET LOCAL wirefence.token = '"+fence+"'")
			_, err := app.PgConn().CopyFrom(context.Background(), strings.NewReader("1\tc\n"), "COPY q.results FROM STDIN")
			wantCode(t, err, state)
			mustExec(t, app, "ROLLBACK")
		}
		if faults := look[int](t, db, "SELECT count(*)::int FROM wirefence.guarded() WHERE fault IS NOT NULL AND relation <> 'q.parts_high'"); faults != 0 {
			t.Errorf("%d guards have a fault", faults)
		}
		mustExec(t, app, "CREATE TABLE q.base (job_id bigint, body text); ALTER TABLE q.results INHERIT q.base")
		if fault := look[*string](t, db, "SELECT fault FROM wirefence.guarded() WHERE relation = 'q.results'"); fault == nil {
			t.Error("a guarded table that has got a parent has no fault")
		}
		mustExec(t, app, "ALTER TABLE q.results NO INHERIT q.base; SELECT wirefence.drop_rows('job')")
		wantCode(t, exec(app, "SET wirefence.token = 'job(1)=10'; INSERT INTO q.results VALUES (1, 'a')"), "WF008")
		if fault := look[*string](t, db, "SELECT fault FROM wirefence.guarded() WHERE relation = 'q.results'"); fault == nil {
			t.Error("the guard of a class that was dropped has no fault")
		}
	})
}

func TestShadowGuardsOfRows(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, app, "SELECT wirefence.protect('q.results', 'job({job_id})', true)")
		for _, fence := range []string{"job(1)=10", "job(1)=11", ""} {
			mustExec(t, app, "BEGIN; SET LOCAL wirefence.token = '"+fence+"'; INSERT INTO q.results VALUES (1, 'a'), (1, 'b'); COMMIT")
		}
		if got := look[string](t, db, "SELECT string_agg(concat_ws(' ', kind, state, resource, relation), ', ' ORDER BY state) FROM wirefence.history"); got !=
			"shadow WF001 job({job_id}) q.results, shadow WF002 job({job_id}) q.results" {
			t.Errorf("the history has %q", got)
		}
	})
}

// A standby judges rows, of which it has the state of some moment: what doesn't fit may only be
// late. A resource's token it can't judge.
func claimsOnStandby(t *testing.T, primary database) promotion {
	mustExec(t, primary.admin(t), queue)
	return promotion{missed: func(t *testing.T, standby database) {
		mustExec(t, primary.app(t), take)
		app := standby.app(t)
		for fence, state := range map[string]string{"job(1)=10": "", "job(1)=11": "40001", "job(77)=1": "40001", "none(1)=1": "WF008", "job(01)=10": "WF004", "job(1)=10,orders=1": ""} {
			for _, call := range []string{"wirefence.check($1)", "wirefence.proxy_hold(1, $1, NULL, 'nothing', false, 'group')"} {
				if got := code(exec(app, "SELECT "+call, fence)); got != state {
					t.Errorf("%s of %s: got %q, want %q", call, fence, got, state)
				}
			}
		}
		wantCode(t, exec(app, holdSQL, "job(1)=10"), "WF006")
		mustExec(t, app, "SET default_transaction_isolation = 'repeatable read'")
		wantCode(t, exec(app, "SELECT wirefence.check('job(1)=10')"), "WF006")
	}}
}

// Without a proxy, the history has the refusals of a class, not of its rows.
func TestRefusalsOfRowsWithoutAProxy(t *testing.T) {
	onQueue(t, func(t *testing.T, db database, app *pgx.Conn) {
		mustExec(t, app, "SELECT wirefence.protect('q.results', 'job({job_id})')")
		wantCode(t, exec(app, "SELECT wirefence.check('job(1)=11')"), "WF001")
		wantCode(t, exec(app, "INSERT INTO q.results VALUES (1)"), "WF002")
		if got := lookAs[int](t, db, "issuer", "SELECT wirefence.collect_refusals()"); got != 2 {
			t.Errorf("%d refusals, want 2", got)
		}
		if got := look[string](t, db, "SELECT string_agg(concat_ws(' ', kind, state, resource), ', ' ORDER BY state) FROM wirefence.history"); got !=
			"refusal WF001 job(), refusal WF002 job()" {
			t.Errorf("the history has %q", got)
		}
	})
}
