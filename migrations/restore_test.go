package migrations_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// toDump returns a database with guarded tables on a server that pg_dump supports.
func toDump(t *testing.T) database {
	t.Helper()
	db := withSchema(t, dumped(t, 99))
	guarded(t, db)
	mustExec(t, db.admin(t), rolesOfDump)
	return db
}

// A new cluster lacks the roles. They must exist first: without them the restore fails
// visibly, and its objects belong to the role that restored.
func TestARestoreIntoANewCluster(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	t.Parallel()
	source := toDump(t)
	file := custom.dumpTo(t, source)
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: source.Major})).EndWith(t)
	bare := create(t, server, "")
	if out, err := bare.run(t, "postgres", "pg_restore", "-j2", file); err == nil || !strings.Contains(out, `role "wirefence_owner" does not exist`) {
		t.Errorf("without roles: %v, %s", err, out)
	}

	planned := create(t, server, "")
	admin := planned.admin(t)
	steps, err := migrations.Pending(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	roles, _, found := strings.Cut(steps, "CREATE SCHEMA")
	if !found {
		t.Fatalf("no schema is to be made: %s", steps)
	}
	mustExec(t, admin, roles+"CREATE ROLE app LOGIN; CREATE ROLE issuer LOGIN IN ROLE wirefence_issuer; COMMIT")
	custom.restoreInto(t, planned, file)
	wantSame(t, source, planned)
	planned.trustElsewhere(t)
	wantJudged(t, planned)
	wantNothingToApply(t, admin)
}

// Rows that are restored without their tables are checked by the guards.
func TestRowsIntoGuardedTables(t *testing.T) {
	t.Parallel()
	db := toDump(t)
	admin, want := db.admin(t), faultsOf(t, db)
	file := custom.dumpTo(t, db, "--data-only", "-n", "public")
	const rows = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM lines) + (SELECT count(*) FROM reports)"
	before := value[int](t, admin, rows)
	for _, c := range []struct {
		role, flag, options, refusal string
		bypasses                     int
	}{
		{role: "app", refusal: "a fencing token is required"},
		{role: "postgres", refusal: "a fencing token is required"},
		{role: "app", flag: "--disable-triggers", refusal: "is a system trigger"}, // of the foreign key
		{role: "postgres", flag: "--disable-triggers"},
		{role: "postgres", options: "PGOPTIONS=-c session_replication_role=replica"},
		{role: "app", options: "PGOPTIONS=-c wirefence.token=orders=34,lines=34,report:a:1=34,report:a:101=34"},
		{role: "loader", bypasses: 1},
	} {
		mustExec(t, admin, "SET session_replication_role = replica; TRUNCATE orders, lines, parts, base, reports; RESET session_replication_role; DELETE FROM wirefence.bypasses")
		args := []string{"--single-transaction", file}
		if c.flag != "" {
			args = append(args, c.flag)
		}
		restore := db.command(t, c.role, "pg_restore", args...)
		if c.options != "" {
			restore.Env = append(os.Environ(), c.options)
		}
		out, err := restore.CombinedOutput()
		loaded := value[int](t, admin, rows)
		switch {
		case c.refusal != "" && (err == nil || !strings.Contains(string(out), c.refusal) || loaded > 0):
			t.Errorf("%s %s: %v, %s, %d rows", c.role, c.flag, err, out, loaded)
		case c.refusal == "" && (err != nil || loaded != before):
			t.Errorf("%s %s %s: %v, %s, %d rows of %d", c.role, c.flag, c.options, err, out, loaded, before)
		}
		if n := value[int](t, admin, "SELECT count(*) FROM wirefence.bypasses"); n != c.bypasses {
			t.Errorf("%s %s %s: %d transactions are recorded", c.role, c.flag, c.options, n)
		}
		if got := faultsOf(t, db); !maps.Equal(got, want) {
			t.Errorf("%s %s %s: faults %q", c.role, c.flag, c.options, got)
		}
	}
}

