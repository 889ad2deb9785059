package migrations_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/migrations"
)

func drifts(t *testing.T, conn *pgx.Conn) []migrations.Drift {
	t.Helper()
	all, err := migrations.Drifts(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wantInstalled requires a schema that is whole, and that migrating leaves alone.
func wantInstalled(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	if err := migrations.Verify(t.Context(), admin); err != nil {
		t.Error(err)
	}
	wantNoDrift(t, admin)
	wantNothingToApply(t, admin)
}

func wantNothingToApply(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	if lines := apply(t, admin); len(lines) != 1 || !contains(lines[0], "nothing to apply") {
		t.Errorf("migrating again reports %q", lines)
	}
}

func wantNoDrift(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, d := range drifts(t, conn) {
		t.Errorf("%s: %s", d.Object, d.Fault)
	}
}

// A schema that was just installed has not drifted, on any version and for any role, and
// its use causes no drift.
func TestNothingDriftsByItself(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		db.seal(t, "orders", 34)
		mustExec(t, db.admin(t), "CREATE TABLE public.guarded (id int); SELECT wirefence.protect('public.guarded', 'orders')")
		for _, role := range []string{"postgres", "issuer", "app"} {
			wantNoDrift(t, db.as(t, role))
		}
	})
}

// drifted is a change of the schema, and the drift that it causes.
type drifted struct{ made, object, fault string }

// The changes of one list do not hide each other.
var driftRounds = [][]drifted{{
	{"CREATE OR REPLACE FUNCTION wirefence.judge(resources text[], tokens bigint[], sources text[], caller text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS 'BEGIN END'",
		"function wirefence.judge(text[], bigint[], text[], text)", "its body was changed"},
	{"CREATE OR REPLACE FUNCTION wirefence.lock_key(resource text) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN hashtextextended(resource COLLATE \"C\", 1)",
		"function wirefence.lock_key(text)", "its body was changed"},
	{"ALTER FUNCTION wirefence.seal(text, bigint, text, text) SECURITY INVOKER", "function wirefence.seal(text, bigint, text, text)", "not SECURITY DEFINER"},
	{"ALTER FUNCTION wirefence.high(bigint) SECURITY DEFINER", "function wirefence.high(bigint)", "made SECURITY DEFINER"},
	{"ALTER FUNCTION wirefence.read_rows(text) RESET search_path", "function wirefence.read_rows(text)", "its settings are none, not search_path=pg_catalog, pg_temp"},
	{"ALTER FUNCTION wirefence.lock_exclusive(text, bigint, text, interval, text) SET lock_timeout = '1s'", "function wirefence.lock_exclusive(text, bigint, text, interval, text)", "its settings are"},
	{"ALTER FUNCTION wirefence.revoke(text) OWNER TO postgres", "function wirefence.revoke(text)", "it belongs to postgres"},
	{"DROP FUNCTION wirefence.status()", "function wirefence.status()", "it is missing"},
	{"DROP AGGREGATE wirefence.check_tokens(VARIADIC text[])", "function wirefence.check_tokens(text[])", "it is missing"},
	{"REVOKE EXECUTE ON FUNCTION wirefence.check(text) FROM PUBLIC", "function wirefence.check(text)", "PUBLIC lacks EXECUTE"},
	{"GRANT EXECUTE ON FUNCTION wirefence.seal(text, bigint, text, text) TO PUBLIC", "function wirefence.seal(", "PUBLIC has EXECUTE"},
	{"GRANT INSERT, SELECT ON wirefence.resource_locks TO PUBLIC", "table wirefence.resource_locks", "PUBLIC has INSERT"},
	{"GRANT UPDATE (last_token) ON wirefence.resource_locks TO app", "table wirefence.resource_locks", "app has UPDATE"},
	{"REVOKE SELECT ON wirefence.resource_locks FROM wirefence_issuer", "table wirefence.resource_locks", "wirefence_issuer lacks SELECT"},
	{"GRANT CREATE ON SCHEMA wirefence TO app", "schema wirefence", "app has CREATE"},
	{"GRANT SELECT ON wirefence.secret TO PUBLIC", "table wirefence.secret", "PUBLIC has SELECT"},
	{"ALTER TABLE wirefence.resource_locks OWNER TO postgres", "wirefence.resource_locks", "it belongs to postgres"},
	{"ALTER TABLE wirefence.guards ENABLE ROW LEVEL SECURITY", "wirefence.guards", "row level security"},
	{"CREATE TRIGGER meddle BEFORE UPDATE ON wirefence.resource_locks EXECUTE FUNCTION suppress_redundant_updates_trigger()", "wirefence.resource_locks", "the trigger meddle"},
	{"DROP TRIGGER note_first ON wirefence.resource_locks", "wirefence.resource_locks", "it lacks the trigger note_first"},
	{"ALTER TABLE wirefence.resource_locks DISABLE TRIGGER note_handoff", "wirefence.resource_locks", "its trigger note_handoff is disabled"},
	{"CREATE RULE meddle AS ON DELETE TO wirefence.leases DO INSTEAD NOTHING", "wirefence.leases", "the rule meddle"},
	{"CREATE FUNCTION wirefence.check(text, boolean) RETURNS void LANGUAGE sql AS ''", "function wirefence.check(text, boolean)", "not Wirefence's"},
}, {
	{"REVOKE USAGE ON SCHEMA wirefence FROM PUBLIC", "schema wirefence", "PUBLIC lacks USAGE"},
}, {
	{"DROP SEQUENCE wirefence.refusals", "wirefence.refusals", "it is missing"},
}}

