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
	"sync"

	"github.com/jackc/pgx/v5"
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
	errs := make([]error, workers+1)
	var starts sync.WaitGroup
	for i := range errs {
		starts.Go(func() {
			server, err := StartPostgres(ctx, PostgresConfig{Major: major, Settings: all})
			errs[i] = err
			switch {
			case err != nil:
			case i == workers:
				c.Coordinator = server
			default:
				c.Workers[i] = server
				c.Links[i], errs[i] = StartLink(server.Addr())
			}
		})
	}
	starts.Wait()
	return orClosed(c, errors.Join(errs...))
}

// Nodes are all servers, the coordinator first.
func (c *Citus) Nodes() []*Postgres { return append([]*Postgres{c.Coordinator}, c.Workers...) }

// CreateDatabase makes a database on each node, and has the coordinator know the workers.
// Without the workers there are only the extension and its coordinator.
func (c *Citus) CreateDatabase(ctx context.Context, name string) error {
	for _, node := range c.Nodes() {
		if err := onNode(ctx, node, "postgres", "CREATE DATABASE "+name); err != nil {
			return err
		}
		if err := onNode(ctx, node, name, "CREATE EXTENSION citus"); err != nil {
			return err
		}
	}
	err := onNode(ctx, c.Coordinator, name, fmt.Sprintf("SELECT citus_set_coordinator_host('127.0.0.1', %d)", c.Coordinator.Port))
	for i := range c.Workers {
		err = cmp.Or(err, c.AddNode(ctx, name, i))
	}
	return err
}

// AddNode has the coordinator know a worker in a database. Where several databases do that at the same
// time, Citus now and then loses a connection that it needs.
func (c *Citus) AddNode(ctx context.Context, database string, worker int) (err error) {
	for range 5 {
		if err = onNode(ctx, c.Coordinator, database, fmt.Sprintf("SELECT citus_add_node('127.0.0.1', %d)", c.Links[worker].port())); err == nil {
			return nil
		}
	}
	return err
}

// DropDatabase drops a database on each node that runs.
func (c *Citus) DropDatabase(ctx context.Context, name string) {
	for _, node := range c.Nodes() {
		_ = onNode(ctx, node, "postgres", "DROP DATABASE "+name+" WITH (FORCE)")
	}
}

// Close ends all servers. It may be called twice.
func (c *Citus) Close() {
	for _, link := range c.Links {
		if link != nil {
			link.Close()
		}
	}
	for _, node := range c.Nodes() {
		if node != nil {
			node.Close()
		}
	}
}

func onNode(ctx context.Context, node *Postgres, database, sql string) error {
	conn, err := pgx.Connect(ctx, node.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}
