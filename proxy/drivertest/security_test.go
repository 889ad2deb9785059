package drivertest

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// security is how a driver's connection is protected. Logins are by SCRAM always.
type security string

const (
	plain   security = "plain"
	tls     security = "tls"     // to the proxy, which passes the login through
	binding security = "binding" // on both sides, with channel binding
)

// securities are the ways that the matrix knows.
var securities = []security{plain, tls, binding}

func (s security) title() string {
	return map[security]string{plain: "plain", tls: "TLS", binding: "TLS, channel binding"}[s]
}

// options are those of a proxy before a server. Where clients are to use TLS, it
// refuses those that don't; where they are to bind their channel, it logs them in
// by the secrets that the server has, and the server's certificate isn't its own.
func (s security) options(t *testing.T, pg *server, a *authority.Authority) proxy.Options {
	t.Helper()
	o := proxy.Options{Upstream: "postgres://" + pg.Addr() + "/?sslmode=disable"}
	if s == plain {
		return o
	}
	pair := a.Issue(t, "localhost", "127.0.0.1")
	o.TLS = proxy.TLS{CertFile: pair.CertFile, KeyFile: pair.KeyFile, Mode: proxy.TLSRequire}
	if s == binding {
		o.Upstream = "postgres://" + pg.Addr() + "/?sslmode=verify-full&sslrootcert=" + url.QueryEscape(a.CAFile)
		o.AuthFile = userFile(t, pg)
	}
	return o
}

// userFile writes what a server knows of the drivers' role.
func userFile(t *testing.T, pg *server) string {
	t.Helper()
	conn := stack.Connect(t, pg.URL("postgres"))
	var line string
	const stored = `SELECT format('"%s" "%s"', rolname, rolpassword) FROM pg_authid WHERE rolname = $1`
	if err := conn.QueryRow(t.Context(), stored, pgx.QueryExecModeSimpleProtocol, role).Scan(&line); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users.txt")
	if err := os.WriteFile(file, fmt.Appendln(nil, line), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// libpq is what libpq reads from the environment.
func (s security) libpq(root string) []string {
	switch s {
	case tls:
		return []string{"PGSSLMODE=verify-full", "PGSSLROOTCERT=" + root}
	case binding:
		return []string{"PGSSLMODE=verify-full", "PGSSLROOTCERT=" + root, "PGCHANNELBINDING=require"}
	default:
		return []string{"PGSSLMODE=disable"}
	}
}

// dsn is the connection string of a driver in Go.
func (w way) dsn(bound bool) string {
	query := url.Values{"sslmode": {"disable"}}
	if w.sec != plain {
		query = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {w.rig.root}}
	}
	if w.sec == binding && bound {
		query.Set("channel_binding", "require")
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(role, password), Host: "127.0.0.1:" + w.port,
		Path: "/" + w.rig.db, RawQuery: query.Encode(),
	}
	return u.String()
}
