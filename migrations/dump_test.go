package migrations_test

import (
	"context"
	"fmt"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// command returns one of PostgreSQL's client tools, to run on the database as a role.
func (db database) command(t *testing.T, role, tool string, args ...string) *osexec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return osexec.CommandContext(ctx, tool, append(args, "-d", db.URLFor(role, db.name))...)
}

// run runs a command and returns its output.
func (db database) run(t *testing.T, role, tool string, args ...string) (string, error) {
	t.Helper()
	out, err := db.command(t, role, tool, args...).CombinedOutput()
	return string(out), err
}

func (db database) mustRun(t *testing.T, role, tool string, args ...string) {
	t.Helper()
	if out, err := db.run(t, role, tool, args...); err != nil {
		t.Fatalf("%s %q: %v\n%s", tool, args, err, out)
	}
}

// dumper is the newest major version that the installed pg_dump can dump.
var dumper = sync.OnceValues(func() (int, error) {
	out, err := osexec.Command("pg_dump", "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("pg_dump: %w: run scripts/install-servers", err)
	}
	return strconv.Atoi(string(regexp.MustCompile(`\d+`).Find(out)))
})

// dumped returns a server to dump from where db is the target: of the same version or, as
// in an upgrade, of the newest version that pg_dump supports.
func dumped(t *testing.T, target int) *servers.Postgres {
	t.Helper()
	newest, err := dumper()
	if err != nil {
		t.Fatal(err)
	}
	versions := append(stack.Versions(), stack.Version(0)) // whose pg_dump it may be
	slices.Sort(versions)
	for _, major := range slices.Backward(versions) {
		if major <= min(target, newest) {
			return suite.Server(t, major)
		}
	}
	t.Fatalf("pg_dump %d can dump none of the servers", newest)
	return nil
}

// form is a way to dump a database and to restore it.
type form struct {
	name, role    string
	dump, restore []string // nothing to restore with: psql
}

var (
	plain     = form{"plain", "postgres", []string{"-Fp"}, nil}
	custom    = form{"custom", "postgres", []string{"-Fc"}, []string{"-j2"}}
	directory = form{"directory", "postgres", []string{"-Fd", "-j2"}, []string{"-j2"}}
	byOwners  = form{"custom by the owners", "dba", []string{"-Fc"}, []string{"-j2"}}
)

// formsOf returns every form for the versions that everybody has, and one or two for the
// others.
func formsOf(major int) []form {
	switch major {
	case 14, 16:
		return []form{plain}
	case 17:
		return []form{directory}
	case 18:
		return []form{custom, byOwners}
	}
	return []form{plain, custom, directory, byOwners}
}

func (f form) dumpTo(t *testing.T, db database, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump")
	db.mustRun(t, f.role, "pg_dump", slices.Concat(f.dump, []string{"-f", file}, args)...)
	return file
}

func (f form) restoreInto(t *testing.T, db database, file string) {
	t.Helper()
	if f.restore == nil {
		db.mustRun(t, f.role, "psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-f", file)
		return
	}
	// All in one, it may fill a partition after it has made the parent's trigger.
	for _, sections := range [][]string{{"--section=pre-data", "--section=data"}, {"--section=post-data"}} {
		db.mustRun(t, f.role, "pg_restore", slices.Concat(f.restore, sections, []string{file})...)
	}
}

// toBeDumped adds to a guarded database what a dump may lose.
const toBeDumped = `
	CREATE SCHEMA "an app";
	CREATE TYPE "an app".kind AS ENUM ('a', 'b');
	CREATE TABLE "an app"."Odd: names" (kind "an app".kind NOT NULL, "a b" int NOT NULL, note text);
	SELECT wirefence.protect('"an app"."Odd: names"', '{{{kind}}}:{a b}');
	ALTER TABLE public.base RENAME TO renamed;
	CREATE TABLE public.gone (id int);
	SELECT wirefence.protect('public.gone', 'gone');
	DROP TABLE public.gone;
	CREATE TABLE public.off (id int);
	SELECT wirefence.protect('public.off', 'off');
	ALTER TABLE public.off DISABLE TRIGGER wirefence_guard;
	CREATE TABLE "an app".jobs (tenant text, id int, claim bigint, PRIMARY KEY (tenant, id));
	INSERT INTO "an app".jobs VALUES ('a:b', 17, 5);
	CREATE TABLE public.altered (dropped int, id int PRIMARY KEY, claim bigint);
	INSERT INTO public.altered VALUES (1, 17, 5);
	ALTER TABLE public.altered DROP dropped;
	SELECT wirefence.declare_rows('job', '"an app".jobs', '{tenant,id}', 'claim', 'claim > 0', until => 'timestamp ''2040-01-01'' + id * interval ''1 s'''), wirefence.declare_rows('altered', 'public.altered', '{id}', 'claim', 'claim > 0');
	CREATE TABLE public.results (id int);
	SELECT wirefence.protect('public.results', 'altered({id})')`

