package composetest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// A worker that docker pause has frozen is refused when it goes on.
func (p *project) pausedWorker(t *testing.T) {
	stack.Exec(t, p.url("app"), "CREATE TABLE written (n int GENERATED ALWAYS AS IDENTITY, by text)")
	if status := p.answer(t, p.leases, "/v1/resources/job/acquire", "try-wirefence-app", `{"holder": "a", "ttl_seconds": 5}`); status != 200 {
		t.Fatalf("the lease can't be acquired: %d", status)
	}
	const worker = `while psql -v VERBOSITY=verbose -qc "INSERT INTO written (by) VALUES ('a')"; do :; done`
	name := p.name + "-worker"
	p.docker(t, "compose", "run", "--detach", "--name", name, "--env", "PGOPTIONS=-c wirefence.token=job=1", "tools", "sh", "-c", worker)
	t.Cleanup(func() { _ = p.command(context.Background(), "docker", "rm", "--force", name).Run() })
	stack.Eventually(t, "a has written", func() bool { return p.rows(t, "written") > 0 })
	p.docker(t, "pause", name)
	p.tools(t, "wirefence", "lock", "job", "--holder", "b", "--wait", "60s", "--", "psql", "-c", "INSERT INTO written (by) VALUES ('b')")
	p.docker(t, "unpause", name)
	p.docker(t, "wait", name)
	out, _ := p.command(t.Context(), "docker", "logs", name).CombinedOutput()
	if !strings.Contains(string(out), `WF001: stale fencing token for resource "job"`) {
		t.Errorf("the paused worker says\n%s", out)
	}
	if late := p.rows(t, "written WHERE by = 'a' AND n > (SELECT n FROM written WHERE by = 'b')"); late != 0 {
		t.Errorf("%d late writes", late)
	}
}

// Each container is restarted when its process is killed, and leases are granted as before.
func (p *project) killed(t *testing.T) {
	for _, service := range []string{"proxy", "redis", "postgres"} {
		p.onHost(t, "kill -9 "+p.inspect(t, service, "{{.State.Pid}}"))
		stack.Eventually(t, service+" was restarted", func() bool { return p.inspect(t, service, "{{.RestartCount}}") == "1" })
		p.becomes(t, service, "healthy")
		p.becomes(t, "proxy", "healthy")
		p.tools(t, "wirefence", "lock", "killed", "--wait", "60s", "--", "psql", "-c", "INSERT INTO orders VALUES ('killed')")
	}
	if n := p.rows(t, "orders WHERE item = 'killed'"); n != 3 {
		t.Errorf("%d of 3 writes are there", n)
	}
}

// The proxy isn't ready while PostgreSQL, whose system still accepts connections, is frozen.
func (p *project) frozenPostgres(t *testing.T) {
	p.docker(t, "pause", p.container("postgres"))
	defer p.becomes(t, "proxy", "healthy")
	defer p.docker(t, "unpause", p.container("postgres"))
	p.becomes(t, "proxy", "unhealthy")
	if status := p.answer(t, p.admin, "/readyz", "", ""); status != 503 {
		t.Errorf("/readyz answers %d", status)
	}
}

// A frozen proxy is unhealthy after three checks.
func (p *project) frozenProxy(t *testing.T) {
	pid := p.inspect(t, "proxy", "{{.State.Pid}}")
	p.onHost(t, "kill -STOP "+pid)
	defer p.becomes(t, "proxy", "healthy")
	defer p.onHost(t, "kill -CONT "+pid)
	p.becomes(t, "proxy", "unhealthy")
	if checks := p.inspect(t, "proxy", "{{.HostConfig.RestartPolicy.Name}} {{.State.Health.FailingStreak}}"); checks != "unless-stopped 3" {
		t.Errorf("it is unhealthy after %s checks", checks)
	}
}