// The rows of the schema wirefence are part of a dump.
func TestADumpWithoutData(t *testing.T) {
	stack.NeedsMore(t, "1 s of CPU")
	t.Parallel()
	source := toDump(t)
	restored := forRestore(t, source.Postgres)
	custom.restoreInto(t, restored, custom.dumpTo(t, source, "--schema-only"))
	admin := restored.admin(t)
	if err := migrations.Verify(t.Context(), admin); !errors.Is(err, migrations.ErrNoVersion) {
		t.Errorf("verifying gives %v", err)
	}
	if err := migrations.Apply(t.Context(), admin, nil); !errors.Is(err, migrations.ErrNoVersion) {
		t.Errorf("migrating gives %v", err)
	}
	if n := value[int](t, admin, "SELECT count(*) FROM wirefence.applied_version"); n > 0 {
		t.Error("a version was made up")
	}
	wantCode(t, exec(admin, "INSERT INTO orders VALUES (1)"), "WF002")
	custom.restoreInto(t, restored, custom.dumpTo(t, source, "--data-only", "-n", "wirefence"))
	if err := migrations.Verify(t.Context(), admin); err != nil {
		t.Error(err)
	}
	wantFaults(t, restored, faultsOf(t, source))
}

// A database that returns to an earlier state lacks grants. The steps of
// docs/howto/backup.md then make their tokens stale.
func TestARestoreToAnEarlierState(t *testing.T) {
	t.Parallel()
	script, err := pages.First("../docs/howto/backup.md", "3. Restore an older state into the same cluster", "sql")
	if err != nil {
		t.Fatal(err)
	}
	db := toDump(t)
	issuer := db.as(t, "issuer")
	mustExec(t, issuer, "SELECT wirefence.acquire('leased', 'worker-a', '1 hour'); SELECT wirefence.check('textbook=7')")
	file := custom.dumpTo(t, db)
	db.seal(t, "orders", 35)
	db.seal(t, "orders", 36)
	mustExec(t, issuer, "SELECT wirefence.revoke('leased'); SELECT wirefence.acquire('leased', 'worker-b', '1 hour')")
	db.mustRun(t, "postgres", "pg_restore", "--clean", "--if-exists", "--single-transaction", file)

	issuer = db.as(t, "issuer")
	wantHeldBy(t, issuer, "leased", "worker-a") // which it isn't any more
	mustExec(t, issuer, "SELECT wirefence.check('orders=34,leased=1')")
	out, err := db.psql(t, "issuer", script, "-v", "ON_ERROR_STOP=1")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, fence := range []string{"orders=34", "orders=35", "orders=36", "leased=1", "leased=2", "leased=3"} {
		wantCode(t, exec(issuer, "SELECT wirefence.check($1)", fence), "WF001")
	}
	if _, token := win(t, issuer, "leased", "worker-c", 60e9); token < 1000 {
		t.Errorf("the next token is %d", token)
	}
	mustExec(t, issuer, "SELECT wirefence.check('textbook=7')")
	reasons := column[string](t, issuer, "SELECT DISTINCT reason FROM wirefence.resource_changes")
	if len(reasons) != 1 || !strings.Contains(reasons[0], "restored") {
		t.Errorf("recorded %q", reasons)
	}
}

// pg_upgrade creates a new cluster, whose timeline is 1 again. It accepts no earlier
// token, and the next ones exceed all of them.
func TestTokensBehindPgUpgrade(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "pg_upgrade's half a minute")
	versions := servers.UpgradableVersions()
	if len(versions) == 0 {
		t.Fatal("no pg_upgrade is installed: run scripts/install-servers (Debian, Ubuntu), or put it beside postgres and initdb")
	}
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: versions[len(versions)-1]})).EndWith(t)
	before := withSchema(t, server)
	before.seal(t, "orders", 33)
	leased := granted(t, before, "leased")
	mustExec(t, before.app(t), "SELECT wirefence.check('foreign=7')")
	mustExec(t, before.as(t, "issuer"), "SELECT wirefence.declare_resource('trusted', 'a test', failover => 'trust')")
	before.seal(t, "trusted", 5)
	admin := before.admin(t)
	mustExec(t, admin, "CREATE TABLE public.guarded (id int); GRANT INSERT ON public.guarded TO app")
	mustExec(t, admin, "SELECT wirefence.protect('public.guarded', 'orders')")
	const identity = "SELECT wirefence.identity()"
	was := value[string](t, admin, identity)

	upgraded := stack.Started(server.Upgrade(t.Context())).EndWith(t)
	after := database{upgraded, before.name}
	admin = after.admin(t)
	if is := value[string](t, admin, identity); is == was || !contains(is, "/00000001") {
		t.Errorf("the server was %s and is %s", was, is)
	}
	for _, fence := range []string{"orders=33", fmt.Sprintf("leased=%d", leased)} {
		wantFormer(t, after, fence)
	}
	mustExec(t, after.app(t), "SELECT wirefence.check('trusted=5,foreign=7')")
	app := after.app(t)
	mustExec(t, app, "SET wirefence.token = 'orders=33'")
	wantCode(t, exec(app, "INSERT INTO public.guarded VALUES (1)"), "WF001")
	for _, resource := range []string{"orders", "leased"} {
		token := granted(t, after, resource)
		if token < firstAfterPromotion {
			t.Errorf("the next token of %s is %d", resource, token)
		}
		mustExec(t, after.app(t), "SELECT wirefence.check($1)", fmt.Sprintf("%s=%d", resource, token))
		wantCode(t, exec(after.app(t), "SELECT wirefence.check($1)", resource+"=33"), "WF001")
	}
	mustExec(t, app, fmt.Sprintf("SET wirefence.token = 'orders=%d'", after.lastToken(t, "orders")))
	mustExec(t, app, "INSERT INTO public.guarded VALUES (1)")
	wantInstalled(t, admin)
}

