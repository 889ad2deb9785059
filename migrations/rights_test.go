package migrations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func column[T any](t *testing.T, conn *pgx.Conn, sql string) []T {
	t.Helper()
	rows, err := conn.Query(context.Background(), sql)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestRightsAreTheFewGranted(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		const granted = `SELECT p.oid::regprocedure::text FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
			WHERE p.pronamespace = 'wirefence'::regnamespace AND a.grantee = `
		if got := column[string](t, admin, granted+"0 ORDER BY 1"); !slices.Equal(got, []string{
			"wirefence.\"check\"(text)", "wirefence.\"check\"(text,text,boolean,boolean)", "wirefence.acquire(text,text,interval,text)", "wirefence.any_guards()", "wirefence.carried()", "wirefence.carries_name()", "wirefence.check_current(text,text)", "wirefence.check_in_shadow(text,text,boolean)", "wirefence.check_pairs(text,text,boolean,boolean)",
			"wirefence.check_rows(text,text,boolean)", "wirefence.check_several(text)", "wirefence.check_tokens(text[])", "wirefence.citus_group()", "wirefence.declare_guard(text[])",
			"wirefence.declare_rows(text,regclass,text[],text,text,boolean,text)", "wirefence.decode_text(text,text)", "wirefence.drop_class(text[])", "wirefence.drop_rows(text)", "wirefence.encode_key(text)", "wirefence.entry(text)",
			"wirefence.exactly(anyelement,anyelement)", "wirefence.forget_declaration(text[])", "wirefence.forget_guard(text)", "wirefence.guard()", "wirefence.guard_row()", "wirefence.guard_row_unchecked(regclass,text,text,boolean)", "wirefence.guard_rows()",
			"wirefence.guard_shadowed(regclass,text,text)", "wirefence.guard_statement()", "wirefence.guard_truncate(regclass,text,boolean)", "wirefence.guard_unchecked(regclass,text)", "wirefence.guarded_by()",
			"wirefence.hold_tokens(integer,text,text,text,text)", "wirefence.is_checked(text)", "wirefence.is_claim(bigint)", "wirefence.is_condition(boolean)", "wirefence.is_distributed(regclass)", "wirefence.is_end(timestamp without time zone)",
			"wirefence.judge_rows(text,text,boolean,boolean)", "wirefence.lock_inheritance_tree(regclass)", "wirefence.named_fence(text)", "wirefence.note_checked(text)", "wirefence.note_tokens(text)", "wirefence.plan_locks(regclass,name)",
			"wirefence.plan_protect(regclass,text,boolean,name)", "wirefence.plan_rows(text,regclass,text[],name)", "wirefence.plan_unprotect(regclass,name)", "wirefence.propagate(text)", "wirefence.protect(regclass,text,boolean)",
			"wirefence.proxy_hold(integer,text,text,text,boolean,text)", "wirefence.proxy_unhold(integer,bigint[])", "wirefence.read_rows(text)", "wirefence.record_rows(text[])",
			"wirefence.refuse_row(regclass,text,text,text,boolean)", "wirefence.refuse_rows(text,text,bigint,text)", "wirefence.release(text,text)", "wirefence.renew(text,text,interval)", "wirefence.require_issuer(text)",
			"wirefence.require_rows(regclass,text,text[],boolean)", "wirefence.retract_guard(text[])", "wirefence.row_function(text,text)", "wirefence.row_query(text)", "wirefence.rows_query(text,text[])", "wirefence.schema_version()", "wirefence.take_hold(text[])",
			"wirefence.unchecked_row(text[])", "wirefence.unprotect(regclass)",
		}) {
			t.Errorf("everybody may call %q", got)
		}
		if got := column[string](t, admin, granted+"'wirefence_issuer'::regrole ORDER BY 1"); !slices.Equal(got, []string{
			"wirefence.acquire_lease(text,text,interval,text)", "wirefence.asynchronous_standbys()", "wirefence.claim_stands(text,text)", "wirefence.collect_refusals()", "wirefence.declare_resource(text,text,text,boolean,text,text,text,text,text)", "wirefence.forget(text,bigint)", "wirefence.forgettable(interval)", "wirefence.guarded()",
			"wirefence.history(text,timestamp with time zone,text[],integer)", "wirefence.history_totals()", "wirefence.identity()", "wirefence.idle_holders()", "wirefence.prune_history()",
			"wirefence.record_refusals(text,jsonb)",
			"wirefence.release_lease(text,text)", "wirefence.release_notice(text)",
			"wirefence.renew_lease(text,text,interval)", "wirefence.revoke(text)", "wirefence.rows()", "wirefence.seal(text,bigint,text,text)",
			"wirefence.set_carry_name(boolean,text)", "wirefence.set_failover(text,text)", "wirefence.set_history(bigint,interval)",
			"wirefence.set_resource(text,text,text,boolean,text,text,text,bigint,text,text)", "wirefence.set_undeclared(text,text)", "wirefence.status()", "wirefence.unready_workers()", "wirefence.wanted(bigint[])",
		}) {
			t.Errorf("the issuer may call %q", got)
		}
		if got := column[string](t, admin, `SELECT c.relname || ' ' || a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
			WHERE c.relnamespace = 'wirefence'::regnamespace AND a.grantee <> c.relowner ORDER BY 1`); !slices.Equal(got, []string{
			"bypass_history SELECT", "bypasses SELECT", "guards SELECT", "history SELECT", "leases SELECT", "resource_changes SELECT", "resource_locks SELECT", "row_claims SELECT", "row_classes SELECT", "settings SELECT",
		}) {
			t.Errorf("on tables there is %q", got)
		}
		if got := column[string](t, admin, `SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'wirefence'::regnamespace
			AND c.relowner <> 'wirefence_owner'::regrole UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p
			WHERE p.pronamespace = 'wirefence'::regnamespace AND p.proowner <> 'wirefence_owner'::regrole`); len(got) > 0 {
			t.Errorf("not the owner's: %q", got)
		}
	})
}

