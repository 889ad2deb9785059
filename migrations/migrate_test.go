package migrations_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// apply migrates and returns the reported lines.
func apply(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	var lines []string
	if err := migrations.Apply(context.Background(), conn, func(line string) { lines = append(lines, line) }); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestApplyIsIdempotentAndSaysWhatItDoes(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		empty := create(t, db.Postgres, "")
		conn := empty.admin(t)
		lines := apply(t, conn)
		if !slices.Contains(lines, "apply 001_resource_locks.sql") || !slices.Contains(lines, "CREATE SCHEMA wirefence AUTHORIZATION wirefence_owner") {
			t.Errorf("reported %q", lines)
		}
		wantNothingToApply(t, conn)
		if got := value[string](t, conn, "SELECT current_user::text"); got != "postgres" {
			t.Errorf("left acting as %s", got)
		}
		if n := value[int](t, conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"); n > 0 {
			t.Errorf("left %d locks", n)
		}
	})
}

// Databases come with settings and publications of their own.
func TestApplyInAnOddDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		empty := create(t, db.Postgres, "")
		for _, setting := range []string{
			"standard_conforming_strings = off", "quote_all_identifiers = on", "bytea_output = escape", "escape_string_warning = on",
			"default_transaction_isolation = 'serializable'", "check_function_bodies = off", "search_path = nowhere",
		} {
			mustExec(t, db.admin(t), "ALTER DATABASE "+empty.name+" SET "+setting)
		}
		mustExec(t, empty.admin(t), "CREATE PUBLICATION everything FOR ALL TABLES")
		apply(t, empty.admin(t))
		for _, set := range []string{"", "RESET ALL"} {
			if set != "" {
				mustExec(t, db.admin(t), "ALTER DATABASE "+empty.name+" "+set)
			}
			conn := empty.admin(t)
			wantNoDrift(t, conn)
			mustExec(t, conn, "UPDATE wirefence.applied_version SET version = version")
			mustExec(t, conn, "CREATE TABLE IF NOT EXISTS public.orders (id int)")
			mustExec(t, conn, "SELECT wirefence.seal('orders', 1, 'a'), wirefence.protect('public.orders', 'orders')")
			wantCode(t, exec(conn, "INSERT INTO public.orders VALUES (1)"), "WF002")
			mustExec(t, conn, "SELECT wirefence.unprotect('public.orders'), wirefence.revoke('orders'), wirefence.set_resource('orders', 'why not', reuse => 'once')")
		}
	})
}

func TestDryRunPrintsWhatMakesItSo(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		ctx := context.Background()
		for name, script := range map[string]func(*pgx.Conn) (string, error){
			"Script": func(*pgx.Conn) (string, error) {
				var b strings.Builder
				err := migrations.Script(&b)
				return b.String(), err
			},
			"Pending": func(conn *pgx.Conn) (string, error) { return migrations.Pending(ctx, conn) },
		} {
			conn := create(t, db.Postgres, "").admin(t)
			sql, err := script(conn)
			if err != nil {
				t.Fatal(err)
			}
			var mismatch *migrations.VersionError
			if err := migrations.Verify(ctx, conn); !errors.As(err, &mismatch) || !mismatch.Missing() {
				t.Errorf("%s changed the database: %v", name, err)
			}
			mustExec(t, conn, sql)
			wantInstalled(t, conn)
			if rest, err := migrations.Pending(ctx, conn); rest != "" || err != nil {
				t.Errorf("still pending: %q, %v", rest, err)
			}
		}
	})
}

func TestVerifySaysBehindAheadAndMissing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		ctx := context.Background()
		admin, app := db.admin(t), db.app(t)
		if err := migrations.Verify(ctx, app); err != nil {
			t.Error(err)
		}
		if got := value[int](t, app, "SELECT wirefence.schema_version()"); got != migrations.Version() {
			t.Errorf("schema_version() is %d", got)
		}
		for _, c := range []struct {
			change string
			is     func(*migrations.VersionError) bool
			advice string
		}{
			{"UPDATE wirefence.applied_version SET version = version - 2", (*migrations.VersionError).Behind, "wirefence migrate"},
			{"UPDATE wirefence.applied_version SET version = version + 4", (*migrations.VersionError).Ahead, "upgrade the binary"},
			{"DROP SCHEMA wirefence CASCADE", (*migrations.VersionError).Missing, "wirefence migrate"},
		} {
			mustExec(t, admin, c.change)
			err := migrations.Verify(ctx, app)
			var mismatch *migrations.VersionError
			if !errors.As(err, &mismatch) || !c.is(mismatch) || !contains(err.Error(), c.advice) {
				t.Errorf("%s: %v", c.change, err)
				continue
			}
			if !mismatch.Ahead() {
				continue
			}
			if err := migrations.Apply(ctx, admin, nil); !errors.As(err, &mismatch) || !mismatch.Ahead() {
				t.Errorf("applied to a database that is ahead: %v", err)
			}
			if _, err := migrations.Pending(ctx, admin); !errors.As(err, &mismatch) {
				t.Errorf("pending for a database that is ahead: %v", err)
			}
		}
	})
}

