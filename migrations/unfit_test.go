package migrations_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/migrations"
)

// unlike creates an empty database in which functions of PostgreSQL behave differently:
// it replaces them in that database's catalog by SQL that is inlined.
func unlike(t *testing.T, db database, changes string) database {
	t.Helper()
	bare := create(t, db.Postgres, "TEMPLATE template0")
	mustExec(t, bare.admin(t), "SET allow_system_table_mods = on; "+changes)
	return bare
}

const untold = "ALTER FUNCTION pg_catalog.pg_control_system() RENAME TO pg_control_of_another_system"

// wantUnfit requires that migrating is refused and nothing was created.
func wantUnfit(t *testing.T, conn *pgx.Conn, o migrations.Options, says, advice string) {
	t.Helper()
	unfit := (*migrations.UnfitError)(nil)
	if err := o.Apply(context.Background(), conn, nil); !errors.As(err, &unfit) || !contains(err.Error(), says) || !contains(unfit.Advice, advice) {
		t.Errorf("migrating reports %v, and not %q and %q", err, says, advice)
	}
	if _, err := o.Pending(context.Background(), conn); !errors.As(err, &unfit) {
		t.Errorf("a dry run reports %v", err)
	}
	if n := value[int](t, conn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'wirefence'"); n != 0 {
		t.Error("the schema was made")
	}
	if n := value[int](t, conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// A server whose advisory locks do not exclude, or are not listed, is refused before
// anything is created.
func TestServersThatDoNotExclude(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		for name, c := range map[string]struct{ changes, says string }{
			"locks that do nothing": {`CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
				CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_xact_lock_shared(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'`,
				"a transaction is granted an advisory lock exclusively while another session holds it"},
			"locks of transactions that do nothing": {`CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_xact_lock_shared(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'`,
				"a transaction is granted an advisory lock while another one holds it exclusively"},
			"locks of sessions that end with the transaction": {`CREATE OR REPLACE FUNCTION pg_catalog.pg_advisory_lock_shared(bigint) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock_shared($1)'`,
				"pg_locks doesn't list an advisory lock that a session holds"},
			"no locks of sessions": {`ALTER FUNCTION pg_catalog.pg_advisory_lock_shared(bigint) RENAME TO no_lock`,
				"advisory locks: function pg_catalog.pg_advisory_lock_shared(bigint) does not exist"},
			"locks that nobody sees": {`CREATE OR REPLACE VIEW pg_catalog.pg_locks AS SELECT * FROM pg_lock_status() WHERE false`,
				"pg_locks doesn't list an advisory lock"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				wantUnfit(t, unlike(t, db, c.changes).admin(t), migrations.Options{Failover: fence.FailoverTrust}, c.says, "docs/reference/engines.md")
			})
		}
	})
}

// A server that does not report its timeline needs failover = trust. It judges tokens as
// others do, and nobody can have them refused after a promotion.
func TestAServerThatDoesNotTellItsTimeline(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		bare := unlike(t, db, untold)
		admin := bare.admin(t)
		for _, failover := range []fence.Failover{"", fence.FailoverReacquire} {
			wantUnfit(t, admin, migrations.Options{Failover: failover}, "doesn't tell its timeline: function pg_catalog.pg_control_system() does not exist", "--failover trust")
		}
		if err := (migrations.Options{Failover: "hope"}).Apply(t.Context(), admin, nil); err == nil || !contains(err.Error(), `failover is "hope"`) {
			t.Errorf("with a policy that is none: %v", err)
		}
		trust := migrations.Options{Failover: fence.FailoverTrust}
		sql, err := trust.Pending(t.Context(), admin)
		if err != nil {
			t.Fatal(err)
		}
		mustExec(t, unlike(t, db, untold).admin(t), sql)
		if err := trust.Apply(t.Context(), admin, nil); err != nil {
			t.Fatal(err)
		}
		wantNoDrift(t, admin)

		bare.seal(t, "orders", 33)
		wantCurrent(t, bare, "orders=33")
		bare.seal(t, "orders", 34)
		wantCode(t, exec(bare.app(t), "SELECT wirefence.check('orders=33')"), "WF001")
		if token := granted(t, bare, "leased"); token != 1 {
			t.Errorf("the first lease has token %d", token)
		}
		issuer := bare.as(t, "issuer")
		if last, err := fence.LastGrant(t.Context(), issuer, "orders"); err != nil || last.Token != 34 || last.Former {
			t.Errorf("the last grant is %+v, %v", last, err)
		}
		for _, sql := range []string{"SELECT wirefence.set_failover('reacquire', 'why')", "SELECT wirefence.set_resource('orders', 'why', failover => 'reacquire')",
			"SELECT wirefence.declare_resource('reports', 'why', failover => 'reacquire')"} {
			err := exec(issuer, sql)
			wantCode(t, err, "0A000")
			if err != nil && !contains(err.Error(), "needs a server that reports its timeline") {
				t.Errorf("%s: %v", sql, err)
			}
		}
		mustExec(t, issuer, "SELECT wirefence.set_failover('trust', 'why'), wirefence.declare_resource('reports', 'why', failover => 'trust')")
	})
}

