package migrations_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// onCitus is a migrated database at the coordinator of two workers, with a table of each kind.
func onCitus(t *testing.T, c *servers.Citus) database {
	t.Helper()
	db := stack.OnCitus(t, c, `CREATE TABLE local (id int PRIMARY KEY, claim bigint NOT NULL DEFAULT 0);
		CREATE TABLE sharded (id int PRIMARY KEY, token int);
		SELECT create_distributed_table('sharded', 'id');
		CREATE TABLE copied (id int PRIMARY KEY);
		SELECT create_reference_table('copied');
		CREATE TABLE managed (id int PRIMARY KEY);
		SELECT citus_add_local_table_to_metadata('managed');
		GRANT wirefence_issuer TO issuer`)
	return database{db.Postgres, db.Name}
}

func TestOnCitus(t *testing.T) {
	t.Parallel()
	c := stack.Citus(t, 2, nil)
	mustExec(t, database{c.Coordinator, "postgres"}.admin(t), "CREATE ROLE issuer LOGIN")
	db := onCitus(t, c)
	for _, part := range []struct {
		name string
		test func(*testing.T, *servers.Citus, database)
	}{
		{"the schema stays at the coordinator", schemaStays}, {"guards and rows", guardsAndRows}, {"distributed later", distributedLater},
		{"an issuer", issuerOnCitus}, {"a commit that a worker has still to carry out", unsettledCommit}, {"uninstalled", uninstalledOnCitus},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, c, db) })
	}
}

func schemaStays(t *testing.T, c *servers.Citus, db database) {
	admin := db.admin(t)
	wantInstalled(t, admin)
	for _, node := range c.Workers {
		worker := database{node, db.name}
		if n := look[int](t, worker, "SELECT count(*) FROM pg_namespace WHERE nspname = 'wirefence'"); n != 0 {
			t.Error("a worker has the schema")
		}
		unfit := (*migrations.UnfitError)(nil)
		if err := migrations.Apply(t.Context(), worker.admin(t), nil); !errors.As(err, &unfit) || !contains(err.Error(), "it is a worker of Citus") {
			t.Errorf("migrating a worker: %v", err)
		}
	}
	bare := stack.BareOnCitus(t, c)
	script, err := migrations.Pending(t.Context(), bare.Admin)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, bare.Admin, script)
	wantNoDrift(t, bare.Admin)
}

// Local tables are guarded as elsewhere; others are refused with a reason.
func guardsAndRows(t *testing.T, _ *servers.Citus, db database) {
	admin := db.admin(t)
	db.seal(t, "orders", 33)
	db.seal(t, "orders", 34)
	mustExec(t, admin, "CREATE ROLE owner LOGIN; ALTER TABLE local OWNER TO owner; GRANT CREATE ON SCHEMA public TO owner")
	owner := db.as(t, "owner")
	mustExec(t, owner, "SELECT wirefence.declare_rows('job', 'local', '{id}', 'claim', 'claim > 0'); INSERT INTO local VALUES (17, 5)")
	mustExec(t, owner, "SELECT wirefence.protect('local', 'orders')")
	wantCode(t, exec(owner, "INSERT INTO local VALUES (1)"), "WF002")
	mustExec(t, owner, "SET wirefence.token = 'orders=34'; INSERT INTO local VALUES (2)")
	wantCode(t, exec(owner, "SELECT wirefence.check('job(17)=4')"), "WF001")
	mustExec(t, owner, "SELECT wirefence.check('job(17)=5')")
	if got := value[string](t, owner, "SHOW citus.enable_ddl_propagation"); got != "on" {
		t.Errorf("what the session creates is propagated: %s", got)
	}
	mustExec(t, owner, "SELECT wirefence.unprotect('local'), wirefence.drop_rows('job'); DELETE FROM local")
	for _, table := range []string{"sharded", "copied", "managed"} {
		wantSaid(t, table, exec(admin, "SELECT wirefence.protect('"+table+"', 'orders')"), "0A000", "Citus")
		wantCode(t, exec(admin, "SELECT wirefence.declare_rows('job', '"+table+"', '{id}', 'id::bigint', 'id > 0')"), "42809")
	}
}

// A table that is distributed although it has guards or judges loses neither without a word.
func distributedLater(t *testing.T, _ *servers.Citus, db database) {
	admin := db.admin(t)
	mustExec(t, admin, "SELECT wirefence.protect('local', 'orders')")
	wantCode(t, exec(admin, "SELECT create_distributed_table('local', 'id')"), "XX000")
	mustExec(t, admin, "SELECT wirefence.unprotect('local'), wirefence.declare_rows('job', 'local', '{id}', 'claim', 'claim > 0'); INSERT INTO local VALUES (17, 5)")
	mustExec(t, admin, "SELECT wirefence.check('job(17)=5')")
	mustExec(t, admin, "SELECT create_distributed_table('local', 'id')")
	wantCode(t, exec(admin, "SELECT wirefence.check('job(17)=5')"), "WF008")
}

