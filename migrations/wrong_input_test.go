package migrations_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// wrong is a call that must be refused, and the refusal.
type wrong struct{ call, state, says string }

// wantRefused makes each call and compares the database before and after: the catalog and
// all rows of Wirefence's tables.
func wantRefused(t *testing.T, db database, conn *pgx.Conn, all []wrong) {
	t.Helper()
	admin := db.admin(t)
	const leases = " UNION ALL SELECT concat_ws('|', 'lease', l) FROM wirefence.leases AS l ORDER BY 1"
	everything := strings.Replace(state, "\n\tORDER BY 1", leases, 1)
	if everything == state {
		t.Fatal("the leases are not compared")
	}
	before := column[string](t, admin, everything)
	for _, w := range all {
		err := exec(conn, "SELECT wirefence."+w.call)
		wantSaid(t, w.call, err, w.state, w.says)
	}
	after := column[string](t, admin, everything)
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("gone: %s", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("half done: %s", line)
		}
	}
	if n := value[int](t, admin, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1", int(conn.PgConn().PID())); n > 0 {
		t.Errorf("%d locks are left", n)
	}
}

// wantSaid requires an SQLSTATE, and a text somewhere in message, detail and hint.
func wantSaid(t *testing.T, call string, err error, state, says string) {
	t.Helper()
	if len(call) > 60 {
		call = call[:60] + "…"
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != state {
		t.Errorf("%s: want SQLSTATE %s, got %v", call, state, err)
	} else if said := strings.Join([]string{pgErr.Message, pgErr.Detail, pgErr.Hint}, " | "); !strings.Contains(said, says) {
		t.Errorf("%s: %q doesn't say %q", call, said, says)
	}
}

func TestWrongInputForIssuers(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		issuer := db.as(t, "issuer")
		const long = "repeat('x', 256)"
		mustExec(t, issuer, "SELECT wirefence.acquire('leased', 'worker-a', '1 hour'); SELECT wirefence.seal('last', 9223372036854775807, 'h', 'redis')")
		wantRefused(t, db, issuer, []wrong{
			{"seal(NULL, 1)", "WF004", "1 to 255 bytes"},
			{"seal('', 1)", "WF004", "1 to 255 bytes"},
			{"seal(" + long + ", 1)", "WF004", "1 to 255 bytes"},
			{"seal('r', NULL)", "WF004", "at least 1"},
			{"seal('r', 0)", "WF004", "at least 1"},
			{"seal('r', -1)", "WF004", "at least 1"},
			{"seal('r', 9223372036854775808)", "42883", "No function matches"},
			{"seal('r', 1, '')", "22023", "a holder must have 1 to 255 bytes"},
			{"seal('r', 1, " + long + ")", "22023", "It has 256 bytes"},
			{"seal('r', 1, 'h', '')", "WF004", "start with a letter"},
			{"seal('r', 1, 'h', repeat('x', 33))", "WF004", "1 to 32 bytes"},
			{"revoke(NULL)", "WF008", "status()"},
			{"revoke('')", "WF008", "status()"},
			{"revoke('nothing')", "WF008", `"nothing"`},
			{"revoke('last')", "22003", "no further token"},
			{"acquire('last', 'h', '1 s')", "22003", "no further token"},
			{"acquire('r', 'h', '0')", "22023", "more than 0"},
			{"acquire('r', 'h', '-1 s')", "22023", "more than 0"},
			{"acquire('r', 'h', '1000000 years')", "22023", "at most 366 days"},
			{"acquire('r', 'h', 'soon')", "22007", "soon"},
			{"acquire('r', NULL, '1 s')", "22023", "It is null"},
			{"acquire('r', 'h', NULL)", "22023", "more than 0"},
			{"acquire('r', 'h', '1 s', '')", "22023", "a grant id must have 1 to 255 bytes"},
			{"acquire(" + long + ", 'h', '1 s')", "22023", "a resource name must have 1 to 255 bytes"},
			{"acquire(NULL, NULL, NULL)", "22023", "a resource name"},
			{"renew(NULL, NULL, NULL)", "22023", "a resource name"},
			{"renew('leased', " + long + ", '1 s')", "22023", "It has 256 bytes"},
			{"renew('leased', 'g', NULL)", "22023", "It is null"},
			{"renew('leased', 'g', '0')", "22023", "more than 0"},
			{"release(NULL, NULL)", "22023", "a resource name"},
			{"declare_resource(NULL, NULL)", "22023", "It is null"},
			{"declare_resource('r', NULL)", "22023", "a reason must be given"},
			{"declare_resource('r', E' \\n\\t\\r')", "22023", "a reason must be given"},
			{"declare_resource('r', 'why', advance => '')", "22023", "use or grant"},
			{"declare_resource('r', 'why', reuse => 'ALLOW')", "22023", "allow or once"},
			{"declare_resource('r', 'why', preempt_after => '')", "22007", "interval"},
			{"declare_resource('r', 'why', preempt_after => '25 days')", "22023", "never, or 0 to 24 days"},
			{"declare_resource('r', 'why', preempt_after => '-1 s')", "22023", "never, or 0 to 24 days"},
			{"declare_resource('orders', 'why', reuse => 'once')", "42710", "wirefence resource set"},
			{"set_resource(NULL, NULL)", "22023", "It is null"},
			{"set_resource('nothing', 'why', reuse => 'once')", "WF008", "status()"},
			{"set_resource('orders', 'why')", "22023", "no setting to change was given"},
			{"set_resource('orders', 'why', last_token => -1)", "22023", "at least 0"},
			{"set_resource('orders', 'why', advance => 'never')", "22023", "use or grant"},
			{"set_resource('orders', 'why', must_name_source => true)", "22023", "Give the source"},
			{"set_resource('orders', 'why', preempt_after => '1000000 years')", "22023", "never, or 0 to 24 days"},
			{"set_resource('orders', 'why', last_token => 1, reuse => 'never')", "22023", "allow or once"},
			{"set_resource('last', 'why', source => 'etcd')", "22003", "no further token"},
		})
		if db.Major >= 17 { // which know intervals without end
			wantRefused(t, db, issuer, []wrong{
				{"acquire('r', 'h', 'infinity')", "22023", "at most 366 days"},
				{"declare_resource('r', 'why', preempt_after => 'infinity')", "22023", "never, or 0 to 24 days"},
			})
		}
		// The tokens of an exhausted resource can be restarted.
		mustExec(t, issuer, "SELECT wirefence.set_resource('last', 'poisoned', source => 'postgres', last_token => 7); SELECT wirefence.acquire('last', 'h', '1 s')")
	})
}

