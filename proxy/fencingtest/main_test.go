// Package fencingtest tests fencing from end to end, with real clients, the proxy, PgBouncer
// before or behind it, and every supported version of PostgreSQL. Its tests are about the
// verdict for each statement, about holds, takeovers and policies, and about attacks. Each
// test has a database of its own; a version's server and its proxy are shared.
package fencingtest

import (
	_ "embed"
	"flag"
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
	Objects: objects + "select wirefence.seal('orders', 34, 'a holder')",
	Settings: map[string]string{
		"max_connections": "400", "max_replication_slots": "20", "max_wal_senders": "20", "autovacuum": "off", "track_commit_timestamp": "on",
		"synchronous_commit": "on", // logical decoding reads what was flushed
	},
	// A test can do something within this hold.
	Options:  proxy.Options{DrainTimeout: time.Second, Hold: 400 * time.Millisecond},
	Parallel: 12,
}

func TestMain(m *testing.M) {
	flag.Parse()
	everyVersion, oldAndNew = stack.Versions(), stack.OldAndNew
	os.Exit(suite.Run(m, started.stop))
}

func TestEveryVersionIsThere(t *testing.T) {
	stack.NeedsMore(t, "PostgreSQL 14 to 18")
	if have, want := servers.PostgresVersions(), []int{14, 15, 16, 17, 18}; !slices.Equal(have, want) {
		t.Fatalf("found PostgreSQL %v, these tests are about %v: run scripts/install-servers --test", have, want)
	}
}
