package securitytest

import (
	"fmt"
	"os"
	"testing"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Every sslmode before servers that take TLS, that want it, and that have none.
func TestTLSOfTheUpstream(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	t.Parallel()
	w := start(t, 15)
	plain := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	stack.Exec(t, plain.URL("postgres"), "CREATE ROLE alice LOGIN")
	stranger := authority.New(t)
	root, foreign := "&sslrootcert="+w.ca.CAFile, "&sslrootcert="+stranger.CAFile
	cert := w.ca.Issue(t, "cert")
	mine := "&sslcert=" + cert.CertFile + "&sslkey=" + cert.KeyFile
	named := "postgres://localhost:" + fmt.Sprint(w.Port) + "/?" // the certificate is for 127.0.0.1
	const tls, none = "true", "false"                            // whether the server sees TLS
	for _, c := range []struct{ upstream, user, want string }{
		{w.upstream("sslmode=disable"), "alice", none},
		{w.upstream("sslmode=allow"), "alice", none},
		{w.upstream("sslmode=allow"), "onlytls", tls},
		{w.upstream("sslmode=prefer"), "alice", tls},
		{w.upstream(""), "alice", tls},
		{w.upstream("sslmode=prefer"), "onlyplain", none},
		{w.upstream("sslmode=require"), "alice", tls},
		{w.upstream("sslmode=require"), "onlyplain", "pg_hba.conf rejects"},
		{w.upstream("sslmode=disable"), "onlytls", "pg_hba.conf rejects"},
		{w.upstream("sslmode=require" + root), "alice", tls},
		{w.upstream("sslmode=require" + foreign), "alice", "unknown authority"},
		{w.upstream("sslmode=verify-ca" + root), "alice", tls},
		{named + "sslmode=verify-ca" + root, "alice", tls},
		{w.upstream("sslmode=verify-ca" + foreign), "alice", "unknown authority"},
		{w.upstream("sslmode=verify-full" + root), "alice", tls},
		{named + "sslmode=verify-full" + root, "alice", "localhost"},
		{w.upstream("sslmode=verify-full&sslrootcert=system"), "alice", "unknown authority"},
		{w.upstream("sslmode=require" + mine), "cert", tls},
		{w.upstream("sslmode=require"), "cert", "connection requires a valid client certificate"},
		{w.upstream("sslmode=require&sslnegotiation=direct"), "alice", "TLS"}, // not before PostgreSQL 17
		{"postgres://" + plain.Addr() + "/?sslmode=prefer", "alice", none},
		{"postgres://" + plain.Addr() + "/?sslmode=require", "alice", "does not support TLS"},
		{"postgres:///?sslmode=require&host=" + w.SocketDir + "&port=" + fmt.Sprint(w.Port), "alice", none},
	} {
		addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: c.upstream})
		params := "sslmode=disable password='open sesame' user=" + c.user
		wants(t, c.upstream+" as "+c.user, psql(t, addr, params, "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()"), c.want)
	}
}

func TestDirectTLSOfTheUpstream(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PostgreSQL 17")
	w := start(t, 17)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=verify-full&sslnegotiation=direct&sslrootcert=" + w.ca.CAFile)})
	got := psql(t, addr, "sslmode=disable"+password, "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
	wants(t, "direct TLS", got, "true")
}

// An abstract Unix socket has a name and no file.
func TestAbstractSocketOfTheUpstream(t *testing.T) {
	t.Parallel()
	name := fmt.Sprintf("@wirefence-test-%d", os.Getpid())
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: map[string]string{"unix_socket_directories": name}})).EndWith(t)
	for _, up := range []string{
		fmt.Sprintf("postgres:///?host=%s&port=%d", name, pg.Port),
		fmt.Sprintf("postgres://%%40%s/?port=%d", name[1:], pg.Port),
	} {
		addr := stack.Proxy(t, pg, proxy.Options{Upstream: up})
		wants(t, up, psql(t, addr, "user=postgres", "SELECT inet_server_addr() IS NULL"), "t")
	}
}
