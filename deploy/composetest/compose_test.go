package composetest

import (
	"os"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/pages"
)

// One reader goes through the page, then through faults.
func TestCompose(t *testing.T) {
	p := newProject(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"nothing of a registry runs", p.registry},
		{"the page", p.page},
		{"rights", p.rights},
		{"no way round the proxy", p.detour},
		{"a paused worker", p.pausedWorker},
		{"killed", p.killed},
		{"PostgreSQL frozen", p.frozenPostgres},
		{"proxy frozen", p.frozenProxy},
		{"restart in a transaction", p.restart},
		{"stop", p.stop},
		{"other passwords", p.passwords},
		{"other tokens", p.tokens},
		{"down", p.down},
	} {
		if !t.Run(part.name, part.run) {
			break
		}
	}
}

// An image that isn't built yet is built, not asked for at a registry.
func (p *project) registry(t *testing.T) {
	out, err := p.command(t.Context(), "docker", "compose", "run", "--rm", "--no-deps", "tools", "psql", "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "psql (PostgreSQL)") || strings.Contains(string(out), "Pull") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Each command of the page prints what the page says.
func (p *project) page(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/howto/compose.md")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := pages.Steps(string(text))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, step := range steps {
		input := strings.ReplaceAll(step.Input, "6433", p.proxyPort)
		out, _ := p.command(t.Context(), "bash", "-c", input).CombinedOutput()
		if !pages.Matches(step.Want, string(out)) {
			t.Fatalf("line %d: %s prints\n%s\nand the page has\n%s", step.Line, step.Input, out, strings.Join(step.Want, "\n"))
		}
		if step.ShowsRefusal() {
			refused++
		}
	}
	if len(steps) != 8 || refused != 1 {
		t.Errorf("%d commands, %d refused", len(steps), refused)
	}
	for _, c := range []struct{ port, path, token, body string }{
		{p.admin, "/console/", "", ""},
		{p.admin, "/v1/whoami", "try-wirefence-operator", ""},
		{p.leases, "/v1/resources/invoices/acquire", "try-wirefence-app", `{"holder": "a"}`},
	} {
		if status := p.answer(t, c.port, c.path, c.token, c.body); status != 200 {
			t.Errorf("%s answers %d", c.path, status)
		}
	}
}

// The process of the proxy has no rights.
func (p *project) rights(t *testing.T) {
	if got := p.inspect(t, "proxy", "{{.HostConfig.ReadonlyRootfs}}"); got != "true" {
		t.Errorf("its file system is read-only: %s", got)
	}
	status := p.onHost(t, "cat /proc/"+p.inspect(t, "proxy", "{{.State.Pid}}")+"/status")
	for _, line := range []string{"Uid:\t65532\t65532\t65532\t65532", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(status, line+"\n") {
			t.Errorf("%q is missing in\n%s", line, status)
		}
	}
}

// A container on the applications' network reaches the database by the proxy alone.
func (p *project) detour(t *testing.T) {
	address := p.inspect(t, "postgres", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
	for host, reached := range map[string]bool{"proxy -p 6433": true, "postgres": false, address: false} {
		out, err := p.command(t.Context(), "docker", "run", "--rm", "--network", p.name+"_front", "--env", "PGPASSWORD=app", "--env", "PGCONNECT_TIMEOUT=3",
			"wirefence/tools:"+p.name, "sh", "-c", "psql -U app -Atc 'SELECT 1' -h "+host).CombinedOutput()
		if (err == nil) != reached {
			t.Errorf("%s: %v\n%s", host, err, out)
		}
	}
}