// Each kind of drift is reported, and its remedy leaves nothing behind.
func TestDriftsAreFoundAndMended(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		for _, round := range driftRounds {
			for _, c := range round {
				mustExec(t, admin, c.made)
			}
			all := drifts(t, db.app(t))
			for _, c := range round {
				if !slices.ContainsFunc(all, func(d migrations.Drift) bool {
					return strings.HasPrefix(d.Object, c.object) && strings.Contains(d.Fault, c.fault)
				}) {
					t.Errorf("after %s nobody says: %s: %s", c.made, c.object, c.fault)
				}
			}
			for range 2 { // what a superuser makes anew is the superuser's at first
				for _, d := range all {
					for _, remedy := range d.Remedy {
						mustExec(t, admin, remedy)
					}
				}
				all = drifts(t, admin)
			}
			for _, d := range all {
				t.Errorf("the remedies leave %s: %s", d.Object, d.Fault)
			}
		}
		mustExec(t, admin, "SELECT wirefence.check('orders=1')")
	})
}

// A lost column or constraint is reported, without a remedy.
func TestLostColumnsAreFound(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		mustExec(t, db.admin(t), "ALTER TABLE wirefence.guards DROP COLUMN protected_by, ALTER COLUMN protected_at DROP NOT NULL; ALTER TABLE wirefence.secret DROP CONSTRAINT secret_pkey")
		got := drifts(t, db.app(t))
		want := []migrations.Drift{
			{Object: "wirefence.guards", Fault: "its column protected_at is timestamp with time zone, not timestamp with time zone not null"},
			{Object: "wirefence.guards", Fault: "it lacks the column protected_by"},
			{Object: "wirefence.secret", Fault: "it lacks the constraint secret_pkey"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("reported: %+v", got)
		}
	})
}

// A binary works with a schema one version apart, if the functions of the older version
// exist.
func TestSchemasOneVersionApartAreServed(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		ctx := context.Background()
		admin, app := db.admin(t), db.app(t)
		for _, c := range []struct {
			apart  int
			served bool
			advice string
		}{
			{0, true, ""}, {1, true, ""}, {-1, true, ""},
			{2, false, "upgrade the binary"}, {-2, false, "wirefence migrate"}, {40, false, "upgrade the binary"},
		} {
			mustExec(t, admin, "UPDATE wirefence.applied_version SET version = $1", migrations.Version()+c.apart)
			differs, err := migrations.Usable(ctx, app)
			switch {
			case c.served && (err != nil || (differs != nil) != (c.apart != 0)):
				t.Errorf("%d apart: %v, %v", c.apart, differs, err)
			case !c.served && (err == nil || !contains(err.Error(), c.advice)):
				t.Errorf("%d apart: %v", c.apart, err)
			}
			if c.apart != 1 {
				continue
			}
			// A rollback migrates, too: with the release before.
			if lines := apply(t, admin); len(lines) != 1 || !contains(lines[0], "one above this binary's") {
				t.Errorf("migrating reports %q", lines)
			}
			if sql, err := migrations.Pending(ctx, admin); sql != "" || err != nil {
				t.Errorf("pending: %q, %v", sql, err)
			}
		}
		mustExec(t, admin, "UPDATE wirefence.applied_version SET version = $1", migrations.Version()+1)
		mustExec(t, admin, "DROP FUNCTION wirefence.proxy_unhold(integer, bigint[])")
		var lacks *migrations.ContentError
		if _, err := migrations.Usable(ctx, app); !errors.As(err, &lacks) {
			t.Errorf("a newer schema that has lost a function: %v", err)
		}
	})
}

// The server can prepare each SQL text of the programs.
func TestProgramsRunOnTheSchema(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		conn, found := db.admin(t), 0
		for path, sql := range programSQL(t) {
			found++
			if _, err := conn.Prepare(t.Context(), "", sql); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		if found < 30 {
			t.Errorf("only %d texts of SQL were found", found)
		}
	})
}

// programSQL returns the SQL texts that the programs send, by their paths.
func programSQL(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, root := range []string{"../fence", "../lockclient", "../internal", "../proxy"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case filepath.Ext(path) != ".sql":
				return nil
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "wirefence.") {
				all[path] = string(text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
