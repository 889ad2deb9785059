// Package fencingtest tests fencing from end to end: real clients, the proxy,
// and every supported version of PostgreSQL. Each test has a database of its
// own; a version's server and its proxy are shared.
package fencingtest

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// objects are what the tests write to.
//
//go:embed testdata/objects.sql
var objects string

const template = "wf_template"

// everyVersion is what must be there for these tests to mean something.
var everyVersion = []int{14, 15, 16, 17, 18}

// patience bounds whatever a test waits for.
const patience = 30 * time.Second

// cluster is a server of one version with a proxy before it.
type cluster struct {
	*servers.Postgres
	proxy string
	stop  func()
}

// clusters start when a test first asks for them.
var clusters = func() map[int]func() (*cluster, error) {
	all := map[int]func() (*cluster, error){}
	for _, major := range everyVersion {
		all[major] = sync.OnceValues(func() (*cluster, error) {
			c, err := startCluster(major)
			if err == nil {
				started.Store(major, c)
			}
			return c, err
		})
	}
	return all
}()

var started sync.Map

func TestMain(m *testing.M) {
	if os.Getenv(holderVariable) != "" {
		os.Exit(hold())
	}
	// These tests wait for servers more than they compute.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	status := m.Run()
	started.Range(func(_, c any) bool {
		c.(*cluster).stop()
		return true
	})
	os.Exit(status)
}

func startCluster(major int) (*cluster, error) {
	ctx := context.Background()
	pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Major: major, Settings: map[string]string{
		"max_replication_slots": "20", "max_wal_senders": "20", "autovacuum": "off",
		"synchronous_commit": "on", // logical decoding reads what was flushed
	}})
	if err != nil {
		return nil, err
	}
	c := &cluster{Postgres: pg, stop: pg.Close}
	if err := stack.Template(ctx, pg, template, objects); err != nil {
		pg.Close()
		return nil, fmt.Errorf("PostgreSQL %d: %w", major, err)
	}
	addr, stopProxy, err := startProxy(pg.Addr(), proxy.Options{})
	if err != nil {
		pg.Close()
		return nil, err
	}
	c.proxy = addr
	c.stop = func() {
		stopProxy()
		pg.Close()
	}
	return c, nil
}

// startProxy starts a proxy before a server. stop waits for its end.
func startProxy(upstream string, o proxy.Options) (addr string, stop func(), err error) {
	o.Upstream = "postgres://" + upstream + "/"
	o.DrainTimeout = time.Second
	r, err := stack.Start(o)
	if err != nil {
		return "", nil, err
	}
	return r.Addr, func() { _ = r.Stop() }, nil
}

func clusterOf(t *testing.T, major int) *cluster {
	t.Helper()
	c, err := clusters[major]()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// database is a database of one test's own.
type database struct {
	*cluster
	name  string
	proxy string
	admin *pgx.Conn // of the superuser, past the proxy
}

var databases atomic.Int64

// newDatabase copies the template, or with from "template0" makes one without
// the schema.
func newDatabase(t *testing.T, major int, from string) *database {
	t.Helper()
	c := clusterOf(t, major)
	db := &database{cluster: c, name: fmt.Sprintf("db_%d", databases.Add(1)), proxy: c.proxy}
	maintenance := db.direct(t, "postgres")
	mustExec(t, maintenance, "CREATE DATABASE "+db.name+" TEMPLATE "+from)
	db.admin = db.direct(t, db.name)
	return db
}

// onEach runs a test on some versions, each with a database of its own.
func onEach(t *testing.T, versions []int, test func(t *testing.T, db *database)) {
	t.Helper()
	t.Parallel()
	for _, major := range versions {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, major, template))
		})
	}
}

// oldAndNew are the versions for tests of what doesn't depend on the version:
// one below and one above every change of the protocol's behaviour.
var oldAndNew = []int{15, 18}

func TestEveryVersionIsThere(t *testing.T) {
	if have := servers.PostgresVersions(); !slices.Equal(have, everyVersion) {
		t.Fatalf("found PostgreSQL %v, these tests are about %v: run scripts/install-servers --all", have, everyVersion)
	}
}
