// Package securitytest tests how connections are secured on both sides of the
// proxy, and which server they lead to, with real servers and clients.
package securitytest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// world is a server with TLS, whose users authenticate by SCRAM, and what is
// needed to set a proxy before it.
type world struct {
	*servers.Postgres
	ca *authority.Authority
}

const hba = `
local all all trust
host all postgres 127.0.0.1/32 trust
hostssl all onlytls 127.0.0.1/32 scram-sha-256
hostnossl all onlyplain 127.0.0.1/32 scram-sha-256
hostssl all onlyplain 127.0.0.1/32 reject
hostnossl all onlytls 127.0.0.1/32 reject
hostssl all cert 127.0.0.1/32 cert
host all hashed 127.0.0.1/32 md5
host all trusted 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
`

// start starts a server with TLS of a major version.
func start(t *testing.T, major int) *world {
	t.Helper()
	w := &world{ca: authority.New(t)}
	pair := w.ca.Issue(t, "db.test", "127.0.0.1")
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{
		Major: stack.Version(major), HBA: hba, CertFile: pair.CertFile, KeyFile: pair.KeyFile, CAFile: w.ca.CAFile,
	})).EndWith(t)
	w.Postgres = pg
	stack.Exec(t, w.admin(),
		"CREATE ROLE alice LOGIN PASSWORD 'open sesame'", "CREATE ROLE onlytls LOGIN PASSWORD 'open sesame'",
		"CREATE ROLE onlyplain LOGIN PASSWORD 'open sesame'", "CREATE ROLE cert LOGIN", "CREATE ROLE trusted LOGIN",
		"CREATE ROLE nopassword LOGIN")
	stack.Exec(t, w.admin(), "SET password_encryption = 'md5'", "CREATE ROLE hashed LOGIN PASSWORD 'open sesame'")
	return w
}

func (w *world) admin() string { return w.URL("postgres") }

// upstream is the URL of the server for a proxy.
func (w *world) upstream(params string) string { return "postgres://" + w.Addr() + "/?" + params }

// certificate is one for the proxy, of the server's authority.
func (w *world) certificate(t *testing.T) proxy.TLS {
	pair := w.ca.Issue(t, "proxy.test", "127.0.0.1")
	return proxy.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile}
}

// userFile writes a file of users by what the server stores, and more lines.
func (w *world) userFile(t *testing.T, users []string, lines ...string) string {
	t.Helper()
	conn := stack.Connect(t, w.admin())
	for _, user := range users {
		var stored string
		if err := conn.QueryRow(t.Context(), "SELECT rolpassword FROM pg_authid WHERE rolname = $1", user).Scan(&stored); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%q %q", user, stored))
	}
	file := filepath.Join(t.TempDir(), "users.txt")
	write(t, file, strings.Join(lines, "\n")+"\n")
	return file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// outcome is how a login by pgx went: who the session is, or the error, with its
// detail and hint.
func outcome(t *testing.T, addr, params string) string {
	t.Helper()
	conn, err := connect(t, addr, params)
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		return strings.Join([]string{err.Error(), refused.Detail, refused.Hint}, "\n")
	}
	if err != nil {
		return err.Error()
	}
	defer conn.Close(t.Context())
	result, err := conn.Exec(t.Context(), "SELECT current_user").ReadAll()
	if err != nil {
		return err.Error()
	}
	return "logged in as " + string(result[0].Rows[0][0])
}

// connect logs in by pgx. params are those of a connection string.
func connect(t *testing.T, addr, params string) (*pgconn.PgConn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=%s port=%s dbname=postgres %s", host, port, params))
	if err != nil {
		t.Fatal(err)
	}
	return pgconn.ConnectConfig(ctx, cfg)
}

// psql runs one query by psql, so by libpq, and returns its output or what it
// complains of.
func psql(t *testing.T, addr, params, sql string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "psql", "-XAtqw", "-c", sql, fmt.Sprintf("host=%s port=%s dbname=postgres %s", host, port, params))
	cmd.Env = append(os.Environ(), "PGPASSFILE=/dev/null", "HOME=/nonexistent")
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil && text == "" {
		return err.Error()
	}
	return text
}

// wants fails the test unless the text holds all parts.
func wants(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("%s: %q, want %q", what, got, part)
		}
	}
}

// serve starts a proxy that the test can reload, and returns its address.
func serve(t *testing.T, o proxy.Options) (*proxy.Server, string) {
	t.Helper()
	r := stack.Serve(t, o)
	return r.Server, r.Addr
}
