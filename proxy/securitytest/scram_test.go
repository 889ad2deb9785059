package securitytest

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Case 17: SCRAM through a proxy with TLS on either side or both. libpq and pgx
// log in wherever it can work, bound to the channel where that can be, and are
// told what to set where it can't.
func TestScramWithTLSOnEitherSide(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	stack.OnEach(t, []int{14, 18}, func(t *testing.T, major int) {
		w := start(t, major)
		users := w.userFile(t, []string{"alice"})
		for _, c := range []struct {
			name      string
			clientTLS bool
			upstream  string
			users     string
			same      bool              // the proxy has the server's own certificate
			want      map[string]string // by channel_binding
		}{
			{name: "plain, plain", upstream: "sslmode=disable", want: map[string]string{
				"disable": "alice", "prefer": "alice", "require": "channel binding"}},
			{name: "plain, TLS", upstream: "sslmode=require", want: map[string]string{
				"disable": "alice", "prefer": "alice", "require": "channel binding"}},
			{name: "TLS, plain", clientTLS: true, upstream: "sslmode=disable", want: map[string]string{
				"disable": "alice", "prefer": "alice", "require": "channel binding"}},
			{name: "TLS, TLS", clientTLS: true, upstream: "sslmode=require", want: map[string]string{
				"disable": "alice", "prefer": "WIREFENCE_AUTH_FILE", "require": "WIREFENCE_AUTH_FILE"}},
			{name: "TLS, TLS, known users", clientTLS: true, upstream: "sslmode=require", users: users, want: map[string]string{
				"disable": "alice", "prefer": "alice", "require": "alice"}},
			{name: "TLS, plain, known users", clientTLS: true, upstream: "sslmode=disable", users: users, want: map[string]string{
				"disable": "alice", "prefer": "alice", "require": "alice"}},
			{name: "plain, TLS, known users", upstream: "sslmode=require", users: users, want: map[string]string{
				"disable": "alice", "prefer": "alice", "require": "channel binding"}},
			{name: "plain, plain, known users", upstream: "sslmode=disable", users: users, want: map[string]string{
				"disable": "alice", "prefer": "alice", "require": "channel binding"}},
		} {
			o := proxy.Options{Upstream: w.upstream(c.upstream), AuthFile: c.users}
			mode := "disable"
			if c.clientTLS {
				o.TLS, mode = w.certificate(t), "require"
			}
			addr := stack.Proxy(t, w.Postgres, o)
			for binding, want := range c.want {
				params := fmt.Sprintf("sslmode=%s channel_binding=%s user=alice", mode, binding)
				wants(t, c.name+", psql, channel_binding="+binding, psql(t, addr, params+" password='open sesame'", "SELECT current_user"), want)
				wants(t, c.name+", pgx, channel_binding="+binding, outcome(t, addr, params+" password='open sesame'"), want)
				if want == "alice" {
					wants(t, c.name+", wrong password, channel_binding="+binding, outcome(t, addr, params+" password=wrong"),
						`password authentication failed for user "alice"`)
				}
			}
		}
	})
}

// In a chain of two proxies with TLS at both ends, one of them must authenticate clients, or each if there is TLS between
// them, too. Otherwise the client is told so.
func TestScramThroughTwoProxies(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	t.Parallel()
	w := start(t, 0)
	users := w.userFile(t, []string{"alice"})
	const told = "WIREFENCE_AUTH_FILE"
	for _, c := range []struct {
		between   string // sslmode
		near, far string // user files
		want      map[string]string
	}{
		{"disable", "", "", map[string]string{"disable": "alice", "prefer": told}},
		{"disable", users, "", map[string]string{"disable": "alice", "prefer": "alice", "require": "alice"}},
		{"disable", "", users, map[string]string{"disable": "alice", "prefer": "alice"}},
		{"require", "", "", map[string]string{"disable": "alice", "prefer": told, "require": told}},
		{"require", users, "", map[string]string{"prefer": told}},
		{"require", users, users, map[string]string{"disable": "alice", "prefer": "alice", "require": "alice"}},
	} {
		far := proxy.Options{Upstream: w.upstream("sslmode=require"), AuthFile: c.far}
		if c.between == "require" {
			far.TLS = w.certificate(t)
		}
		next := fmt.Sprintf("postgres://%s/?sslmode=%s", stack.Proxy(t, w.Postgres, far), c.between)
		addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: next, TLS: w.certificate(t), AuthFile: c.near})
		for binding, want := range c.want {
			params := "sslmode=require user=alice password='open sesame' channel_binding=" + binding
			about := fmt.Sprintf("%s between, users %q and %q, channel_binding=%s", c.between, c.near, c.far, binding)
			wants(t, about, psql(t, addr, params, "SELECT current_user"), want)
			wants(t, about+", pgx", outcome(t, addr, params), want)
		}
	}
}

