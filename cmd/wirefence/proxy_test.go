package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// proxyProcess is a proxy before a database.
type proxyProcess struct {
	*running
	url, admin string
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// proxySettingsFor are settings of a proxy before the server of a connection
// string.
func proxySettingsFor(t *testing.T, url string) (settings []string, listen, admin string) {
	t.Helper()
	listen, admin = freeAddress(t), freeAddress(t)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		fmt.Sprintf("WIREFENCE_UPSTREAM=postgres://%s:%d/?sslmode=disable", cfg.Host, cfg.Port),
		"WIREFENCE_DATABASE_URL=" + url, "WIREFENCE_LISTEN=" + listen, "WIREFENCE_ADMIN_LISTEN=" + admin,
	}, listen, admin
}

func startProxy(t *testing.T, url string, settings ...string) *proxyProcess {
	t.Helper()
	all, listen, admin := proxySettingsFor(t, url)
	cfg, _ := pgx.ParseConfig(url)
	p := &proxyProcess{start(t, append(all, settings...), "proxy"), stack.URL(listen, cfg.Database), admin}
	p.stderr.Await(t, `"msg":"serving"`)
	return p
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// awaitReadiness waits until /readyz says a text.
func awaitReadiness(t *testing.T, admin, want string) {
	t.Helper()
	stack.Eventually(t, "readiness is "+want, func() bool {
		resp, err := http.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(text), want)
	})
}

func TestProxyRefusesADatabaseItDoesNotKnow(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	settings, _, _ := proxySettingsFor(t, strings.Replace(url, "postgres@", "nobody@", 1))
	wirefence(t, settings, "proxy").expect(t, 1, "nobody")
	stack.Exec(t, url, "DELETE FROM wirefence.applied_version")
	settings, _, _ = proxySettingsFor(t, url)
	wirefence(t, settings, "proxy").expect(t, exitConfig, "has no version")
}

// A database that is away, or that is yet to be migrated, keeps the proxy from being ready
// and not from starting.
func TestProxyWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	url := pg.URL("postgres")
	pg.Stop()
	settings, _, admin := proxySettingsFor(t, url)
	stands := func(want string) {
		t.Helper()
		awaitReadiness(t, admin, want)
	}
	p := start(t, settings, "proxy")
	stands("not ready: failed to connect")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stands(noSchema)
	if err := migrations.Apply(t.Context(), stack.Connect(t, url), nil); err != nil {
		t.Fatal(err)
	}
	stands("ok")
	p.signal(t, os.Interrupt)
	p.end(t).expect(t, 0)

	pg.Stop()
	p = start(t, settings, "proxy")
	stands("not ready")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	stands("ok")
	p.signal(t, os.Interrupt)
	p.end(t).expect(t, 0)

	// A schema that can't become usable ends the proxy.
	stack.Exec(t, url, "DELETE FROM wirefence.applied_version")
	pg.Stop()
	p = start(t, settings, "proxy")
	stands("not ready")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.end(t).expect(t, exitConfig, "has no version")
}

func TestProxyWithoutItsPort(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	taken := startProxy(t, url)
	settings, _, _ := proxySettingsFor(t, url)
	wirefence(t, append(settings, "WIREFENCE_ADMIN_LISTEN="+taken.admin), "proxy").expect(t, 1, "WIREFENCE_ADMIN_LISTEN: ", taken.admin)
}

// Without holds a statement that no check can cover is refused, with them it runs.
func TestProxyHolds(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')")
	for _, c := range []struct{ hold, want string }{{"0", "WF006"}, {"50ms", ""}} {
		p := startProxy(t, url, "WIREFENCE_HOLD="+c.hold)
		_, err := stack.Connect(t, p.url).Exec(t.Context(), "DO $$BEGIN COMMIT; END$$ /*wirefence.token='orders=34'*/", pgx.QueryExecModeSimpleProtocol)
		stack.WantState(t, err, c.want, "with a hold of", c.hold)
	}
}

func TestProxyLogsRefusals(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE jobs (worker text)", "SELECT wirefence.seal('orders', 34, 'worker-B')")
	p := startProxy(t, url)
	conn := stack.Connect(t, p.url+"&application_name=billing")
	const secret = "card-4111"
	if _, err := conn.Exec(t.Context(), "INSERT INTO jobs VALUES ('"+secret+"') /*wirefence.token='orders=33'*/"); !fence.IsStale(err) {
		t.Fatalf("got %v", err)
	}
	p.stderr.Await(t, `"msg":"refused"`)
	p.signal(t, syscall.SIGTERM)
	r := p.end(t).expect(t, 0)
	var refusal map[string]any
	for line := range strings.Lines(r.stderr) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Errorf("not JSON: %s", line)
		}
		if entry["msg"] == "refused" {
			refusal = entry
			for _, key := range []string{"client", "user", "application"} {
				if n := strings.Count(line, `"`+key+`":`); n != 1 {
					t.Errorf("%s comes %d times in %s", key, n, line)
				}
			}
		}
	}
	for key, want := range map[string]string{
		"level": "WARN", "sqlstate": "WF001", "resource": "orders", "presented": "33", "current": "34", "holder": "worker-B",
		"user": "postgres", "application": "billing", "client": "127.0.0.1:",
	} {
		if got := fmt.Sprint(refusal[key]); got != want && (key != "client" || !strings.HasPrefix(got, want)) {
			t.Errorf("%s is %q, not %q", key, got, want)
		}
	}
	if strings.Contains(r.stderr, secret) || strings.Contains(r.stderr, "INSERT") {
		t.Errorf("the log has text of a statement:\n%s", r.stderr)
	}
}