func TestAnApplicationMayOnlyCheck(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, issuer := db.app(t), db.as(t, "issuer")
		for _, sql := range []string{
			"SELECT * FROM wirefence.resource_locks", "UPDATE wirefence.resource_locks SET last_token = 1",
			"INSERT INTO wirefence.resource_locks (resource_id) VALUES ('a')", "DELETE FROM wirefence.resource_locks",
			"TRUNCATE wirefence.resource_locks", "SELECT * FROM wirefence.applied_version", "SELECT * FROM wirefence.lock_holders",
			"SELECT wirefence.seal('a', 1)", "SELECT wirefence.revoke('a')", "SELECT * FROM wirefence.status()",
			"SELECT wirefence.end_holder('a', 1, '', NULL)", "SELECT wirefence.inspect_holders('a', 1, '{}', 3, 'app')", "SELECT * FROM wirefence.secret", "SELECT wirefence.wanted('{1}')", "SELECT wirefence.hold_called('{postgres,1,NULL,NULL,false,group}')", "SELECT wirefence.called_by(NULL, 'a')", "SELECT wirefence.check_called('{postgres,a=1,NULL,false,false}')", "SELECT wirefence.release_found(0)", "SELECT wirefence.lock_exclusive('a', 1, NULL, NULL, NULL)", "SELECT wirefence.record_token('a', 1, NULL)",
			"SELECT wirefence.seal('a', 1, 'b', 'etcd')", "SELECT wirefence.declare_resource('a', 'why')", "SELECT wirefence.set_resource('a', 'why', 'etcd')",
			"SELECT wirefence.end_lease('a')", "SELECT * FROM wirefence.resource_changes", "DELETE FROM wirefence.resource_changes",
			"SELECT wirefence.acquire('a', 'b', '1 s')", "SELECT wirefence.renew('a', 'b', '1 s')", "SELECT wirefence.release('a', 'b')",
			"SELECT wirefence.seal_next_token('a', 'b')", "SELECT * FROM wirefence.leases", "DELETE FROM wirefence.leases",
			"CREATE AGGREGATE pg_temp.mine(text[]) (SFUNC = array_cat, STYPE = text[], FINALFUNC = wirefence.drop_called)", "CREATE TABLE wirefence.mine ()", "SET ROLE wirefence_owner",
		} {
			wantCode(t, exec(app, sql), "42501")
		}
		for _, sql := range []string{
			"UPDATE wirefence.resource_locks SET last_token = 1", "DELETE FROM wirefence.resource_locks",
			"UPDATE wirefence.leases SET holder = 'me'", "DELETE FROM wirefence.leases", "SELECT wirefence.seal_next_token('a', 'b')",
			"SELECT wirefence.record_token('a', 1, NULL)", "SET ROLE wirefence_owner",
		} {
			wantCode(t, exec(issuer, sql), "42501")
		}
		for _, sql := range []string{"SELECT wirefence.acquire('a', 'b', '1 s', 'c')", "SELECT wirefence.renew('a', 'b', '1 s')", "SELECT wirefence.release('a', 'b')"} {
			err, refusal := exec(app, sql), (*pgconn.PgError)(nil)
			if !errors.As(err, &refusal) || refusal.Code != "42501" || !contains(refusal.Hint, "GRANT wirefence_issuer TO app") {
				t.Errorf("%s: %v, %+v", sql, err, refusal)
			}
			wantCode(t, exec(app, strings.Replace(sql, "(", "_lease(", 1)), "42501")
		}
		mustExec(t, issuer, "SELECT last_token FROM wirefence.resource_locks")
		mustExec(t, issuer, "SELECT * FROM wirefence.status()")
	})
}