// begin begins a transaction that has written.
func (p *project) begin(t *testing.T, item string) *pgx.Conn {
	t.Helper()
	conn := stack.Connect(t, p.url("app"))
	if _, err := conn.Exec(t.Context(), "BEGIN; INSERT INTO orders VALUES ('"+item+"')"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A restart waits for a transaction to end.
func (p *project) restart(t *testing.T) {
	conn := p.begin(t, "restarted")
	restarted := make(chan error, 1)
	go func() { restarted <- p.command(t.Context(), "docker", "compose", "restart", "proxy").Run() }()
	stack.Eventually(t, "the proxy drains", func() bool { return p.answer(t, p.admin, "/readyz", "", "") != 200 })
	if _, err := conn.Exec(t.Context(), "INSERT INTO orders VALUES ('restarted'); COMMIT"); err != nil {
		t.Error(err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	p.becomes(t, "proxy", "healthy")
	if n := p.rows(t, "orders WHERE item = 'restarted'"); n != 2 {
		t.Errorf("%d of 2 rows are there", n)
	}
}

// A stop ends idle sessions, and transactions that don't end by themselves, and is no failure.
func (p *project) stop(t *testing.T) {
	for what, conn := range map[string]*pgx.Conn{"an idle session": stack.Connect(t, p.url("app")), "an open transaction": p.begin(t, "stopped")} {
		p.docker(t, "compose", "stop", "proxy")
		if code := p.inspect(t, "proxy", "{{.State.ExitCode}}"); code != "0" {
			t.Errorf("with %s it exits with %s", what, code)
		}
		_, err := conn.Exec(t.Context(), "SELECT 1")
		stack.WantState(t, err, "57P01", what)
		p.up(t)
	}
	if n := p.rows(t, "orders WHERE item = 'stopped'"); n != 0 {
		t.Errorf("%d rows of a transaction that was ended are there", n)
	}
}

// Passwords are changed in the database and in the environment.
func (p *project) passwords(t *testing.T) {
	for _, change := range []string{"ALTER ROLE app PASSWORD 'other'", "ALTER ROLE wirefence PASSWORD 'another'"} {
		p.docker(t, "compose", "exec", "-T", "postgres", "psql", "-U", "postgres", "-c", change)
	}
	_, err := pgx.Connect(t.Context(), p.url("app"))
	stack.WantState(t, err, "28P01")
	p.env = append(p.env, "APP_PASSWORD=other", "ISSUER_PASSWORD=another")
	p.up(t)
	p.tools(t, "wirefence", "lock", "orders", "--", "psql", "-c", "INSERT INTO orders VALUES ('by another password')")
}

// A file of tokens that the proxy can't read is named in its log, and one that it can is read.
func (p *project) tokens(t *testing.T) {
	file := filepath.Join(p.folder, "tokens")
	if err := os.WriteFile(file, []byte("operator operate other-token-of-the-test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "ADMIN_TOKENS="+file)
	if out, err := p.command(t.Context(), "docker", "compose", "up", "--detach", "--wait").CombinedOutput(); err == nil {
		t.Errorf("it starts without its tokens:\n%s", out)
	}
	log, _ := p.command(t.Context(), "docker", "logs", p.container("proxy")).CombinedOutput()
	if !strings.Contains(string(log), "/admin-tokens: permission denied") {
		t.Errorf("the log says\n%s", log)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	p.up(t)
	for token, want := range map[string]int{"other-token-of-the-test": 200, "try-wirefence-operator": 401} {
		if status := p.answer(t, p.admin, "/v1/whoami", token, ""); status != want {
			t.Errorf("with %s the answer is %d", token, status)
		}
	}
}

// down keeps the data, unless it is told to remove them.
func (p *project) down(t *testing.T) {
	p.docker(t, "compose", "down")
	p.up(t)
	if got := p.tools(t, "psql", "-Atc", "SELECT count(*) FROM orders WHERE item IN ('book', 'pen')"); got != "2" {
		t.Errorf("%s of 2 rows are there", got)
	}
	p.docker(t, "compose", "down", "--volumes")
	for _, kind := range []string{"volume", "network", "container"} {
		if left := p.docker(t, kind, "ls", "--quiet", "--filter", "label=com.docker.compose.project="+p.name); left != "" {
			t.Errorf("a %s is left: %s", kind, left)
		}
	}
}
