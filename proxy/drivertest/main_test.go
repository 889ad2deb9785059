// Package drivertest runs real clients through the proxy: a matrix of drivers,
// versions of PostgreSQL, ways of encryption, and fences. Each driver's program
// in testdata does what its users do. It must print the same direct, through the
// proxy without a fence and with the current token, and each of its statements must
// be refused with a stale one.
//
// The tests run a slice of the matrix; `make matrix` runs all of it and writes
// docs/reference/compatibility.md.
package drivertest

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

//go:embed testdata/fixture.sql
var fixture string

// The role and the password of all drivers.
const (
	role     = "app"
	password = "a password"
)

// The role's rights are an application's; postgres is for the tests alone.
const hba = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

// server is a PostgreSQL of one version, with a proxy for each security.
type server struct {
	*servers.Postgres
	proxies map[security]string // host:port
	root    string              // the file of the authority of all certificates
}

// startAll starts a server of each version, ended with the test. What they hold in
// their template1 is what drivers get a copy of.
func startAll(t *testing.T, certificates *authority.Authority) map[int]*server {
	t.Helper()
	pair := certificates.Issue(t, "localhost", "127.0.0.1")
	started := make([]*server, len(versions))
	failed := make(chan error, len(versions))
	for i, major := range versions {
		go func() {
			pg, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{
				Major: major, HBA: hba, CertFile: pair.CertFile, KeyFile: pair.KeyFile,
			})
			if err != nil {
				failed <- err
				return
			}
			started[i] = &server{pg, map[security]string{}, certificates.CAFile}
			failed <- furnish(t.Context(), pg)
		}()
	}
	var err error
	for range versions {
		err = errors.Join(err, <-failed)
	}
	all := map[int]*server{}
	for i, s := range started {
		if s != nil {
			t.Cleanup(s.Close)
			all[versions[i]] = s
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		for _, sec := range securities {
			s.proxies[sec] = stack.Proxy(t, s.Postgres, sec.options(t, s, certificates))
		}
	}
	return all
}

// furnish puts the schema and the fixture into template1.
func furnish(ctx context.Context, pg *servers.Postgres) error {
	conn, err := pgx.Connect(ctx, pg.URL("template1"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := migrations.Apply(ctx, conn, func(string) {}); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE ROLE "+role+" LOGIN PASSWORD '"+password+"';"+fixture, pgx.QueryExecModeSimpleProtocol)
	return err
}

// rig is a driver's own database on a server.
type rig struct {
	*server
	db    string
	admin *pgx.Conn
}

func (s *server) rig(t *testing.T, db string) *rig {
	t.Helper()
	stack.Exec(t, s.URL("postgres"), "CREATE DATABASE "+db+" OWNER "+role)
	return &rig{s, db, stack.Connect(t, s.URL(db))}
}

func (r *rig) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := r.admin.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// rows returns how many rows a query of the harness's own yields.
func (r *rig) rows(t *testing.T, table string) (n int) {
	t.Helper()
	if err := r.admin.QueryRow(context.Background(), "SELECT count(*) FROM public."+pgx.Identifier{table}.Sanitize()).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// asleep waits until a backend runs pg_sleep.
func (w way) asleep(t *testing.T) {
	t.Helper()
	stack.Eventually(t, "a backend sleeps", func() bool {
		var found bool
		err := w.rig.admin.QueryRow(context.Background(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database())").Scan(&found)
		if err != nil {
			t.Fatal(err)
		}
		return found
	})
}

// version is the server's, in full.
func (s *server) version(t *testing.T) string {
	t.Helper()
	conn := stack.Connect(t, s.URL("postgres"))
	var text string
	if err := conn.QueryRow(t.Context(), "SHOW server_version").Scan(&text); err != nil {
		t.Fatal(err)
	}
	number, _, _ := strings.Cut(text, " ")
	return number
}
