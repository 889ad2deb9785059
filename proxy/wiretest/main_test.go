// Package wiretest runs scenarios of the wire protocol on real servers, direct
// and through the proxy: the same bytes in, the same answers out, in the same
// order.
package wiretest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// majors are the versions that every scenario runs on: up to 17 a procedure may
// commit in a pipeline, and from 18 on there is protocol 3.2. With -every they
// are all.
var majors = []int{15, 18}

var every = flag.Bool("every", false, "run every scenario on every version of PostgreSQL")

// template is a migrated database that tests copy theirs from.
const template = "wf_template"

// fixture is what every database holds besides the schema wirefence: the token
// of orders is 34.
const fixture = `
CREATE TABLE t(id int PRIMARY KEY, v text);
CREATE SEQUENCE numbers;
CREATE FUNCTION write_one(int) RETURNS int LANGUAGE sql AS 'INSERT INTO public.t VALUES ($1, ''written'') RETURNING id';
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1';
CREATE FUNCTION say(text) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''%'', $1; END';
CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.t VALUES (101, 'before');
  COMMIT;
  INSERT INTO public.t VALUES (102, 'behind');
END $$;
SELECT wirefence.seal('orders', 34, 'holder');`

var (
	mu       sync.Mutex
	clusters = map[int]*servers.Postgres{}
	serial   atomic.Int64
)

func TestMain(m *testing.M) {
	defaults := map[string]string{
		"test.parallel":    "4",    // these tests wait for servers more than they compute
		"rapid.nofailfile": "true", // a failure prints all that was sent; a script keeps it
		// The random tests walk the same way each time: a change is judged by what
		// it does, not by what it meets. For new ways:
		// go test ./proxy/wiretest -run Random -rapid.seed=0 -rapid.checks=2000
		"rapid.seed":   "1",
		"rapid.checks": "300",
	}
	flag.Parse()
	if *every {
		majors = servers.PostgresVersions()
	}
	flag.Visit(func(f *flag.Flag) { delete(defaults, f.Name) })
	for name, value := range defaults {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	status := m.Run()
	for _, pg := range clusters {
		pg.Close()
	}
	os.Exit(status)
}

// cluster starts the server of a version that tests share.
func cluster(t testing.TB, major int) *servers.Postgres {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if pg := clusters[major]; pg != nil {
		return pg
	}
	pg, err := startMigrated(servers.PostgresConfig{Major: major})
	if err != nil {
		t.Fatal(err)
	}
	clusters[major] = pg
	return pg
}

func startMigrated(cfg servers.PostgresConfig) (*servers.Postgres, error) {
	ctx := context.Background()
	pg, err := servers.StartPostgres(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := stack.Template(ctx, pg, template, fixture); err != nil {
		pg.Close()
		return nil, err
	}
	return pg, nil
}

// place is a database of a test's own, with a superuser's connection to it that
// goes round the proxy.
type place struct {
	*servers.Postgres
	db    string
	admin *pgx.Conn
}

// at makes a database on the shared server of a version.
func at(t testing.TB, major int) *place {
	t.Helper()
	return on(t, cluster(t, major))
}

// on makes a database on a server.
func on(t testing.TB, pg *servers.Postgres) *place {
	t.Helper()
	db := fmt.Sprintf("wf_%d", serial.Add(1))
	mu.Lock() // a template can't be copied twice at once
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE "+db+" TEMPLATE "+template)
	mu.Unlock()
	return &place{pg, db, stack.Connect(t, pg.URL(db))}
}

// exec runs statements as the superuser, round the proxy.
func (pl *place) exec(t tb, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := pl.admin.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// text returns the one value of a query.
func (pl *place) text(t tb, sql string, args ...any) string {
	t.Helper()
	var value string
	if err := pl.admin.QueryRow(context.Background(), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// rows returns what the table t holds.
func (pl *place) rows(t tb) string {
	t.Helper()
	return pl.text(t, `SELECT coalesce(string_agg(id || ':' || left(v, 40), ' ' ORDER BY id), '') FROM public.t`)
}

// becomes waits until a query's one value is what is wanted. The server waits
// between the looks.
func (pl *place) becomes(t tb, want, sql string, args ...any) {
	t.Helper()
	began := time.Now()
	for {
		got := pl.text(t, sql, args...)
		if got == want {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("%s is %q after %s, want %q", sql, got, patience, want)
		}
		pl.exec(t, "SELECT pg_sleep(0.005)")
	}
}