// pg_dumpall restores roles, memberships included.
func TestRolesOfADump(t *testing.T) {
	stack.NeedsMore(t, "1 s of CPU")
	t.Parallel()
	source := toDump(t)
	server := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: source.Major})).EndWith(t)
	roles := t.TempDir() + "/roles.sql"
	source.mustRun(t, "postgres", "pg_dumpall", "--roles-only", "-f", roles)
	restored := create(t, server, "")
	restored.mustRun(t, "postgres", "psql", "-Xq", "-f", roles) // which complains that there is a role postgres
	custom.restoreInto(t, restored, custom.dumpTo(t, source))
	wantSame(t, source, restored)
	wantNothingToApply(t, restored.admin(t))
}

// A dump of some tables contains their triggers, which judge tokens, but not the
// declarations.
func TestADumpOfSomeTables(t *testing.T) {
	stack.NeedsMore(t, "1 s of CPU")
	t.Parallel()
	source := toDump(t)
	some := custom.dumpTo(t, source, "-t", "public.orders", "-t", "public.lines")
	out, err := forRestore(t, source.Postgres).run(t, "postgres", "pg_restore", some)
	if err == nil || !strings.Contains(out, `schema "wirefence" does not exist`) {
		t.Errorf("into a database without the schema: %v, %s", err, out)
	}

	migrated := withSchema(t, source.Postgres)
	mustExec(t, migrated.admin(t), "GRANT CREATE ON SCHEMA public TO app")
	custom.restoreInto(t, migrated, some)
	wantFaults(t, migrated, map[string]string{"public.orders": "guarded, but not declared", "public.lines": "guarded, but not declared"})
	app := migrated.app(t)
	wantCode(t, exec(app, "UPDATE orders SET item = 'x'"), "WF002")
	migrated.seal(t, "orders", 2)
	wantCode(t, exec(app, "SET wirefence.token = 'orders=1'; UPDATE orders SET item = 'x'"), "WF001")
	mustExec(t, app, "SET wirefence.token = 'orders=2'; UPDATE orders SET item = 'x'; RESET wirefence.token")
	mustExec(t, app, "SELECT wirefence.protect('orders', 'orders'), wirefence.protect('lines', 'lines')")
	wantFaults(t, migrated, map[string]string{})
	mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=2'); UPDATE orders SET item = 'x'; COMMIT")

	// The class of rows does not come with its table.
	mustExec(t, source.app(t), "CREATE TABLE public.jobs (id int PRIMARY KEY, claim bigint); INSERT INTO jobs VALUES (17, 5); SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0')")
	custom.restoreInto(t, migrated, custom.dumpTo(t, source, "-t", "public.jobs"))
	wantCode(t, exec(app, "SELECT wirefence.check('job(17)=5')"), "WF008")
	mustExec(t, app, "SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'claim > 0'); SELECT wirefence.check('job(17)=5')")

	// A single table that is restored from a full dump comes without its triggers.
	other := withSchema(t, source.Postgres)
	other.mustRun(t, "postgres", "pg_restore", "-t", "orders", custom.dumpTo(t, source))
	wantCode(t, exec(other.app(t), "UPDATE orders SET item = 'x'"), "")
	wantFaults(t, other, map[string]string{})
}