func issuerOnCitus(t *testing.T, c *servers.Citus, db database) {
	issuer := db.as(t, "issuer")
	// A snapshot may be older than a commit that a worker has still to carry out.
	wantCode(t, exec(issuer, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT wirefence.seal('orders', 35, 'worker-b')"), "0A000")
	mustExec(t, issuer, "ROLLBACK; SELECT wirefence.acquire('jobs', 'worker-b', '1 min')")
	// A node that is added later gets nothing of the schema.
	third := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: c.Coordinator.Major, Settings: map[string]string{"shared_preload_libraries": "citus"}})).EndWith(t)
	node := database{third, "postgres"}
	mustExec(t, node.admin(t), "CREATE DATABASE "+db.name)
	mustExec(t, node.connectTo(t, "postgres", db.name), "CREATE EXTENSION citus")
	mustExec(t, db.admin(t), "SELECT citus_add_node('127.0.0.1', $1)", third.Port)
	mustExec(t, issuer, "SELECT wirefence.seal('orders', 36, 'worker-b')")
	mustExec(t, db.admin(t), "SELECT citus_remove_node('127.0.0.1', $1)", third.Port)
}

func uninstalledOnCitus(t *testing.T, _ *servers.Citus, db database) {
	admin := db.admin(t)
	if err := migrations.Uninstall(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	left, err := migrations.Look(t.Context(), admin)
	if err != nil || left.Schema || len(left.Guards) > 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
	apply(t, admin)
}

// cutBetweenPhases commits the transaction of a session of this node, and cuts a network while the
// commit is between its two phases, where it waits for a standby.
func (db database) cutBetweenPhases(t *testing.T, writer *pgx.Conn, network *servers.Link) {
	t.Helper()
	admin, probe := db.admin(t), db.admin(t)
	standby := func(name string) {
		mustExec(t, admin, "ALTER SYSTEM SET synchronous_standby_names = '"+name+"'")
		mustExec(t, admin, "SELECT pg_reload_conf()")
	}
	waits := func(session *pgx.Conn) {
		t.Helper()
		stack.Eventually(t, "a commit waits for a standby", func() bool {
			return value[bool](t, admin, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep')", int32(session.PgConn().PID()))
		})
	}
	standby("nobody")
	var over atomic.Bool
	probed := make(chan error, 1)
	go func() { // until the server knows of it
		err := exec(probe, "SET synchronous_commit = on")
		for err == nil && !over.Load() {
			err = exec(probe, "SELECT pg_logical_emit_message(true, 'probe', '')")
		}
		probed <- err
	}()
	waits(probe)
	committed := make(chan error, 1)
	go func() { committed <- exec(writer, "COMMIT") }()
	waits(writer)
	network.Cut()
	over.Store(true)
	standby("")
	wantCode(t, <-committed, "")
	wantCode(t, <-probed, "")
}

// A commit on two workers is prepared and confirmed, while one of them can't be reached for the
// last step. No grant counts before that step is made.
func unsettledCommit(t *testing.T, c *servers.Citus, db database) {
	admin, writer, issuer := db.admin(t), db.admin(t), db.as(t, "issuer")
	mustExec(t, admin, "ALTER SYSTEM SET citus.recover_2pc_interval = -1")
	mustExec(t, admin, "SELECT pg_reload_conf()")
	db.seal(t, "orders", 44)
	mustExec(t, writer, "SET synchronous_commit = on; SET wirefence.token = 'orders=44'")
	mustExec(t, writer, "BEGIN; SELECT wirefence.check(); INSERT INTO sharded SELECT i, 34 FROM generate_series(1, 100) AS i")
	db.cutBetweenPhases(t, writer, c.Links[0])
	prepared := func() int {
		return look[int](t, database{c.Workers[0], db.name}, "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
	}
	if prepared() == 0 {
		t.Fatal("the worker has no prepared transaction")
	}
	wantSaid(t, "sealing while the worker is away", exec(issuer, "SELECT wirefence.seal('orders', 45, 'worker-b')"), "55P03", "all nodes answer")
	// Without its superuser no grant counts either.
	c.Links[0].Restore()
	mustExec(t, admin, "ALTER FUNCTION wirefence.recover_citus(integer[],boolean) OWNER TO wirefence_owner")
	wantSaid(t, "sealing without the right", exec(issuer, "SELECT wirefence.seal('orders', 45, 'worker-b')"), "55P03", "superuser")
	apply(t, db.admin(t))
	if !value[bool](t, issuer, "SELECT wirefence.seal('orders', 45, 'worker-b')") {
		t.Error("the token was not sealed")
	}
	if rows := value[int](t, admin, "SELECT count(*) FROM sharded"); rows != 100 || prepared() > 0 {
		t.Errorf("behind the grant %d rows are visible, and %d transactions prepared", rows, prepared())
	}
}
