package migrations_test

import (
	"fmt"
	"testing"
)

// protect warns of subscriptions into the table, its partitions and heirs, and of no others. The
// publisher is another database of the same server.
func TestProtectWarnsOfReplication(t *testing.T) {
	onEachAlone(t, func(t *testing.T, db database) {
		const tables = `CREATE TABLE other (id int); CREATE TABLE alone (id int); CREATE TABLE tree (id int) PARTITION BY RANGE (id);
			CREATE TABLE leaf PARTITION OF tree FOR VALUES FROM (0) TO (9); CREATE TABLE inherited () INHERITS (alone)`
		publisher := create(t, db.Postgres, "")
		source := db.connectTo(t, "postgres", publisher.name)
		mustExec(t, source, tables+"; CREATE PUBLICATION p FOR TABLE leaf, inherited")
		mustExec(t, source, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", db.name)

		conn, notices := db.noticing(t)
		mustExec(t, db.admin(t), "GRANT CREATE ON SCHEMA public TO PUBLIC")
		mustExec(t, conn, tables)
		mustExec(t, db.admin(t), fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION 'host=127.0.0.1 port=%d user=postgres dbname=%s' PUBLICATION p WITH (create_slot = false)",
			db.name, db.Port, publisher.name))
		t.Cleanup(func() { mustExec(t, db.admin(t), "DROP SUBSCRIPTION "+db.name) })
		for table, warned := range map[string]bool{"tree": true, "alone": true, "other": false} {
			*notices = nil
			mustExec(t, conn, "SELECT wirefence.protect('"+table+"', 'orders')")
			want := map[bool]string{true: "WARNING: guards don't check rows that are replicated into public." + table + ": subscription " + db.name}[warned]
			got := ""
			for _, n := range *notices {
				got += n.Severity + ": " + n.Message
			}
			if got != want {
				t.Errorf("%s: %q, not %q", table, got, want)
			}
		}
		mustExec(t, source, "INSERT INTO leaf VALUES (1)") // without a token, there and here
		await(t, conn, "the row in the guarded table", "SELECT EXISTS (SELECT FROM leaf)")
	})
}
