package stack

import (
	"context"
	"fmt"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/migrations"
)

// NeedsCitus skips a test where no PostgreSQL has the extension Citus: no distribution has it,
// so no script can install it.
func NeedsCitus(t testing.TB) {
	t.Helper()
	NeedsMore(t, "PostgreSQL with Citus")
	if servers.CitusVersion() == 0 {
		t.Skip("not run: it needs PostgreSQL with the extension Citus, which isn't installed here")
	}
}

// Citus starts a coordinator and workers, ended with the test.
func Citus(t testing.TB, workers int, settings map[string]string) *servers.Citus {
	t.Helper()
	NeedsCitus(t)
	return Started(servers.StartCitus(t.Context(), workers, settings)).EndWith(t)
}

// BareOnCitus makes a database on all nodes, without the schema. It is seen at the coordinator.
func BareOnCitus(t testing.TB, c *servers.Citus) *DB {
	t.Helper()
	name := fmt.Sprintf("db_%d", serial.Add(1))
	if err := c.CreateDatabase(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		c.DropDatabase(ctx, name)
	})
	return &DB{Postgres: c.Coordinator, Name: name, Admin: Connect(t, c.Coordinator.URL(name))}
}

// OnCitusNodes makes a database on all nodes with the schema, and with what statements make at
// the coordinator. It is returned as each node sees it, the coordinator first.
func OnCitusNodes(t testing.TB, c *servers.Citus, objects ...string) (nodes []*DB) {
	t.Helper()
	db := BareOnCitus(t, c)
	for _, node := range c.Nodes() {
		at := &DB{Postgres: node, Name: db.Name, Admin: Connect(t, node.URL(db.Name))}
		if err := (migrations.Options{Citus: migrations.CitusNodes}).Apply(t.Context(), at.Admin, nil); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, at)
	}
	distribute(t, nodes[0], objects)
	return nodes
}

// distribute runs statements, and one again that has met Citus' own work in another database of the
// nodes ("tuple concurrently updated").
func distribute(t testing.TB, db *DB, statements []string) {
	t.Helper()
	for _, sql := range statements {
		var err error
		if !within(Patience, func() bool {
			_, err = db.Admin.Exec(t.Context(), sql)
			return State(err) != "XX000"
		}) || err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// OnCitus makes a database on all nodes, with the schema at the coordinator, and with what
// statements make there, each in a transaction: Citus allows few together.
func OnCitus(t testing.TB, c *servers.Citus, objects ...string) *DB {
	t.Helper()
	db := BareOnCitus(t, c)
	if err := migrations.Apply(t.Context(), db.Admin, nil); err != nil {
		t.Fatal(err)
	}
	distribute(t, db, objects)
	return db
}