// A proxy that has the server's own certificate is transparent to channel
// binding.
func TestChannelBindingThroughTheServersOwnCertificate(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	own := proxy.TLS{CertFile: w.File("ssl_cert_file"), KeyFile: w.File("ssl_key_file")}
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=require"), TLS: own})
	params := "sslmode=require channel_binding=require user=alice password='open sesame'"
	wants(t, "psql", psql(t, addr, params, "SELECT current_user"), "alice")
}

// The proxy authenticates clients by a file, a query, or both.
func TestKnownUsers(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	stack.Exec(t, w.admin(),
		"CREATE ROLE asker LOGIN PASSWORD 'ask'", "CREATE ROLE other LOGIN PASSWORD 'open sesame'", `CREATE ROLE "od""d" LOGIN PASSWORD 'open sesame'`,
		`CREATE FUNCTION secret_of(name) RETURNS TABLE (name name, secret text) LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog
		 AS $$ SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1 AND rolcanlogin $$`)
	query := "SELECT name, secret FROM secret_of($1)"
	database := fmt.Sprintf("postgres://asker:ask@%s/postgres", w.Addr())
	var log stack.Log
	file := w.userFile(t, []string{"alice", "hashed"}, `; users`, `"od""d" "open sesame"`, `"nobody" "open sesame"`, `"nopassword" ""`,
		`"trusted" "open sesame"`, `"onlyplain" "wrong in the file"`)
	_, addr := serve(t, proxy.Options{Upstream: w.upstream("sslmode=require"), AuthFile: file, AuthQuery: query, DatabaseURL: database, Logger: log.Logger()})
	for _, c := range []struct{ user, password, want string }{
		{"alice", "open sesame", "logged in as alice"},
		{"alice", "wrong", `password authentication failed for user "alice"`},
		{"alice", "", "password authentication failed"},
		{`od"d`, "open sesame", `logged in as od"d`},              // in clear in the file
		{"other", "open sesame", "logged in as other"},            // by the query
		{"other", "wrong", "password authentication failed"},      //
		{"unheard", "open sesame", "password authentication"},     // neither knows it
		{"nobody", "open sesame", "password authentication"},      // the server doesn't know it
		{"nopassword", "open sesame", "password authentication"},  //
		{"hashed", "open sesame", "password authentication"},      // an MD5 hash is of no use
		{"trusted", "open sesame", "logged in as trusted"},        // though the server would not ask
		{"trusted", "wrong", "password authentication failed"},    //
		{"onlyplain", "wrong in the file", "pg_hba.conf rejects"}, // refused before any password
	} {
		got := outcome(t, addr, fmt.Sprintf(`sslmode=disable user='%s' password='%s'`, c.user, c.password))
		wants(t, c.user+" with "+c.password, got, c.want)
	}
	wants(t, "the log", log.String(), "MD5 hash", "password_encryption")
	for _, secret := range []string{"open sesame", "SCRAM-SHA-256$", "md5", ":ask@"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log holds %q:\n%s", secret, log.String())
		}
	}
}

// The server's secret has changed since the file was written: the client is told
// what to do, and a new file counts without a restart.
func TestUserFileIsReadAgain(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	var log stack.Log
	file := w.userFile(t, []string{"alice"})
	server, addr := serve(t, proxy.Options{Upstream: w.upstream("sslmode=disable"), AuthFile: file, Logger: log.Logger()})
	old := "sslmode=disable user=alice password='open sesame'"
	wants(t, "at first", outcome(t, addr, old), "logged in")
	stack.Exec(t, w.admin(), "ALTER ROLE alice PASSWORD 'shut sesame'")
	conn, err := connect(t, addr, old)
	if err == nil {
		conn.Close(t.Context())
		t.Fatal("a password that was changed is accepted")
	}
	wants(t, "with the old file", psql(t, addr, old, "SELECT 1"), "password authentication failed", "WIREFENCE_AUTH_FILE")

	write(t, file, "no quotes\n")
	if err := server.Reload(); err == nil || !strings.Contains(err.Error(), "users.txt:1") {
		t.Errorf("a bad file is reloaded with %v", err)
	}
	write(t, file, read(t, w.userFile(t, []string{"alice"})))
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	wants(t, "with the new file", outcome(t, addr, "sslmode=disable user=alice password='shut sesame'"), "logged in")
	wants(t, "the old password", outcome(t, addr, old), "password authentication failed")
}

