package wiretest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// outcome says how a login went: who the session is, or the error.
func outcome(t *testing.T, addr, user, password, database string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("postgres://%s/%s?sslmode=disable", addr, database))
	if err != nil {
		t.Fatal(err)
	}
	cfg.User, cfg.Password = user, password
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) {
			refused.File, refused.Line, refused.Routine = "", 0, ""
			return fmt.Sprintf("%+v", *refused)
		}
		return "no answer: " + err.Error()
	}
	defer conn.Close(ctx)
	result, err := conn.Exec(ctx, "SELECT current_user").ReadAll()
	if err != nil {
		return err.Error()
	}
	return "logged in as " + string(result[0].Rows[0][0])
}

func TestLoginMethods(t *testing.T) {
	stack.OnEach(t, majors, func(t *testing.T, major int) {
		pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: major, HBA: `
host all postgres 127.0.0.1/32 trust
host all clear 127.0.0.1/32 password
host all hashed 127.0.0.1/32 md5
host all scram 127.0.0.1/32 scram-sha-256
host all refused 127.0.0.1/32 reject
`})).EndWith(t)
		stack.Exec(t, pg.URL("postgres"),
			"SET password_encryption = 'md5'", "CREATE ROLE hashed LOGIN PASSWORD 'secret'")
		stack.Exec(t, pg.URL("postgres"),
			"CREATE ROLE clear LOGIN PASSWORD 'secret'", "CREATE ROLE scram LOGIN PASSWORD 'secret'", "CREATE ROLE refused LOGIN",
			"CREATE ROLE one LOGIN CONNECTION LIMIT 0", "CREATE ROLE nologin")
		addr := stack.Proxy(t, pg, proxy.Options{})
		for _, user := range []string{"postgres", "clear", "hashed", "scram", "refused", "one", "nologin", "nobody"} {
			for _, password := range []string{"secret", "wrong", ""} {
				for _, database := range []string{"postgres", "nowhere"} {
					want := outcome(t, pg.Addr(), user, password, database)
					if got := outcome(t, addr, user, password, database); got != want {
						t.Errorf("%s with password %q to %s\n got: %s\nwant: %s", user, password, database, got, want)
					}
					ok := database == "postgres" && (user == "postgres" || password == "secret" && strings.Contains("clear hashed scram", user))
					if ok != strings.HasPrefix(want, "logged in") {
						t.Errorf("the scenario of %s with %q is not what it should be: %s", user, password, want)
					}
				}
			}
		}
	})
}

func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	addr := stackProxy(t, pl, proxy.Options{MaxConnections: 2})
	first, _ := login(t, pl, addr), login(t, pl, addr)
	if got := outcome(t, addr, "postgres", "", pl.Name); !strings.Contains(got, "Code:53300") || !strings.Contains(got, "FATAL") {
		t.Errorf("the third client gets %s", got)
	}
	first.Send(terminate)
	first.End()
	began := time.Now()
	for got := ""; got != "logged in as postgres"; {
		if got = outcome(t, addr, "postgres", "", pl.Name); time.Since(began) > stack.Patience {
			t.Fatalf("after one has left, the next gets %s", got)
		}
	}
}

// deadPort returns a port that refuses connections for as long as the test runs:
// it is taken, and nobody listens.
func deadPort(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return at.(*syscall.SockaddrInet4).Port
}

func TestUpstreamUnreachable(t *testing.T) {
	t.Parallel()
	port := deadPort(t)
	r := start(t, fmt.Sprintf("postgres://127.0.0.1:%d/", port), proxy.Options{ConnectTimeout: 2 * time.Second})
	began := time.Now()
	got := outcome(t, r.Addr, "postgres", "", "postgres")
	if !strings.Contains(got, "FATAL") || !strings.Contains(got, "Code:08006") || time.Since(began) > 10*time.Second {
		t.Errorf("after %s: %s", time.Since(began), got)
	}
}

// The second of two hosts serves where the first is down.
func TestUpstreamOfTwoHosts(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	port := deadPort(t)
	r := start(t, fmt.Sprintf("postgres://127.0.0.1:%d,%s/", port, pl.Addr()), proxy.Options{})
	p := login(t, pl, r.Addr)
	pid, key := p.Key()
	p.Send(q("SELECT pg_sleep(60)"))
	p.sleeps()
	stack.CancelRequest(t, r.Addr, pid, key)
	p.Ready(1)
}

func TestUpstreamThatNeverAnswers(t *testing.T) {
	t.Parallel()
	addr := stack.Scripted(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	r := start(t, "postgres://"+addr+"/", proxy.Options{StartupTimeout: time.Second})
	began := time.Now()
	got := outcome(t, r.Addr, "postgres", "", "postgres")
	if took := time.Since(began); took < time.Second || took > 10*time.Second || !strings.Contains(got, "Code:08006") {
		t.Errorf("after %s: %s", took, got)
	}
}

func TestUpstreamThatCloses(t *testing.T) {
	t.Parallel()
	addr := stack.Scripted(t, func(net.Conn) {})
	r := start(t, "postgres://"+addr+"/", proxy.Options{})
	if got := outcome(t, r.Addr, "postgres", "", "postgres"); strings.HasPrefix(got, "logged in") {
		t.Error(got)
	}
}

// A client that connects and says nothing, or begins a login and stops, is told
// so and closed after StartupTimeout and holds no connection to the server.
func TestLoginTimeout(t *testing.T) {
	t.Parallel()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{HBA: "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"})).EndWith(t)
	stack.Exec(t, pg.URL("postgres"), "CREATE ROLE scram LOGIN PASSWORD 'secret'")
	addr := stack.Proxy(t, pg, proxy.Options{StartupTimeout: time.Second})
	for text, says := range map[string]string{
		"": "", "\x00\x00\x00\x40\x00\x03": "", // as PostgreSQL, which says nothing before it is asked
		string(stack.Startup(v30, "postgres", "user", "scram")): "C57014\x00Mcanceling authentication due to timeout\x00",
	} {
		began := time.Now()
		if got := converse(t, addr, text, false); says == "" && got != "" || !strings.Contains(got, says) {
			t.Errorf("after %q comes %q", text, got)
		}
		if took := time.Since(began); took < 500*time.Millisecond || took > 10*time.Second {
			t.Errorf("after %q the connection was closed after %s", text, took)
		}
	}
	server := stack.DB{Postgres: pg, Name: "postgres", Admin: stack.Connect(t, pg.URL("postgres"))}
	server.Becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE usename = 'scram'")
}

func TestUnixSockets(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	socket := unixSocket(t)
	r := start(t, "postgres:///?host="+pl.SocketDir+"&port="+fmt.Sprint(pl.Port), proxy.Options{Listen: []string{"unix:" + socket, "127.0.0.1:0"}})
	if r.Addr != socket {
		t.Errorf("listens at %s", r.Addr)
	}
	if got := login(t, pl, socket).query("SELECT inet_server_addr() IS NULL"); !strings.Contains(got[1], "t") {
		t.Errorf("the upstream was reached by %q", got)
	}
}
