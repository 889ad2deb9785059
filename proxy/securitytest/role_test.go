package securitytest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

const rolesHBA = `
local all all trust
host replication postgres 127.0.0.1/32 trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
`

// couple starts a primary and a hot standby of it.
func couple(t *testing.T) (primary, standby *servers.Postgres) {
	t.Helper()
	primary = stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{HBA: rolesHBA})).EndWith(t)
	stack.Exec(t, primary.URL("postgres"), "CREATE ROLE alice LOGIN PASSWORD 'open sesame'", "CREATE ROLE reader LOGIN PASSWORD 'open sesame'",
		"ALTER ROLE reader SET default_transaction_read_only = on")
	standby = stack.Started(primary.StartStandby(t.Context())).EndWith(t)
	return primary, standby
}

func both(a, b *servers.Postgres, params string) string {
	return fmt.Sprintf("postgres://%s,%s/?%s", a.Addr(), b.Addr(), params)
}

const whichPort = "SELECT setting FROM pg_settings WHERE name = 'port'"

// Sessions find the server of the role that they want, however they
// authenticate.
func TestTargetSessionAttrs(t *testing.T) {
	stack.NeedsMore(t, "4 s of CPU")
	t.Parallel()
	primary, standby := couple(t)
	file := (&world{Postgres: primary}).userFile(t, []string{"alice"})
	p, s := fmt.Sprint(primary.Port), fmt.Sprint(standby.Port)
	for _, c := range []struct{ target, order, want string }{
		{"any", "ps", p}, {"any", "sp", s},
		{"read-write", "sp", p}, {"read-only", "ps", s}, {"primary", "sp", p}, {"standby", "ps", s},
		{"prefer-standby", "ps", s}, {"prefer-standby", "pp", p},
		{"standby", "pp", "target_session_attrs is standby"}, {"read-write", "ss", "the server is standby"},
	} {
		hosts := map[byte]*servers.Postgres{'p': primary, 's': standby}
		up := both(hosts[c.order[0]], hosts[c.order[1]], "target_session_attrs="+c.target)
		for _, way := range []struct {
			name, params string
			o            proxy.Options
		}{
			{"trusted", "user=postgres", proxy.Options{}},
			{"by a known secret", "user=alice password='open sesame'", proxy.Options{AuthFile: file}},
			{"with a way to ask", "user=alice password='open sesame'", proxy.Options{DatabaseURL: primary.URL("postgres")}},
		} {
			way.o.Upstream = up
			addr := stack.Proxy(t, primary, way.o)
			for range 2 { // what was learnt doesn't mislead
				wants(t, fmt.Sprintf("%s, %s, %s", c.target, c.order, way.name), psql(t, addr, way.params, whichPort), c.want)
			}
		}
	}
	// Who authenticates by a password at the server, of whose role nothing is
	// known, is told to come again, and finds the right one then.
	addr := stack.Proxy(t, primary, proxy.Options{Upstream: both(standby, primary, "target_session_attrs=read-write")})
	alice := "user=alice password='open sesame'"
	got := psql(t, addr, alice, whichPort)
	wants(t, "first", got, "the server is standby", "Connect again")
	for end := time.Now().Add(stack.Patience); strings.Contains(got, "Connect again") && time.Now().Before(end); {
		got = psql(t, addr, alice, whichPort)
	}
	wants(t, "again", got, p)
}

// A role whose sessions begin read-only is not what read-write means.
func TestReadOnlySessions(t *testing.T) {
	t.Parallel()
	primary, standby := couple(t)
	file := (&world{Postgres: primary}).userFile(t, []string{"reader"})
	for target, want := range map[string]string{
		"read-write": "target_session_attrs is read-write", "read-only": fmt.Sprint(primary.Port), "primary": fmt.Sprint(primary.Port),
	} {
		addr := stack.Proxy(t, primary, proxy.Options{Upstream: both(primary, standby, "target_session_attrs="+target), AuthFile: file})
		wants(t, target, psql(t, addr, "user=reader password='open sesame'", whichPort), want)
	}
}