// rolesOfDump are those of a database administrator without superuser, and of a member of
// wirefence_bypass.
const rolesOfDump = `DO $$ BEGIN
	CREATE ROLE dba LOGIN CREATEDB IN ROLE wirefence_owner, app;
	CREATE ROLE loader LOGIN IN ROLE wirefence_bypass, app;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`

// state returns what a dump must keep, a line for each fact.
const state = `
	SELECT concat_ws('|', 'function', p.oid::regprocedure, p.proowner::regrole, md5(p.prosrc), p.prosecdef, p.proconfig,
	                 (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(coalesce(p.proacl, acldefault('f', p.proowner))) AS a))
	FROM pg_proc AS p WHERE p.pronamespace = 'wirefence'::regnamespace
	UNION ALL
	SELECT concat_ws('|', 'relation', c.oid::regclass, c.relkind, c.relpersistence, c.relowner::regrole,
	                 (SELECT array_agg(a::text ORDER BY a::text) FROM unnest(c.relacl) AS a WHERE a::text NOT LIKE c.relowner::regrole || '=%'))
	FROM pg_class AS c WHERE c.relnamespace::regnamespace::text IN ('wirefence', 'public', '"an app"') AND c.relkind IN ('r', 'p', 'S', 'v')
	UNION ALL
	SELECT concat_ws('|', 'trigger', pg_get_triggerdef(t.oid), t.tgenabled) FROM pg_trigger AS t WHERE NOT t.tgisinternal
	UNION ALL
	SELECT concat_ws('|', 'defaults', d.defaclrole::regrole, d.defaclobjtype, d.defaclacl) FROM pg_default_acl AS d
	UNION ALL
	SELECT concat_ws('|', 'guarded', g) FROM wirefence.guarded() AS g
	UNION ALL
	SELECT concat_ws('|', 'class', r) FROM wirefence.row_classes AS r
	UNION ALL
	SELECT concat_ws('|', 'resource', l) FROM wirefence.resource_locks AS l
	UNION ALL
	SELECT concat_ws('|', 'change', c) FROM wirefence.resource_changes AS c
	UNION ALL
	SELECT concat_ws('|', 'bypass', b) FROM wirefence.bypasses AS b
	UNION ALL
	SELECT concat_ws('|', 'row', tableoid::regclass, o) FROM public.orders AS o
	UNION ALL
	SELECT concat_ws('|', 'row', tableoid::regclass, r) FROM public.reports AS r
	UNION ALL
	SELECT concat_ws('|', 'any', wirefence.any_guards())
	ORDER BY 1`

// wantSame reports the differences of two databases.
func wantSame(t *testing.T, source, restored database) {
	t.Helper()
	before, after := column[string](t, source.admin(t), state), column[string](t, restored.admin(t), state)
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("missing: %s", line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("new: %s", line)
		}
	}
}

// forRestore creates an empty database into which dumps can be restored.
func forRestore(t *testing.T, server *servers.Postgres) database {
	t.Helper()
	db := create(t, server, "TEMPLATE template0 OWNER dba")
	mustExec(t, db.admin(t), "GRANT CREATE ON SCHEMA public TO app") // as PostgreSQL 15 no longer does by itself
	return db
}