// A migration doesn't let sessions wait behind it for long: as long as one holds a table, it gives up its own locks
// and begins again.
func TestAMigrationGivesWay(t *testing.T) {
	t.Parallel()
	db := create(t, suite.Server(t, 0), "")
	if err := (migrations.Options{}.To(14)).Apply(t.Context(), db.admin(t), nil); err != nil {
		t.Fatal(err)
	}
	writer := db.admin(t)
	mustExec(t, writer, "BEGIN; LOCK TABLE wirefence.resource_locks IN ROW EXCLUSIVE MODE")
	var lines []string
	if err := migrations.Apply(t.Context(), db.admin(t), func(line string) {
		if lines = append(lines, line); strings.HasPrefix(line, "waiting for sessions") {
			mustExec(t, writer, "COMMIT")
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(lines) < 3 || lines[0] != "apply 015_history.sql" || !strings.Contains(lines[1], "015_history.sql: ERROR: canceling statement due to lock timeout") || lines[2] != "apply 016_forget.sql" {
		t.Errorf("%q", lines)
	}
}

// Roles belong to the whole cluster, so this test needs a cluster of its own. An
// unprivileged role gets the complete list of statements at once, and they are sufficient
// on every version: the rules for roles changed in 16.
func TestRolesAndRightsOfANewCluster(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	const forget = `DROP SCHEMA wirefence CASCADE; DROP OWNED BY wirefence_owner, wirefence_issuer, wirefence_bypass;
		DROP ROLE wirefence_owner, wirefence_issuer, wirefence_bypass`
	stack.OnEach(t, stack.Versions(), func(t *testing.T, major int) {
		server := stack.Started(servers.StartPostgres(context.Background(), servers.PostgresConfig{Major: major})).EndWith(t)
		db := create(t, server, "")
		admin := db.admin(t)
		mustExec(t, admin, `CREATE ROLE "Migrating Role" LOGIN; CREATE ROLE creator LOGIN CREATEROLE; GRANT CREATE ON DATABASE `+db.name+" TO creator")
		tells(t, db, "Migrating Role", 7)
		mustExec(t, admin, forget)
		if major >= 16 {
			tells(t, db, "creator", 7) // lacks ADMIN OPTION on pg_signal_backend
		} else {
			apply(t, db.as(t, "creator"))
		}
		withoutSignal(t, db)
		mustExec(t, admin, forget)
		if major >= 16 {
			withoutStats(t, db)
			mustExec(t, admin, forget)
		}
		raceForRoles(t, db)
	})
}

// withoutSignal makes a takeover fail because pg_signal_backend is missing: the error
// names the grant, and another migration makes it.
func withoutSignal(t *testing.T, db database) {
	t.Helper()
	admin := db.admin(t)
	mustExec(t, admin, "CREATE ROLE app LOGIN; REVOKE pg_signal_backend FROM wirefence_owner")
	mustExec(t, admin, "SELECT wirefence.seal('orders', 34)")
	mustExec(t, admin, "UPDATE wirefence.resource_locks SET preempt_after = '50 ms'")
	holder := db.app(t)
	mustExec(t, holder, "BEGIN; SELECT wirefence.check('orders=34')")
	err := exec(admin, "SELECT wirefence.seal('orders', 35)")
	wantSaid(t, "a takeover", err, "42501", "GRANT pg_signal_backend TO wirefence_owner")
	apply(t, admin)
	mustExec(t, admin, "SELECT wirefence.seal('orders', 35)")
}

// withoutStats migrates without the right to see which sessions are idle, and says so. A
// takeover then waits for an idle holder for preempt_after.
func withoutStats(t *testing.T, db database) {
	t.Helper()
	admin := db.admin(t)
	mustExec(t, admin, "GRANT pg_signal_backend TO creator WITH ADMIN OPTION")
	var said []string
	if err := migrations.Apply(t.Context(), db.as(t, "creator"), func(line string) { said = append(said, line) }); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(said, func(line string) bool {
		return contains(line, "skipped") && contains(line, "GRANT pg_read_all_stats TO wirefence_owner")
	}) {
		t.Errorf("said %q", said)
	}
	mustExec(t, admin, "SELECT wirefence.seal('orders', 34)")
	mustExec(t, admin, "UPDATE wirefence.resource_locks SET preempt_after = '900 ms'")
	holder := db.app(t)
	hold(t, holder, "orders=34")
	db.asleep(t, holder)
	began := time.Now()
	mustExec(t, admin, "SELECT wirefence.seal('orders', 35)")
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("an idle holder was ended after %v", took)
	}
	if exec(holder, "SELECT 1") == nil {
		t.Error("an idle holder was not ended")
	}
}

// tells runs exactly the statements that the error lists, and migrates.
func tells(t *testing.T, db database, role string, statements int) {
	t.Helper()
	ctx := context.Background()
	conn := db.as(t, role)
	var missing *migrations.MissingRightsError
	if err := migrations.Apply(ctx, conn, nil); !errors.As(err, &missing) {
		t.Fatalf("%s: %v", role, err)
	}
	if len(missing.Statements) != statements || missing.Role != role {
		t.Errorf("told %q", missing)
	}
	admin := db.admin(t)
	if n := value[int](t, admin, "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'wirefence%'"); n > 0 {
		t.Errorf("a refused migration left %d roles", n)
	}
	for _, statement := range missing.Statements {
		mustExec(t, admin, statement)
	}
	apply(t, conn)
	if err := migrations.Verify(ctx, conn); err != nil {
		t.Error(err)
	}
}

// raceForRoles migrates several databases of a cluster without the roles at once.
func raceForRoles(t *testing.T, db database) {
	t.Helper()
	var wg sync.WaitGroup
	for range 4 {
		other := create(t, db.Postgres, "")
		for range 2 {
			conn := other.admin(t)
			wg.Go(func() {
				if err := migrations.Apply(context.Background(), conn, nil); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
}

// A client may use the encoding of its database, whatever that is: only ASCII arrives
// unchanged.
func TestSQLIsPlainASCII(t *testing.T) {
	var all strings.Builder
	if err := migrations.Script(&all); err != nil {
		t.Fatal(err)
	}
	for i, c := range []byte(all.String()) {
		if c > 0x7e {
			t.Fatalf("byte 0x%02x after %q", c, all.String()[max(0, i-40):i])
		}
	}
}

// A migration is one transaction: whenever its connection or its program ends, the database is
// as it was before.
func TestAMigrationThatEndsLeavesNothing(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	const objects = `SELECT count(*) FROM (SELECT FROM pg_namespace WHERE nspname = 'wirefence'
		UNION ALL SELECT FROM pg_proc WHERE pronamespace = to_regnamespace('wirefence')
		UNION ALL SELECT FROM pg_class WHERE relnamespace = to_regnamespace('wirefence')) AS o`
	onEach(t, func(t *testing.T, db database) {
		for _, from := range []int{0, 8} {
			empty := create(t, db.Postgres, "")
			watching := empty.admin(t)
			if from > 0 {
				if err := (migrations.Options{}).To(from).Apply(t.Context(), empty.admin(t), nil); err != nil {
					t.Fatal(err)
				}
			}
			before := value[int](t, watching, objects)
			for _, at := range []string{"CREATE SCHEMA", "apply 001", "apply 002", "apply 005", "apply 009", "apply 014", "the schema is"} {
				if from > 0 && at < "apply 009" {
					continue
				}
				for _, what := range []string{"ended", "cancelled"} {
					conn := empty.admin(t)
					reached := false
					ctx, cancel := context.WithCancel(t.Context())
					err := migrations.Apply(ctx, conn, func(line string) {
						if !strings.HasPrefix(line, at) {
							return
						}
						reached = true
						if what == "cancelled" {
							cancel()
							return
						}
						mustExec(t, watching, "SELECT pg_terminate_backend($1), pg_sleep(0.01)", conn.PgConn().PID())
					})
					cancel()
					if err == nil || !reached {
						t.Fatalf("from %d, %s at %q: %v, %v", from, what, at, err, reached)
					}
					if n := value[int](t, watching, objects); n != before {
						t.Errorf("from %d, %s at %q: %d objects, before it %d", from, what, at, n, before)
					}
					var version *migrations.VersionError
					if err := migrations.Verify(t.Context(), watching); !errors.As(err, &version) || version.Have != from {
						t.Errorf("from %d, %s at %q: %v", from, what, at, err)
					}
				}
			}
			apply(t, empty.admin(t))
			if err := migrations.Verify(t.Context(), watching); err != nil {
				t.Error(err)
			}
		}
	})
}