// An upstream that asks for something else than SCRAM can't be answered with a
// SCRAM key; a proxy whose lookup fails says so.
func TestKnownUsersThatCannotLogIn(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	file := w.userFile(t, nil, `"hashed" "open sesame"`)
	addr := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), AuthFile: file})
	wants(t, "md5", psql(t, addr, "user=hashed password='open sesame'", "SELECT 1"), "demands an authentication method that the proxy does not support", "scram-sha-256")

	broken := stack.Proxy(t, w.Postgres, proxy.Options{Upstream: w.upstream("sslmode=disable"), AuthQuery: "SELECT * FROM nowhere WHERE x = $1", DatabaseURL: w.admin()})
	got := psql(t, broken, "user=alice password='open sesame'", "SELECT 1")
	wants(t, "a broken query", got, "could not look up")
	if strings.Contains(got, "nowhere") {
		t.Errorf("the client is told of the proxy's insides: %s", got)
	}
}

// Where the proxy authenticates, a client hears once which version is spoken,
// whichever servers are tried, and the one that takes it speaks that version.
func TestVersionIsNegotiatedOnce(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "PostgreSQL 14 and 18")
	old, recent := start(t, 14), start(t, 18)
	stack.Exec(t, old.admin(), "ALTER DATABASE postgres SET default_transaction_read_only = on")
	starting := stack.Scripted(t, func(conn net.Conn) {
		_, _ = io.ReadAtLeast(conn, make([]byte, 4096), 8)
		_, _ = io.WriteString(conn, "v\x00\x00\x00\x0c\x00\x03\x00\x00\x00\x00\x00\x00"+"E\x00\x00\x00\x1cSFATAL\x00C57P03\x00Mnot yet\x00\x00")
	})
	file := old.userFile(t, nil, `"alice" "open sesame"`)
	for _, c := range []struct {
		hosts []string
		want  string
	}{
		{[]string{old.Addr(), starting, recent.Addr()}, "logged in as alice"},
		{[]string{recent.Addr()}, "logged in as alice"},
		{[]string{old.Addr(), starting}, "not yet"},
	} {
		var told, key atomic.Int64
		addr := stack.Proxy(t, old.Postgres, proxy.Options{
			Upstream: "postgres://" + strings.Join(c.hosts, ",") + "/?sslmode=disable&target_session_attrs=read-write", AuthFile: file})
		between := stack.Interposed(t, addr, func(typ byte, msg []byte) []byte {
			switch typ {
			case 'v':
				told.Add(1)
			case 'K':
				key.Store(int64(len(msg)))
			}
			return msg
		})
		got := outcome(t, between, "sslmode=disable max_protocol_version=3.2 user=alice password='open sesame'")
		wants(t, fmt.Sprint(c.hosts), got, c.want)
		if before := int64(min(1, len(c.hosts)-1)); told.Load() != before {
			t.Errorf("%v: the client is told of a version %d times, want %d", c.hosts, told.Load(), before)
		}
		if size := key.Load(); size > 13 && told.Load() > 0 {
			t.Errorf("%v: the client agreed on version 3.0 and gets a BackendKeyData of %d bytes", c.hosts, size)
		}
	}
}

// The connections by which the proxy asks for users end with it.
func TestLookupsEndWithTheProxy(t *testing.T) {
	t.Parallel()
	w := start(t, 15)
	stack.Exec(t, w.admin(), "CREATE ROLE asker SUPERUSER LOGIN PASSWORD 'ask'")
	t.Run("a proxy", func(t *testing.T) {
		_, addr := serve(t, proxy.Options{
			Upstream: w.upstream("sslmode=disable"), AuthQuery: "SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1",
			DatabaseURL: fmt.Sprintf("postgres://asker:ask@%s/postgres", w.Addr())})
		wants(t, "alice", outcome(t, addr, "sslmode=disable user=alice password='open sesame'"), "logged in")
	})
	admin := stack.Connect(t, w.admin())
	for end, left := time.Now().Add(stack.Patience), 1; left > 0; {
		if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = 'asker'").Scan(&left); err != nil {
			t.Fatal(err)
		}
		if left > 0 && time.Now().After(end) {
			t.Fatalf("%d connections are left", left)
		}
	}
}