// If the server reports its timeline, the choice is only a policy, and is made once.
func TestTheChoiceOfTrust(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		bare := create(t, db.Postgres, "TEMPLATE template0")
		admin := bare.admin(t)
		if err := (migrations.Options{Failover: fence.FailoverTrust}).Apply(t.Context(), admin, nil); err != nil {
			t.Fatal(err)
		}
		if id := value[string](t, admin, "SELECT wirefence.identity()"); id == "unknown" {
			t.Error("the server isn't asked which it is")
		}
		if is := value[string](t, admin, "SELECT failover FROM wirefence.settings"); is != "trust" {
			t.Errorf("failover is %s", is)
		}
		var said []string
		if err := (migrations.Options{Failover: fence.FailoverReacquire}).Apply(t.Context(), admin, func(line string) { said = append(said, line) }); err != nil {
			t.Error(err)
		}
		if !slices.Contains(said, "failover stays trust; to change it, run wirefence resource set --failover reacquire") {
			t.Errorf("said %q", said)
		}
		mustExec(t, bare.as(t, "issuer"), "SELECT wirefence.set_failover('reacquire', 'why')")
	})
}

// The error for a role without the right to read the identity of the server names the
// grant; the grant suffices for the owner and for issuers.
func TestARoleThatMayNotAskWhichServerItIs(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		const revoked = "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"
		bare, trusting := unlike(t, db, revoked), unlike(t, db, revoked)
		admin := bare.admin(t)
		asks := "GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system()"
		sql, err := migrations.Pending(t.Context(), admin)
		if err != nil || !contains(sql, asks) {
			t.Errorf("pending: %v", err)
		}
		stranger := "stranger_" + bare.name
		mustExec(t, admin, "CREATE ROLE "+stranger+" LOGIN IN ROLE wirefence_owner; GRANT CREATE ON DATABASE "+bare.name+", "+trusting.name+" TO "+stranger)
		missing := (*migrations.MissingRightsError)(nil)
		if err := migrations.Apply(t.Context(), bare.as(t, stranger), nil); !errors.As(err, &missing) || !contains(err.Error(), asks) {
			t.Errorf("a role without rights is told %v", err)
		}
		apply(t, admin)
		bare.seal(t, "orders", 33)
		wantCurrent(t, bare, "orders=33")
		if last, err := fence.LastGrant(t.Context(), bare.as(t, "issuer"), "orders"); err != nil || last.Former {
			t.Errorf("the last grant is %+v, %v", last, err)
		}
		if err := (migrations.Options{Failover: fence.FailoverTrust}).Apply(t.Context(), trusting.as(t, stranger), nil); err != nil {
			t.Errorf("where the storage is trusted: %v", err)
		}
	})
}

// The SQL of a dry run reports by itself what it lacks.
func TestTheScriptOnAServerThatDoesNotTellItsTimeline(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		sql, err := migrations.Pending(t.Context(), create(t, db.Postgres, "TEMPLATE template0").admin(t))
		if err != nil {
			t.Fatal(err)
		}
		for changes, want := range map[string]string{untold: "0A000", "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC": "42501"} {
			err := exec(unlike(t, db, changes).admin(t), sql)
			wantCode(t, err, want)
			if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Hint == "" {
				t.Errorf("%s: no hint", changes)
			}
		}
	})
}

// A standby refuses the schema with an error that says so.
func migratingStandby(*testing.T, database) promotion {
	return promotion{missed: func(t *testing.T, standby database) {
		wantUnfit(t, database{standby.Postgres, "postgres"}.admin(t), migrations.Options{}, "it is a standby", "target_session_attrs=read-write")
	}}
}
