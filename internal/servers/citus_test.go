package servers

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// A table that is distributed at the coordinator is written to by each node, but not to a shard
// whose network is cut.
func TestCitusDistributes(t *testing.T) {
	if CitusVersion() == 0 {
		t.Skip("not run: it needs PostgreSQL with the extension Citus, which isn't installed here")
	}
	c, err := StartCitus(t.Context(), 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.CreateDatabase(t.Context(), "sharded"); err != nil {
		t.Fatal(err)
	}
	if err := onNode(t.Context(), c.Coordinator, "sharded", "CREATE TABLE t (id int); SELECT create_distributed_table('t', 'id')"); err != nil {
		t.Fatal(err)
	}
	for _, node := range c.Nodes() {
		if err := onNode(t.Context(), node, "sharded", "INSERT INTO t SELECT generate_series(1, 100)"); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), c.Coordinator.URL("sharded"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var rows, nodes int
	if err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM t), count(DISTINCT nodeport) FROM pg_dist_shard_placement`).Scan(&rows, &nodes); err != nil || rows != 300 || nodes != 2 {
		t.Fatalf("%d rows on %d nodes, %v", rows, nodes, err)
	}
	c.Links[0].Cut()
	if _, err := conn.Exec(t.Context(), "SELECT count(*) FROM t"); err == nil {
		t.Error("a worker that is cut off answers")
	}
	c.Links[0].Restore()
	if _, err := conn.Exec(t.Context(), "SELECT count(*) FROM t"); err != nil {
		t.Error(err)
	}
}
