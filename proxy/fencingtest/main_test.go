// Package fencingtest tests fencing from end to end: real clients, the proxy,
// and every supported version of PostgreSQL. Each test has a database of its
// own; a version's server and its proxy are shared.
package fencingtest

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// objects are what the tests write to.
//
//go:embed testdata/objects.sql
var objects string

// everyVersion is for tests of what PostgreSQL does, oldAndNew for those of what the
// proxy does.
var everyVersion, oldAndNew []int

var suite = stack.Suite{
	Objects: objects,
	Settings: map[string]string{
		"max_replication_slots": "20", "max_wal_senders": "20", "autovacuum": "off",
		"synchronous_commit": "on", // logical decoding reads what was flushed
	},
	Options: proxy.Options{DrainTimeout: time.Second},
}

func TestMain(m *testing.M) {
	if os.Getenv(holderVariable) != "" {
		os.Exit(hold())
	}
	flag.Parse()
	everyVersion, oldAndNew = stack.Versions(), stack.OldAndNew
	// These tests wait for servers more than they compute.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(suite.Run(m))
}

func newDatabase(t *testing.T, major int) *database {
	t.Helper()
	return &database{DB: suite.Database(t, major), proxy: suite.Proxy(t, major)}
}

// bareDatabase is one without the schema.
func bareDatabase(t *testing.T, major int) *database {
	t.Helper()
	return &database{DB: suite.Bare(t, major), proxy: suite.Proxy(t, major)}
}

// onEach runs a test on some versions, each with a database of its own.
func onEach(t *testing.T, versions []int, test func(t *testing.T, db *database)) {
	t.Helper()
	stack.OnEach(t, versions, func(t *testing.T, major int) { test(t, newDatabase(t, major)) })
}

// onBoth runs a test on some versions, each with a database and a proxy of its own for
// either way of enforcement: in isolated sessions each transaction is checked, busy
// ones hold.
func onBoth(t *testing.T, versions []int, test func(t *testing.T, db *database)) {
	t.Helper()
	t.Parallel()
	for _, major := range stack.Some(t, versions) {
		for _, way := range []string{"isolated", "busy"} {
			t.Run(fmt.Sprintf("%d/%s", major, way), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t, major)
				db.busy = way == "busy"
				test(t, db.counted(t, proxy.Options{Hold: db.period()}))
			})
		}
	}
}

func TestEveryVersionIsThere(t *testing.T) {
	if have, want := servers.PostgresVersions(), []int{14, 15, 16, 17, 18}; !slices.Equal(have, want) {
		t.Fatalf("found PostgreSQL %v, these tests are about %v: run scripts/install-servers --test", have, want)
	}
}
