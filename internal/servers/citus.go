package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Citus is a cluster of PostgreSQL servers with the extension Citus: a coordinator, and
// workers that it knows in each database that CreateDatabase has made. The workers may be
// called by networks that can fail.
type Citus struct {
	Coordinator *Postgres
	Workers     []*Postgres
	Links       []*Link // by which the nodes reach each worker
}

// CitusVersion returns the newest major version of PostgreSQL that has the extension Citus, 0
// if none has.
func CitusVersion() int {
	bins := postgresBinaries()
	for _, major := range slices.Backward(slices.Sorted(maps.Keys(bins))) {
		if _, err := os.Stat(filepath.Join(bins[major], "..", "lib", "citus.so")); err == nil {
			return major
		}
	}
	return 0
}

// StartCitus starts a coordinator and workers, with these settings over the defaults.
func StartCitus(ctx context.Context, workers int, settings map[string]string) (*Citus, error) {
	major := CitusVersion()
	if major == 0 {
		return nil, errors.New("no PostgreSQL with the extension Citus found")
	}
	all := map[string]string{
		"shared_preload_libraries": "citus", "max_prepared_transactions": "100", "max_worker_processes": "32",
		"citus.local_hostname": "127.0.0.1",
	}
	maps.Copy(all, settings)
	c := &Citus{Workers: make([]*Postgres, workers), Links: make([]*Link, workers)}
	return orClosed(c, atOnce(make([]struct{}, workers+1), func(i int, _ struct{}) (err error) {
		server, err := StartPostgres(ctx, PostgresConfig{Major: major, Settings: all})
		switch {
		case err != nil:
		case i == workers:
			c.Coordinator = server
		default:
			c.Workers[i] = server
			c.Links[i], err = StartLink(server.Addr())
		}
		return err
	}))
}

// Nodes are all servers, the coordinator first.
func (c *Citus) Nodes() []*Postgres { return append([]*Postgres{c.Coordinator}, c.Workers...) }

// CreateDatabase makes a database on each node, and has the coordinator know the workers.
// Without the workers there are only the extension and its coordinator.
func (c *Citus) CreateDatabase(ctx context.Context, name string) error {
	for _, node := range c.Nodes() {
		if err := node.Exec(ctx, "postgres", "CREATE DATABASE "+name); err != nil {
			return err
		}
		if err := node.Exec(ctx, name, "CREATE EXTENSION citus"); err != nil {
			return err
		}
	}
	err := c.Coordinator.Exec(ctx, name, fmt.Sprintf("SELECT citus_set_coordinator_host('127.0.0.1', %d)", c.Coordinator.Port))
	for i := range c.Workers {
		err = cmp.Or(err, c.AddNode(ctx, name, i))
	}
	return err
}

// AddNode has the coordinator know a worker in a database. Where several databases do that at the same
// time, Citus now and then loses a connection that it needs.
func (c *Citus) AddNode(ctx context.Context, database string, worker int) (err error) {
	for range 5 {
		if err = c.Coordinator.Exec(ctx, database, fmt.Sprintf("SELECT citus_add_node('127.0.0.1', %d)", c.Links[worker].port())); err == nil {
			return nil
		}
	}
	return err
}

// DropDatabase drops a database on each node that runs.
func (c *Citus) DropDatabase(ctx context.Context, name string) {
	for _, node := range c.Nodes() {
		_ = node.Exec(ctx, "postgres", "DROP DATABASE "+name+" WITH (FORCE)")
	}
}

// Close ends all servers. It may be called twice.
func (c *Citus) Close() {
	closeAll(c.Links)
	closeAll(c.Nodes())
}