// hostile puts traps before the objects that the functions of the schema use.
const hostile = `
	CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO PUBLIC;
	CREATE TABLE evil.resource_locks (LIKE wirefence.resource_locks);
	CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
	CREATE FUNCTION evil.text_trap(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
	CREATE FUNCTION evil.bigint_trap(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
	CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.text_trap);
	CREATE OPERATOR evil.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.text_trap);
	CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.text_trap);
	CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.bigint_trap);
	CREATE OPERATOR evil.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.bigint_trap);
	CREATE OPERATOR evil.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.bigint_trap);
	CREATE FUNCTION evil.split_part(text, text, integer) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
	CREATE FUNCTION evil.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT evil.trap()::int::bigint';
	CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
	CREATE FUNCTION evil.pg_advisory_xact_lock_shared(bigint) RETURNS void LANGUAGE sql AS 'SELECT evil.trap()';
	CREATE FUNCTION evil.octet_length(text) RETURNS integer LANGUAGE sql AS 'SELECT evil.trap()::int';
	CREATE FUNCTION evil.strpos(text, text) RETURNS integer LANGUAGE sql AS 'SELECT evil.trap()::int';
	CREATE FUNCTION evil.currval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT evil.trap()::int::bigint';
	CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT evil.trap()::text::timestamptz';
	CREATE FUNCTION evil.concat(VARIADIC text[]) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
	CREATE FUNCTION evil.int_trap(integer, integer) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
	CREATE OPERATOR evil.> (LEFTARG = integer, RIGHTARG = integer, FUNCTION = evil.int_trap);
	CREATE TABLE evil.guards (LIKE wirefence.guards)`

// A client may put its own operators, functions and tables in front of the
// system's. None of them may be called with the owner's rights, nor change a
// verdict.
func TestAHostileSearchPathRedirectsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), hostile)
		mustExec(t, db.admin(t), "GRANT TEMPORARY ON DATABASE "+db.name+" TO app")
		db.seal(t, "orders", 34)
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "SET search_path = evil, pg_catalog")
		mustExec(t, issuer, "SELECT wirefence.seal('sealed', 1)")
		mustExec(t, issuer, "SELECT wirefence.seal('sealed', 2, 'me', 'etcd'), wirefence.declare_resource('declared', 'why', source => 'etcd', advance => 'use')")
		mustExec(t, issuer, "SELECT wirefence.set_resource('declared', 'why', source => 'redis', reuse => 'once', preempt_after => '1 s', last_token => 7)")
		mustExec(t, issuer, "SELECT wirefence.revoke('sealed')")
		mustExec(t, issuer, "SELECT * FROM wirefence.status()")
		mustExec(t, issuer, "SELECT wirefence.acquire('leased', 'me', '1 min', 'g'), wirefence.acquire('leased', 'rival', '1 min')")
		mustExec(t, issuer, "SELECT wirefence.renew('leased', 'g', '1 min'), wirefence.release('leased', 'g')")
		app := db.app(t)
		mustExec(t, app, "CREATE TEMPORARY TABLE resource_locks (resource_id text, last_token bigint, reuse text)")
		mustExec(t, app, "INSERT INTO resource_locks VALUES ('orders', 33, 'allow')")
		for _, path := range []string{"evil, pg_catalog", "pg_temp, evil, pg_catalog, wirefence", "evil"} {
			mustExec(t, app, "SET search_path = "+path)
			for _, c := range []struct{ fence, state string }{
				{"orders=34", ""}, {"orders=33", "WF001"}, {"orders=35", "WF003"}, {"a%20b=1,c=1", ""}, {"x", "WF004"},
				{"d=1@etcd", ""}, {"d=1@redis", "WF003"},
			} {
				wantCode(t, exec(app, "SELECT wirefence.check($1)", c.fence), c.state)
				wantCode(t, exec(app, "SELECT wirefence.check($1, NULL, false, true)", c.fence), "")
			}
			mustExec(t, app, "SELECT wirefence.check(), wirefence.schema_version(), wirefence.proxy_hold(7, 'orders=34', NULL, NULL, false, 'group'), wirefence.proxy_unhold(7, NULL)")
			mustExec(t, app, "BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT wirefence.check('orders=34'); COMMIT")
		}
	})
}
