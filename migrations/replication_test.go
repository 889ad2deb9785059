package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// await queries a server until the result is true.
func await(t *testing.T, conn *pgx.Conn, what, sql string, args ...any) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !value[bool](t, conn, sql, args...); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		mustExec(t, conn, "SELECT pg_sleep(0.02)")
	}
}

// published lists the replicated tables: with one resource and no partitions, with
// partitions, and with a resource for each row.
const published = `
	CREATE TABLE public.docs (id int PRIMARY KEY, tenant text NOT NULL);
	SELECT wirefence.protect('public.docs', 'doc:{tenant}');
	ALTER TABLE parts_low REPLICA IDENTITY FULL; ALTER TABLE parts_high REPLICA IDENTITY FULL`

// replicated is a subscription of one server to another.
type replicated struct {
	publisher, subscriber database
	writer                *pgx.Conn // at the publisher, with current tokens
	admin                 *pgx.Conn // at the subscriber
}

// replicate subscribes to a database on the next of the servers, so that every version is
// tested on both sides.
func replicate(t *testing.T, db database) replicated {
	t.Helper()
	stack.NeedsMore(t, "two versions of PostgreSQL")
	versions := stack.Versions()
	next := suite.Server(t, versions[(slices.Index(versions, db.Major)+1)%len(versions)])
	r := replicated{publisher: withSchema(t, next), subscriber: db}
	for _, side := range []database{r.publisher, r.subscriber} {
		mustExec(t, guarded(t, side), published)
		mustExec(t, side.admin(t), "GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC")
	}
	r.writer, r.admin = r.publisher.app(t), r.subscriber.admin(t)
	mustExec(t, r.writer, "SET wirefence.token = 'orders=34,lines=34,doc:a=1'; INSERT INTO docs VALUES (1, 'a')")
	mustExec(t, r.publisher.admin(t), "CREATE PUBLICATION p FOR TABLE orders, parts, docs")
	mustExec(t, r.admin, "SET session_replication_role = replica; TRUNCATE orders, lines, parts; RESET session_replication_role")
	// A worker that failed is started again at once.
	mustExec(t, r.admin, "ALTER SYSTEM SET wal_retrieve_retry_interval = '50 ms'")
	mustExec(t, r.admin, "SELECT pg_reload_conf()")
	mustExec(t, r.admin, fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s' PUBLICATION p",
		db.name, next.Port, r.publisher.name))
	t.Cleanup(func() { mustExec(t, db.connectTo(t, "postgres", db.name), "DROP SUBSCRIPTION "+db.name) })
	return r
}

// write writes at the publisher; arrives waits for a condition at the subscriber.
func (r replicated) write(t *testing.T, sql, arrives string) {
	t.Helper()
	mustExec(t, r.writer, sql)
	await(t, r.admin, sql, arrives)
}

// An applier runs as a replica, for which ordinary triggers do not fire: rows that were
// checked where they were written arrive, and other writers of the copy are checked.
func TestAnApplierIsNotGuarded(t *testing.T) {
	onEachAlone(t, func(t *testing.T, db database) {
		r := replicate(t, db)
		await(t, r.admin, "the first copy", "SELECT (SELECT count(*) FROM orders) = 2 AND (SELECT count(*) FROM parts) = 2 AND (SELECT count(*) FROM docs) = 1")
		await(t, r.admin, "the first copy", "SELECT count(*) FILTER (WHERE srsubstate <> 'r') = 0 FROM pg_subscription_rel")
		r.write(t, "INSERT INTO orders VALUES (60, 'r')", "SELECT EXISTS (SELECT FROM orders WHERE id = 60)")
		r.write(t, "UPDATE parts SET item = 'r'", "SELECT count(*) = 2 FROM parts WHERE item = 'r'")
		r.write(t, "INSERT INTO docs VALUES (2, 'a')", "SELECT count(*) = 2 FROM docs")
		r.write(t, "DELETE FROM orders WHERE id = 60", "SELECT NOT EXISTS (SELECT FROM orders WHERE id = 60)")
		r.write(t, "TRUNCATE parts", "SELECT count(*) = 0 FROM parts")

		app := db.app(t)
		for _, sql := range []string{"UPDATE orders SET item = 'x'", "INSERT INTO parts VALUES (1)", "TRUNCATE parts", "DELETE FROM orders"} {
			wantCode(t, exec(app, sql), "WF002")
			wantCode(t, exec(app, "SET wirefence.token = 'orders=33'; "+sql), "WF001")
		}
		wantCode(t, exec(app, "DELETE FROM docs"), "WF002")
	})
}

// An operator can have an applier checked by triggers that fire always, which is no
// fault. The applier has no token, and stops at the first row; as a member of
// wirefence_bypass it continues, and is recorded.
func TestAnApplierWhoseTriggersFireAlways(t *testing.T) {
	onEachAlone(t, func(t *testing.T, db database) {
		r := replicate(t, db)
		await(t, r.admin, "the first copy", "SELECT count(*) FILTER (WHERE srsubstate <> 'r') = 0 FROM pg_subscription_rel")
		before := faultsOf(t, db)
		app := db.app(t)
		mustExec(t, app, "ALTER TABLE docs ENABLE ALWAYS TRIGGER wirefence_guard_insert; ALTER TABLE orders ENABLE ALWAYS TRIGGER wirefence_guard")
		wantFaults(t, db, before)
		// Triggers for statements have no statement to fire for.
		r.write(t, "INSERT INTO orders VALUES (60, 'r')", "SELECT EXISTS (SELECT FROM orders WHERE id = 60)")

		tenant := "stopped-" + db.name
		mustExec(t, r.writer, "SELECT set_config('wirefence.token', 'orders=34,doc:' || $1 || '=1', false)", tenant)
		mustExec(t, r.writer, "INSERT INTO docs VALUES (3, $1)", tenant)
		refusal := `a fencing token is required for resource "doc:` + tenant + `"`
		for deadline := time.Now().Add(60 * time.Second); !strings.Contains(db.Log(), refusal); {
			if time.Now().After(deadline) {
				t.Fatal("the applier was not refused")
			}
			mustExec(t, r.admin, "SELECT pg_sleep(0.02)")
		}
		mustExec(t, r.admin, fmt.Sprintf("CREATE ROLE %[1]s_applier SUPERUSER LOGIN IN ROLE wirefence_bypass; ALTER SUBSCRIPTION %[1]s OWNER TO %[1]s_applier", db.name))
		await(t, r.admin, "the row", "SELECT EXISTS (SELECT FROM docs WHERE id = 3)")
		if got := column[string](t, r.admin, "SELECT login || ' ' || resource FROM wirefence.bypasses"); !slices.Equal(got, []string{db.name + "_applier doc:" + tenant}) {
			t.Errorf("recorded %q", got)
		}
		// To protect again makes ordinary triggers.
		mustExec(t, app, "SELECT wirefence.protect('docs', 'doc:{tenant}')")
		mustExec(t, r.admin, fmt.Sprintf("ALTER SUBSCRIPTION %s OWNER TO postgres", db.name))
		r.write(t, "INSERT INTO docs VALUES (4, '"+tenant+"')", "SELECT EXISTS (SELECT FROM docs WHERE id = 4)")
	})
}
