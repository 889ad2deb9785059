package jobstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// Jobs of several kinds are explored, without a word of their moments.
func TestExplore(t *testing.T) {
	t.Parallel()
	stack.NeedsMore(t, "psycopg2")
	const (
		reset  = `psql -Xqc "TRUNCATE runs" -c "UPDATE totals SET orders = 1, by = 'nobody'"`
		cut    = `psql -XAtqc "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"`
		nobody = "{wirefence} revoke nightly || true"
	)
	superuser := strings.Replace(reset, "-Xqc", `-Xqd {url} -c "SET session_replication_role = replica" -c`, 1)
	for name, c := range map[string]struct {
		job, flags []string
		status     int
		windows    []string // that are among the others
	}{
		"demo": {[]string{"{wirefence}", "demo", "worker", `{"database":"{url}","redis":"{redis}","ttl":2000000000}`},
			[]string{"--lock-ends-after", "2500ms", "--watch", "orders", "--reset", `psql -Xqc "UPDATE orders SET status = 'new', written_by = NULL, token = NULL"`}, 1, []string{"no lock", "stale", "held"}},
		"psycopg2":                 {[]string{python, "testdata/twice.py", ""}, []string{"--end-lock", cut, "--reset", reset, "--minimal", "{script}"}, 1, []string{"no lock", "same", "stale", "held"}},
		"psycopg2 one transaction": {[]string{python, "testdata/twice.py", "one transaction"}, []string{"--end-lock", cut, "--reset", reset}, 0, []string{"no lock", "same", "held"}},
		"psycopg2 locked":          {[]string{python, "testdata/twice.py", ""}, []string{"--end-lock", "true", "--reset", reset}, 2, []string{"no lock", "unknown"}},
		"cron, Redis":              {[]string{python, "testdata/redislock.py", "sh", "testdata/nightly.sh"}, []string{"--end-lock", "redis-cli -p {port} FLUSHALL", "--reset", reset}, 0, []string{"same"}},
		"cron, guarded":            {[]string{"{wirefence}", "lock", "nightly", "--ttl", "3s", "--wait", "5s", "--", python, "testdata/twice.py", ""}, []string{"--end-lock", cut + " && " + nobody, "--reset", superuser}, 0, []string{"none"}},
	} {
		t.Run(strings.NewReplacer(" ", "_", ",", "").Replace(name), func(t *testing.T) {
			t.Parallel()
			db := suite.Database(t, 0)
			cfg, err := pgx.ParseConfig(db.URL(db.Name))
			if err != nil {
				t.Fatal(err)
			}
			switch name {
			case "demo":
				db.Exec(t, "DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL, written_by text, token bigint)", "INSERT INTO orders VALUES (1, 'new')")
			case "cron, guarded":
				cfg.User = "app"
				db.Exec(t, "SELECT wirefence.protect('public.totals', 'nightly')", "SELECT wirefence.declare_resource('nightly', 'a takeover waits a second', preempt_after => '1 s')",
					"GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
			}
			script := filepath.Join(t.TempDir(), "minimal.sh")
			redis := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
			dir := t.TempDir()
			args := append([]string{"zombie", "--explore", "--watch", "totals", "--control", "1s", "--within", "1m", "--term-grace", "5s", "--yes", "-o", "json"}, c.flags...)
			args = append(append(args, "--"), c.job...)
			for i, word := range args {
				args[i] = strings.NewReplacer("{wirefence}", program, "{script}", script, "{url}", db.URL(db.Name), "{redis}", redis.URL(), "{port}", stack.Port(redis.Addr())).Replace(word)
			}
			var out, log bytes.Buffer
			cmd := exec.CommandContext(t.Context(), program, args...)
			cmd.Stdout, cmd.Stderr = &out, &log
			cmd.Env = append(os.Environ(), "WIREFENCE_DATABASE_URL="+db.URL(db.Name), "PGHOST="+cfg.Host, fmt.Sprint("PGPORT=", cfg.Port), "PGUSER="+cfg.User, "PGDATABASE="+cfg.Database,
				"REDIS="+redis.URL(), "LOCK=nightly", "TMPDIR="+dir)
			if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
				t.Fatal(err)
			}
			var r struct {
				Reason  string
				Windows []struct {
					Shows, Behind, Before, Reason string
					From, To, Tried               int
				}
				Notes []string
			}
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("%v\n%s", err, log.String())
			}
			t.Logf("%s\n%+v", log.String(), r)
			if name == "psycopg2" {
				env := cmd.Env
				cmd := exec.CommandContext(t.Context(), "bash", script)
				cmd.Env = env
				if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "|      2 | nobody") {
					t.Errorf("the script: %v, %s", err, out)
				}
			}
			if status := cmd.ProcessState.ExitCode(); status != c.status {
				t.Errorf("status %d, not %d", status, c.status)
			}
			var shown []string
			for _, w := range r.Windows {
				shown = append(shown, w.Shows)
			}
			for _, want := range c.windows {
				if !slices.Contains(shown, want) {
					t.Errorf("%q is missing in %q", want, shown)
				}
			}
		})
	}
}
