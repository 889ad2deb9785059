package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	pgleases "github.com/wirefence/wirefence/lockclient/postgres"
)

const scramHBA = "local all all trust\nhost all postgres all trust\nhost all all all scram-sha-256\n"

// rotating is a server with a role whose password changes.
type rotating struct {
	url, further string // of the role in two databases, without a password
	admin        *pgx.Conn
	folder       string // of files with the password in several forms
	round        int
}

func startRotating(t *testing.T) *rotating {
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{HBA: scramHBA})).EndWith(t)
	app, further := stack.Database(t, pg), stack.Database(t, pg)
	r := &rotating{
		url: pg.URLFor("rotating", app), further: pg.URLFor("rotating", further),
		admin: stack.Connect(t, pg.URL(app)), folder: t.TempDir(),
	}
	stack.Exec(t, pg.URL(app), "CREATE ROLE rotating LOGIN IN ROLE wirefence_issuer")
	r.rotate(t)
	return r
}

func (r *rotating) with(url, password string) string {
	return strings.Replace(url, "rotating@", "rotating:"+password+"@", 1)
}

func (r *rotating) file(name string) string { return filepath.Join(r.folder, name) }

// rotate gives the role another password, and ends its sessions.
func (r *rotating) rotate(t *testing.T) {
	t.Helper()
	r.round++
	password := fmt.Sprintf("secret%d", r.round)
	stack.MustExec(t, r.admin, "ALTER ROLE rotating PASSWORD '"+password+"'")
	for name, text := range map[string]string{
		"password": password + "\nanother line\n", "pgpass": "*:*:*:*:" + password + "\n",
		"url": r.with(r.url, password) + "\n", "further": r.with(r.further, password) + "\n",
	} {
		whole := r.file(name + ".new")
		if err := os.WriteFile(whole, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(whole, r.file(name)); err != nil {
			t.Fatal(err)
		}
	}
	stack.MustExec(t, r.admin, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotating'")
}

func (r *rotating) expiry(t *testing.T, resource string) (at time.Time) {
	t.Helper()
	err := r.admin.QueryRow(t.Context(), "SELECT coalesce(max(expires_at), to_timestamp(0)) FROM wirefence.leases WHERE resource_id = $1", resource).Scan(&at)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A proxy with a lease, `wirefence lock` and a lock client go on when their role's password changes,
// wherever it comes from.
func TestPasswordsThatChange(t *testing.T) {
	stack.NeedsMore(t, "9 s of CPU")
	t.Parallel()
	for _, c := range []struct {
		name     string
		settings func(r *rotating) []string
		origin   func(r *rotating, file string) connstring.Origin
	}{
		{"by a command", func(r *rotating) []string {
			return []string{"WIREFENCE_PASSWORD_COMMAND=test $PGUSER = rotating && cat " + r.file("password"), "WIREFENCE_SEAL_URLS=" + r.further}
		}, func(r *rotating, _ string) connstring.Origin {
			return connstring.Origin{Command: "cat " + r.file("password")}
		}},
		{"in files with connection strings", func(r *rotating) []string {
			return []string{"WIREFENCE_DATABASE_URL=", "WIREFENCE_DATABASE_URL_FILE=" + r.file("url"), "WIREFENCE_SEAL_URLS_FILE=" + r.file("further")}
		}, func(r *rotating, file string) connstring.Origin { return connstring.Origin{File: r.file(file)} }},
		{"in a password file", func(r *rotating) []string {
			return []string{"PGPASSFILE=" + r.file("pgpass"), "WIREFENCE_SEAL_URLS=" + r.further}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := startRotating(t)
			settings := append(append(issuer(r.url), "WIREFENCE_TTL=6s", "PGUSER=nobody"), c.settings(r)...)
			// It asks its server for the role, with its own login.
			upstream := fmt.Sprintf("WIREFENCE_UPSTREAM=postgres://127.0.0.1:%d/?sslmode=disable&target_session_attrs=read-write", r.admin.Config().Port)
			p := startProxy(t, r.url, append(settings, "WIREFENCE_LEASE=sidecar", upstream)...)
			p.stderr.Await(t, "holding the lease")
			through, err := pgx.ParseConfig(p.url)
			if err != nil {
				t.Fatal(err)
			}
			listen := fmt.Sprintf("WIREFENCE_LISTEN=127.0.0.1:%d", through.Port)
			locked := start(t, settings, "lock", "job", "--", "sh", "-c", "echo begun; exec sleep 100")
			locked.stdout.Await(t, "begun")
			leases := []string{"sidecar", "job"}
			if c.origin != nil {
				lease := r.acquire(t, c.origin(r, "url").Of(r.url), c.origin(r, "further").Of(r.further))
				defer func() {
					if err := lease.Context().Err(); err != nil {
						t.Error(err)
					}
				}()
				leases = append(leases, "client")
			}
			for range 3 {
				before := map[string]time.Time{}
				r.rotate(t)
				for _, resource := range leases {
					before[resource] = r.expiry(t, resource)
				}
				wirefence(t, settings, "lock", "another", "--", "true").expect(t, 0)
				wirefence(t, settings, "status").expect(t, 0)
				wirefence(t, append(settings, upstream, listen, "WIREFENCE_ADMIN_LISTEN="+p.admin), "doctor").
					says(t, "a session through the proxy at", "WIREFENCE_UPSTREAM leads to the database")
				stack.Exec(t, p.url, "CREATE TABLE round"+fmt.Sprint(r.round)+" ()")
				for _, resource := range leases {
					stack.Eventually(t, "a renewal of "+resource, func() bool { return r.expiry(t, resource).After(before[resource]) })
				}
			}
			for _, resource := range leases {
				var token int
				if err := r.admin.QueryRow(t.Context(), "SELECT last_token FROM wirefence.resource_locks WHERE resource_id = $1", resource).Scan(&token); err != nil || token != 1 {
					t.Errorf("%s has the token %d, %v", resource, token, err)
				}
			}
			for who, log := range map[string]string{"the proxy": p.stderr.String(), "lock": locked.stderr.String()} {
				if strings.Contains(log, "secret") {
					t.Errorf("%s logs a password:\n%s", who, log)
				}
			}
			// The old one isn't accepted.
			wirefence(t, issuer(r.with(r.url, "secret1")), "status").expect(t, 1, "28P01")
		})
	}
}

// acquire takes the lease "client" with a lock client that seals in both databases.
func (r *rotating) acquire(t *testing.T, url, further string) *lockclient.Lease {
	t.Helper()
	var pools []*pgxpool.Pool
	for _, each := range []string{url, further} {
		cfg, err := connstring.Pool(each)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		pools = append(pools, pool)
	}
	store := pgleases.New(pools[0])
	client, err := lockclient.New(store, lockclient.Options{TTL: 6 * time.Second, Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: pools[1]}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = store.Close()
	})
	lease, err := client.Acquire(t.Context(), "client")
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// A command that gives no password says so in the error, without what it has printed. One that isn't
// ended by itself is killed, with its children.
func TestAPasswordCommandThatFails(t *testing.T) {
	t.Parallel()
	r := startRotating(t)
	pid := r.file("pid")
	for _, c := range []struct {
		command string
		says    []string
	}{
		{"echo hidden1; echo no credentials >&2; exit 3", []string{"WIREFENCE_PASSWORD_COMMAND has failed: exit status 3, and says: no credentials"}},
		{"set -x; echo hidden2; exit 1", []string{"exit status 1, and says: + echo (the password)"}},
		{"missing-command", []string{"exit status 127", "missing-command"}},
		{"true", []string{"WIREFENCE_PASSWORD_COMMAND has printed no password"}},
		{"echo; echo hidden4", []string{"has printed no password"}},
		{"echo hidden5; sleep 100 & echo $! >" + pid + "; wait", []string{"WIREFENCE_PASSWORD_COMMAND has not ended within "}},
		{"echo $$ >>" + r.file("runs") + "; echo hidden6", []string{"28P01"}},
	} {
		got := wirefence(t, append(issuer(r.url+"&connect_timeout=1"), "WIREFENCE_PASSWORD_COMMAND="+c.command), "status").expect(t, 1, c.says...)
		if said := got.stdout + got.stderr; strings.Contains(said, "hidden") {
			t.Errorf("%s: %s", c.command, said)
		}
	}
	if runs, err := os.ReadFile(r.file("runs")); err != nil || strings.Count(string(runs), "\n") != 1 {
		t.Errorf("a password was refused, and the command ran as %q, %v", runs, err)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "the child's end", func() bool { return syscall.Kill(child, 0) != nil })

	// A connection string's own password comes first, and the settings in effect name no command.
	wirefence(t, append(issuer(r.with(r.url, "secret1")), "WIREFENCE_PASSWORD_COMMAND=exit 1"), "status").expect(t, 0)
	checked := wirefence(t, append(issuer(r.url), "WIREFENCE_UPSTREAM=postgres://127.0.0.1/", "WIREFENCE_PASSWORD_COMMAND=echo hidden7"), "proxy", "--check-config").expect(t, 0)
	checked.says(t, "WIREFENCE_PASSWORD_COMMAND=(set)", "WIREFENCE_DATABASE_URL="+r.url)
	if strings.Contains(checked.stdout, "hidden") {
		t.Error(checked.stdout)
	}
}
