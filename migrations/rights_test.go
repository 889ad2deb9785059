package migrations_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
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
			wantSaid(t, sql, exec(app, sql), "42501", "GRANT wirefence_issuer TO app")
			wantCode(t, exec(app, strings.Replace(sql, "(", "_lease(", 1)), "42501")
		}
		// A function that is granted to everybody, above all one that runs as the owner, needs a change here.
		const public = "SELECT count(*) || ': ' || string_agg(proname, ' ' ORDER BY proname) FILTER (WHERE prosecdef) FROM pg_proc WHERE pronamespace = 'wirefence'::regnamespace AND has_function_privilege('public', oid, 'EXECUTE')"
		if got := look[string](t, db, public); got != "67: check_current check_several guard_row_unchecked guard_shadowed guard_truncate guard_unchecked hold_tokens plan_locks plan_protect plan_rows plan_unprotect proxy_unhold read_rows refuse_row refuse_rows row_query rows_query schema_version" {
			t.Errorf("everybody may execute %s", got)
		}
		if got := column[string](t, db.admin(t), "SELECT proname::text FROM pg_proc WHERE pronamespace = 'wirefence'::regnamespace AND proowner <> 'wirefence_owner'::regrole"); len(got) > 0 {
			t.Errorf("without Citus, others own %v", got)
		}
		mustExec(t, issuer, "SELECT last_token FROM wirefence.resource_locks")
		mustExec(t, issuer, "SELECT * FROM wirefence.status()")
	})
}