// A restored database refuses and accepts the same writes as the dumped one, and needs no
// repair.
func TestADumpBringsItsGuards(t *testing.T) {
	stack.NeedsMore(t, "5 s of CPU")
	onEach(t, func(t *testing.T, db database) {
		source := withSchema(t, dumped(t, db.Major))
		app := guarded(t, source)
		mustExec(t, source.admin(t), "GRANT CREATE ON DATABASE "+source.name+` TO app;
			ALTER TABLE public.writes OWNER TO app; ALTER FUNCTION public.await_blocked OWNER TO app`)
		mustExec(t, app, toBeDumped)
		for _, server := range []database{source, db} {
			mustExec(t, server.admin(t), rolesOfDump)
		}
		mustExec(t, source.as(t, "loader"), "INSERT INTO public.orders VALUES (50, 'bypass')")
		mustExec(t, source.as(t, "issuer"), "SELECT wirefence.declare_resource('once', 'why', reuse => 'once', preempt_after => 'never', source => 'etcd')")
		for _, f := range formsOf(db.Major) {
			t.Run(f.name, func(t *testing.T) {
				restored := forRestore(t, db.Postgres)
				f.restoreInto(t, restored, f.dumpTo(t, source))
				wantSame(t, source, restored)
				admin := restored.admin(t)
				wantInstalled(t, admin)
				if source.Postgres != db.Postgres {
					restored.trustElsewhere(t)
				}
				app := restored.app(t)
				wantCode(t, exec(app, `INSERT INTO "an app"."Odd: names" VALUES ('a', 1)`), "WF002")
				mustExec(t, app, `SET wirefence.token = '%7Ba%7D:1=34'; INSERT INTO "an app"."Odd: names" VALUES ('a', 1)`)
				mustExec(t, app, "ALTER TABLE renamed RENAME TO base")
				wantJudged(t, restored)
				wantRows(t, restored)
			})
		}
	})
}

// wantRows checks that declared rows judge as before, although a restore numbers the columns of a
// table anew.
func wantRows(t *testing.T, db database) {
	t.Helper()
	app := db.app(t)
	for fence, state := range map[string]string{"job(a%3Ab:17)=5": "", "job(a%3Ab:17)=6": "WF001", "altered(17)=5": "", "altered(17)=6": "WF001"} {
		if got := code(exec(app, "SELECT wirefence.check($1)", fence)); got != state {
			t.Errorf("%s: got %q, want %q", fence, got, state)
		}
	}
	if got := column[string](t, db.as(t, "issuer"), "SELECT concat_ws(': ', class, fault) FROM wirefence.rows() ORDER BY 1"); !slices.Equal(got, []string{"altered", "job"}) {
		t.Errorf("classes and their faults: %q", got)
	}
	mustExec(t, app, `UPDATE "an app".jobs SET claim = claim`)
	if got := look[string](t, db, "SELECT string_agg(name, ' ') FROM wirefence.row_claims"); got != "job(a%3Ab:17)" {
		t.Errorf("claims of %q are recorded", got)
	}
	mustExec(t, app, "SET wirefence.token = 'altered(17)=5'; INSERT INTO results VALUES (17)")
	mustExec(t, app, "RESET wirefence.token; SELECT wirefence.declare_rows('altered', 'public.altered', '{id}', 'claim', 'claim > 0')")
}

// trustElsewhere checks that no token of another server is accepted, and then lets all be
// accepted.
func (db database) trustElsewhere(t *testing.T) {
	t.Helper()
	wantFormer(t, db, "orders=34")
	mustExec(t, db.as(t, "issuer"), "SELECT wirefence.set_failover('trust', 'the server that was dumped is no more')")
}

// wantJudged tries the writes to guarded tables, and checks that tokens continue from the
// dumped ones.
func wantJudged(t *testing.T, db database) {
	t.Helper()
	app := db.app(t)
	mustExec(t, app, "PREPARE w AS UPDATE orders SET item = 'x'")
	judgesWrites(t, db, app, "READ COMMITTED")
	mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=34'); UPDATE orders SET item = 'x'; COMMIT")
	if value[bool](t, db.as(t, "issuer"), "SELECT wirefence.seal('orders', 34, 'worker-c')") {
		t.Error("a token was granted a second time")
	}
	db.seal(t, "orders", 35)
	wantCode(t, exec(app, "SET wirefence.token = 'orders=34'; UPDATE orders SET item = 'x'"), "WF001")
}
