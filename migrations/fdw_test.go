package migrations_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// far gives a database a foreign table in another one, whose commit waits for the advisory lock
// 4711 there. It returns a connection to the other one, which holds the lock.
func (db database) far(t *testing.T, settings string) (admin func(sql string)) {
	t.Helper()
	other := create(t, db.Postgres, "")
	remote := db.connectTo(t, "postgres", other.name)
	mustExec(t, remote, `CREATE TABLE far (token int);
		CREATE FUNCTION commit_slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER commit_slowly AFTER INSERT ON far DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION commit_slowly()`)
	mustExec(t, remote, "ALTER DATABASE "+other.name+" SET application_name = 'far'; SELECT pg_advisory_lock(4711)")
	if settings != "" {
		mustExec(t, remote, "ALTER DATABASE "+other.name+" SET "+settings)
	}
	db.seal(t, "orders", 34)
	mustExec(t, db.admin(t), fmt.Sprintf(`CREATE EXTENSION postgres_fdw;
		CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '127.0.0.1', port '%d', dbname '%s');
		CREATE USER MAPPING FOR app SERVER far OPTIONS (user 'postgres', password_required 'false');
		CREATE USER MAPPING FOR postgres SERVER far OPTIONS (user 'postgres');
		CREATE FOREIGN TABLE far (token int) SERVER far; GRANT ALL ON far TO app;
		UPDATE wirefence.resource_locks SET preempt_after = '200 ms' WHERE resource_id = 'orders'`, db.Port, other.name))
	return func(sql string) { mustExec(t, remote, sql) }
}

const (
	waitsFar  = "SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE NOT l.granted AND l.locktype = 'advisory' AND a.datname = (SELECT split_part(o, '=', 2) FROM pg_foreign_server, unnest(srvoptions) AS o WHERE o LIKE 'dbname=%'))"
	landedFar = "SELECT EXISTS (SELECT FROM far)"
)

// A foreign server commits first, and the local transaction keeps its lock until then. But a
// takeover that ends the local backend in this wait doesn't end the foreign commit: that lands
// behind the seal. With client_connection_check_interval at the foreign server it doesn't, unless
// it has come too far.
func TestAForeignCommitCanLandBehindTheSeal(t *testing.T) {
	for name, settings := range map[string]string{"": "", "with client_connection_check_interval": "client_connection_check_interval = '50 ms'"} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, db database) {
				remote := db.far(t, settings)
				writer, admin := db.app(t), db.admin(t)
				mustExec(t, writer, "BEGIN; SELECT wirefence.check('orders=34'); INSERT INTO far VALUES (34)")
				committed := make(chan error, 1) // it waits for a socket, not for a lock
				go func() { committed <- exec(writer, "COMMIT") }()
				await(t, admin, "the foreign commit to wait", waitsFar)
				db.seal(t, "orders", 35) // ends the writer
				wantCode(t, <-committed, "57P01")
				if settings != "" {
					await(t, admin, "the foreign transaction to end", "SELECT NOT ("+waitsFar[len("SELECT "):]+")")
				}
				if value[bool](t, admin, landedFar) {
					t.Fatal("the foreign server has committed before the lock was free")
				}
				remote("SELECT pg_advisory_unlock(4711)")
				if settings == "" {
					await(t, admin, "the former holder's foreign commit behind the seal", landedFar)
				} else if value[bool](t, admin, landedFar) {
					t.Error("the foreign commit of a backend that is gone has landed")
				}
			})
		})
	}
}

// A takeover that doesn't end the local backend waits for the foreign commit, as for its own.
func TestASealWaitsForAForeignCommit(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		remote := db.far(t, "")
		writer, admin := db.app(t), db.admin(t)
		mustExec(t, admin, "UPDATE wirefence.resource_locks SET preempt_after = NULL WHERE resource_id = 'orders'")
		mustExec(t, writer, "BEGIN; SELECT wirefence.check('orders=34'); INSERT INTO far VALUES (34)")
		committed := make(chan error, 1)
		go func() { committed <- exec(writer, "COMMIT") }()
		await(t, admin, "the foreign commit to wait", waitsFar)
		sealed := db.start(t, db.as(t, "issuer"), "SELECT wirefence.seal('orders', 35)")
		if last := db.lastToken(t, "orders"); last != 34 {
			t.Errorf("token %d is sealed", last)
		}
		remote("SELECT pg_advisory_unlock(4711)")
		for _, err := range []error{<-committed, <-sealed} {
			if err != nil {
				t.Error(err)
			}
		}
		if !value[bool](t, admin, landedFar) {
			t.Error("the foreign commit is missing")
		}
	})
}

// await queries a server until the result is true.
func await(t *testing.T, conn *pgx.Conn, what, sql string, args ...any) {
	t.Helper()
	stack.Eventually(t, what, func() bool { return value[bool](t, conn, sql, args...) })
}