func TestProxyIsNotReadyWithoutItsUpstream(t *testing.T) {
	t.Parallel()
	settings, _, admin := proxySettingsFor(t, "postgres://postgres@127.0.0.1:1/x?sslmode=disable")
	p := start(t, append(settings, "WIREFENCE_DATABASE_URL="), "proxy")
	p.stderr.Await(t, `"msg":"serving"`)
	if !strings.Contains(p.stderr.String(), "the schema is not verified") {
		t.Error("nothing is said of the schema")
	}
	if status, body := get(t, "http://"+admin+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "127.0.0.1:1") {
		t.Errorf("got %d: %s", status, body)
	}
	if status, _ := get(t, "http://"+admin+"/livez"); status != http.StatusOK {
		t.Error("not alive, either")
	}
	wirefence(t, []string{"WIREFENCE_ADMIN_LISTEN=" + admin}, "status", "--ready").expect(t, 1, "not ready", "127.0.0.1:1")
}

// ended returns what a connection is told at its end.
func ended(t *testing.T, conn *pgx.Conn) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
			return err
		}
	}
	return nil
}

func TestProxyWarnsOfTooFewDescriptors(t *testing.T) {
	t.Parallel()
	p := startProxy(t, database(t, true), "WIREFENCE_MAX_CONNECTIONS=1000000000")
	p.stderr.Await(t, "the limit of open files is too low")
	if fine := startProxy(t, database(t, true), "WIREFENCE_MAX_CONNECTIONS=10"); strings.Contains(fine.stderr.String(), "open files") {
		t.Error("there is a warning although all is well")
	}
}

// The caller that began to look for the schema can wait for its end.
func TestTheSchemaIsNotLookedForAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := awaitedSchema(proxySettings{ServerSettings: ServerSettings{Mode: "enforce", DatabaseURL: "postgres://127.0.0.1:1/app"}}, slog.New(slog.DiscardHandler))
	end, err := w.begin(t.Context(), t.FailNow)
	if err != nil {
		t.Fatal(err)
	}
	if w.ready() == nil {
		t.Error("it is ready without a database")
	}
	end()
	all := make([]byte, 1<<20)
	if all = all[:runtime.Stack(all, true)]; strings.Contains(string(all), "(*awaited).wait") {
		t.Errorf("it looks on:\n%s", all)
	}
}

// A proxy whose clients are idle keeps at most two connections to its database, whether it has a
// lease or waits for one: there may be one for each pod. It opens others for moments.
func TestAnIdleProxyKeepsTwoConnections(t *testing.T) {
	stack.NeedsMore(t, "40 s, and 5 s of CPU")
	t.Parallel()
	for store, settings := range map[string][]string{"PostgreSQL": nil, "Redis": {"WIREFENCE_REDIS_URL=" + redisServer(t).URL()}} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			url := database(t, true)
			conn, sidecar := stack.Connect(t, url), append(settings[:len(settings):len(settings)], "WIREFENCE_LEASE=orders")
			holder := startProxy(t, url, append(sidecar, "WIREFENCE_DATABASE_URL="+url+"&application_name=holder")...)
			holder.stderr.Await(t, "holding the lease")
			runs(t, stack.Connect(t, holder.url), "SELECT")
			startProxy(t, url, append(sidecar, "WIREFENCE_DATABASE_URL="+url+"&application_name=standby")...)
			startProxy(t, url, append(settings[:len(settings):len(settings)], "WIREFENCE_DATABASE_URL="+url+"&application_name=shared")...)
			for _, name := range []string{"holder", "standby", "shared"} {
				const rest = 6 * time.Second
				since := time.Now()
				stack.Eventually(t, name+" has two connections for a while", func() bool {
					var kept int
					err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE $1 || '%' AND datname = current_database() AND backend_start < clock_timestamp() - interval '1 s'", name).Scan(&kept)
					if err != nil {
						t.Fatal(err)
					}
					if kept > 2 {
						since = time.Now()
					}
					return time.Since(since) > rest
				})
			}
		})
	}
}

// After a SIGHUP the next login asks the database anew whether functions release advisory locks, so
// one that a direct connection has made counts at once.
func TestHangupAsksForFunctionsAgain(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')", "CREATE TABLE jobs (worker text)")
	p := startProxy(t, url)
	stack.Connect(t, p.url) // its login asks, and finds none
	stack.Exec(t, url, "CREATE FUNCTION unlocks() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_unlock_all()'")
	p.signal(t, syscall.SIGHUP)
	p.stderr.Await(t, "SIGHUP: other settings")
	if out := p.stderr.String(); !strings.Contains(out, `"msg":"reloaded","what":["look for functions that release locks"`) {
		t.Errorf("the log doesn't say what was reloaded:\n%s", out)
	}
	conn := stack.Connect(t, p.url)
	if _, err := conn.Exec(t.Context(), "SET wirefence.token = 'orders=34'"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "VACUUM jobs"); fence.StateOf(err) != fence.CannotBeFenced { // needs a hold
		t.Errorf("VACUUM in a session that must not hold gives %v", err)
	}
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0)
}

// A SIGHUP that comes before the proxy serves is answered, too. The listener
// never answers, so the proxy hangs in its look at the schema.
func TestHangupBeforeServing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	settings, _, _ := proxySettingsFor(t, "postgres://postgres@"+l.Addr().String()+"/x?sslmode=disable")
	p := start(t, settings, "proxy")
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p.signal(t, syscall.SIGHUP)
	p.stderr.Await(t, "SIGHUP: other settings")
	_ = conn.Close()
	p.stderr.Await(t, `"msg":"serving"`)
	p.signal(t, syscall.SIGTERM)
	p.end(t).expect(t, 0)
}