// Whether sessions begin read-only is their own matter: what one user's say of a
// server counts for no other user.
func TestReadOnlySessionsOfOthers(t *testing.T) {
	t.Parallel()
	primary, _ := couple(t)
	file := (&world{Postgres: primary}).userFile(t, []string{"alice", "reader"})
	p := fmt.Sprint(primary.Port)
	for name, o := range map[string]proxy.Options{"found out": {}, "asked": {DatabaseURL: primary.URL("postgres")}} {
		for target, want := range map[string]string{"read-write": p, "read-only": "target_session_attrs is read-only"} {
			o.AuthFile, o.Upstream = file, fmt.Sprintf("postgres://%s/?target_session_attrs=%s", primary.Addr(), target)
			addr := stack.Proxy(t, primary, o)
			for range 2 {
				psql(t, addr, "user=reader password='open sesame'", whichPort)
				got := psql(t, addr, "user=alice password='open sesame'", whichPort)
				if wants(t, name+", "+target, got, want); want == p && got != p { // errors name the port, too
					t.Errorf("%s, %s: %s", name, target, got)
				}
			}
		}
	}
}

// The proxy's own role asks by the encryption that the server wants of it, and
// what it is told when it can't is not for clients.
func TestRolesAreAskedForByEveryRoute(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	alice := "user=alice password='open sesame'"
	for _, c := range []struct{ mode, asker, want string }{
		{"allow", "onlytls", fmt.Sprint(w.Port)}, {"prefer", "onlyplain", fmt.Sprint(w.Port)},
		{"require", "onlyplain", "see the proxy's log"},
	} {
		var log stack.Log
		addr := stack.Proxy(t, w.Postgres, proxy.Options{
			Upstream:    w.upstream("target_session_attrs=read-write&sslmode=" + c.mode),
			DatabaseURL: fmt.Sprintf("postgres://%s:open%%20sesame@%s/postgres", c.asker, w.Addr()), Logger: log.Logger(),
		})
		got := psql(t, addr, alice, whichPort)
		wants(t, c.mode, got, c.want)
		if strings.Contains(got, c.asker) {
			t.Errorf("%s: the client is told of the proxy's role: %s", c.mode, got)
		}
		if c.mode == "require" {
			wants(t, "the log", log.String(), c.asker)
		}
	}
}

// A server that shuts down is passed over for the next. One that refuses for
// another reason is not: that is the client's answer.
func TestServersThatRefuse(t *testing.T) {
	t.Parallel()
	start := func(settings map[string]string) *servers.Postgres {
		pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Settings: settings})).EndWith(t)
		stack.Exec(t, pg.URL("postgres"), "CREATE ROLE alice LOGIN")
		return pg
	}
	next := start(nil)
	full := start(map[string]string{"max_connections": "4", "superuser_reserved_connections": "3"})
	var held *pgx.Conn
	for end := time.Now().Add(stack.Patience); held == nil; { // the server forgets its last client
		conn, err := pgx.Connect(t.Context(), full.URLFor("alice", "postgres"))
		if held = conn; err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
	}
	defer held.Close(t.Context())
	ending := start(nil)
	stack.Connect(t, ending.URL("postgres"))
	if err := syscall.Kill(ending.Pid(), syscall.SIGTERM); err != nil { // waits for the session
		t.Fatal(err)
	}
	for end := time.Now().Add(stack.Patience); !strings.Contains(psql(t, ending.Addr(), "user=alice", "SELECT 1"), "shutting down"); {
		if time.Now().After(end) {
			t.Fatal("the server doesn't shut down")
		}
	}
	for _, c := range []struct {
		first *servers.Postgres
		want  string
	}{{full, "connection slots"}, {ending, fmt.Sprint(next.Port)}} {
		addr := stack.Proxy(t, next, proxy.Options{Upstream: both(c.first, next, "")})
		wants(t, "with another", psql(t, addr, "user=alice", whichPort), c.want)
	}
	alone := stack.Proxy(t, ending, proxy.Options{})
	wants(t, "alone", psql(t, alone, "user=alice", "SELECT 1"), "the database system is shutting down")
}