func TestWrongInputForGuards(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, admin := guarded(t, db), db.admin(t)
		mustExec(t, admin, `CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; GRANT USAGE ON FOREIGN SERVER s TO app;
			CREATE TABLE public.mixed (id int) PARTITION BY RANGE (id); CREATE TABLE public.mixed_low PARTITION OF public.mixed FOR VALUES FROM (0) TO (9);
			ALTER TABLE public.mixed OWNER TO app; CREATE TABLE public.others (id int)`)
		mustExec(t, app, `CREATE FOREIGN TABLE far (id int) SERVER s;
			CREATE TABLE mostly (id int) PARTITION BY RANGE (id);
			CREATE TABLE mostly_low PARTITION OF mostly FOR VALUES FROM (0) TO (9);
			CREATE FOREIGN TABLE mostly_far PARTITION OF mostly FOR VALUES FROM (9) TO (99) SERVER s;
			CREATE MATERIALIZED VIEW kept AS SELECT * FROM free; CREATE SEQUENCE numbers; CREATE TEMP TABLE passing (id int);
			CREATE TABLE odd (at timestamptz, price numeric, name char(4))`)
		calls := []wrong{
			{"protect(NULL, NULL)", "22023", "It is null"},
			{"protect(0, 'x')", "42P01", "does not exist"},
			{"protect(4294967295, 'x')", "42P01", "does not exist"},
			{"protect('far', 'x')", "42809", "foreign"},
			{"protect('mostly', 'x')", "42809", "cannot guard public.mostly_far"},
			{"protect('mostly', 'x:{id}')", "42809", "cannot guard public.mostly_far"},
			{"protect('mixed', 'x')", "42501", "GRANT postgres TO app"},
			{"protect('mixed', 'x:{id}')", "42501", "only the owner of public.mixed_low"},
			{"protect('kept', 'x')", "42809", "views"},
			{"protect('numbers', 'x')", "42809", "cannot guard "},
			{"protect('orders_pkey', 'x')", "42809", "cannot guard "},
			{"protect('passing', 'x')", "42809", "temporary"},
			{"protect('free', 'x:{ctid}')", "42703", "The table has id"},
			{"protect('free', '{ID}')", "42703", "The table has id"},
			{"protect('free', '{id')", "22023", "double each brace"},
			{"protect('free', repeat('é', 128))", "22023", "It has 256 bytes"},
			{"protect('nowhere', 'x')", "42P01", "nowhere"},
			{"protect(NULL, 'x')", "22004", "the table to protect is null"},
			{"protect('free', '')", "22023", "It has 0 bytes"},
			{"protect('free', repeat('x', 256))", "22023", "It has 256 bytes"},
			{"protect('free', 'a{b')", "22023", "has unbalanced braces"},
			{"protect('free', 'a}')", "22023", "has unbalanced braces"},
			{"protect('free', 'a{}')", "22023", "has unbalanced braces"},
			{"protect('free', 'a{b{c}}')", "22023", "has unbalanced braces"},
			{"protect('free', 'a:{id}{id}')", "22023", "has adjacent columns"},
			{"protect('free', 'a:{tenant}')", "42703", "has no column \"tenant\""},
			{"protect('odd', 'a:{at}')", "42804", "can't be part of a resource's name"},
			{"protect('odd', 'a:{price}')", "42804", "can't be part of a resource's name"},
			{"protect('odd', 'a:{name}')", "42804", "can't be part of a resource's name"},
			{"protect('seen', 'x')", "42809", "cannot guard "},
			{"protect('pg_catalog.pg_class', 'x')", "42809", "cannot guard "},
			{"protect('wirefence.resource_locks', 'x')", "42809", "cannot guard "},
			{"protect('others', 'x')", "42501", "Connect as postgres"},
			{"protect('orders', 'other')", "42710", "already guarded for resource \"orders\""},
			{"protect('parts_low', 'other')", "42710", "already guarded"},
			{"unprotect('free')", "42704", "is not guarded"},
			{"unprotect(NULL)", "42704", "is null"},
			{"unprotect('nowhere')", "42P01", "nowhere"},
			{"unprotect(0)", "42704", "is not guarded"},
			{"unprotect('parts_low')", "42809", "guarded as a partition"},
			{"unprotect('seen')", "42704", "is not guarded"},
			{"forget_guard(NULL)", "42704", "null"},
			{"forget_guard('public.orders')", "55000", "unprotect"},
			{"declare_guard(NULL, NULL, NULL)", "22023", "It is null"},
			{"declare_guard(NULL, 'x', 'false')", "42501", "has no guard"},
			{"declare_guard('orders'::regclass::oid::text, 'lines', 'false')", "42501", "has no guard"},
			{"guard()", "0A000", "as triggers"},
			{"guard_row()", "0A000", "as triggers"},
			{"guard_statement()", "0A000", "as triggers"},
			{"guard_unchecked(NULL, NULL)", "WF002", "null"},
			{"guard_row_unchecked(NULL, NULL, NULL, NULL)", "WF002", "null"},
			{"guard_truncate(NULL, NULL, NULL)", "WF006", "null"},
		}
		if db.Major >= 18 {
			mustExec(t, app, "CREATE TABLE virtual (id int, double int GENERATED ALWAYS AS (id * 2) VIRTUAL)")
			calls = append(calls, wrong{"protect('virtual', 'x:{double}')", "0A000", "make it STORED"})
		}
		wantRefused(t, db, app, calls)

		// A role that may read a table may neither guard it nor take it over.
		mustExec(t, admin, "CREATE ROLE "+db.name+"_reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+db.name+"_reader")
		wantRefused(t, db, db.as(t, db.name+"_reader"), []wrong{
			{"protect('free', 'x')", "42501", "Connect as app"},
			{"protect('orders', 'orders')", "42501", "Connect as app"},
			{"unprotect('orders')", "42501", "Connect as app"},
			{"declare_guard('free'::regclass::oid::text, 'x', 'false')", "42501", "has no guard"},
			{"declare_guard('orders'::regclass::oid::text, 'orders', 'false')", "42501", "Connect as app"},
			{"retract_guard('orders'::regclass::oid::text)", "42501", "Connect as app"},
		})
		// Missing triggers do not change that. A member of the owner, as a group, may do it.
		mustExec(t, app, "DROP TRIGGER wirefence_guard ON orders")
		wantRefused(t, db, db.as(t, db.name+"_reader"), []wrong{{"retract_guard('orders'::regclass::oid::text)", "42501", "Connect as app"}})
		mustExec(t, admin, "CREATE ROLE "+db.name+"_deputy LOGIN NOINHERIT IN ROLE app")
		mustExec(t, db.as(t, db.name+"_deputy"), "SET ROLE app; SELECT wirefence.protect('orders', 'orders'), wirefence.unprotect('orders'), wirefence.protect('orders', 'orders')")
		// A writer that doesn't end is waited for as long as the session wants.
		writer := db.app(t)
		mustExec(t, writer, "BEGIN; INSERT INTO free VALUES (1)")
		mustExec(t, app, "SET lock_timeout = '50 ms'")
		wantRefused(t, db, app, []wrong{{"protect('free', 'x:{id}')", "55P03", "lock timeout"}})
		mustExec(t, writer, "ROLLBACK")
		mustExec(t, app, "BEGIN READ ONLY")
		wantSaid(t, "protect", exec(app, "SELECT wirefence.protect('free', 'x')"), "25006", "read-only")
	})
}
