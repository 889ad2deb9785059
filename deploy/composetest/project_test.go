package composetest

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

const root = "../.."

// project is the services of docker-compose.yml, under a name, a tag and ports of the test's own:
// the engine may have others.
type project struct {
	name                     string // the tag is the same
	proxyPort, admin, leases string
	env                      []string
	folder                   string // is there as long as the project
}

func newProject(t *testing.T) *project {
	t.Helper()
	p := &project{name: fmt.Sprint("wirefence-test-", os.Getpid()), folder: t.TempDir()}
	p.env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+p.name, "WIREFENCE_VERSION="+p.name)
	for name, port := range map[string]*string{"WIREFENCE_PORT": &p.proxyPort, "WIREFENCE_ADMIN_PORT": &p.admin, "WIREFENCE_API_PORT": &p.leases} {
		free, err := servers.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		*port = strconv.Itoa(free)
		p.env = append(p.env, name+"="+*port)
	}
	t.Cleanup(func() {
		const remove = "docker compose down --volumes --timeout 1; docker image ls --quiet \"wirefence/*:$WIREFENCE_VERSION\" | sort -u | xargs -r docker image rm --force"
		if out, err := p.command(context.Background(), "sh", "-c", remove).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	return p
}

func (p *project) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = root, p.env
	return cmd
}

// docker returns what a command of docker prints to its standard output.
func (p *project) docker(t *testing.T, args ...string) string {
	t.Helper()
	cmd := p.command(t.Context(), "docker", args...)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil {
		t.Fatalf("docker %s: %v\n%s%s", strings.Join(args, " "), err, &out, &errors)
	}
	return strings.TrimSpace(out.String())
}

func (p *project) up(t *testing.T) {
	t.Helper()
	p.docker(t, "compose", "--progress", "quiet", "up", "--detach", "--wait")
}

// tools runs a command of the service tools.
func (p *project) tools(t *testing.T, args ...string) string {
	t.Helper()
	return p.docker(t, append([]string{"compose", "run", "--rm", "tools"}, args...)...)
}

func (p *project) container(service string) string { return p.name + "-" + service + "-1" }

func (p *project) inspect(t *testing.T, service, format string) string {
	t.Helper()
	return p.docker(t, "inspect", "--format", format, p.container(service))
}

// becomes waits for a service's health.
func (p *project) becomes(t *testing.T, service, health string) {
	t.Helper()
	stack.Eventually(t, service+" is "+health, func() bool {
		return p.inspect(t, service, "{{.State.Status}} {{.State.Health.Status}}") == "running "+health
	})
}

// onHost runs a command as root on the engine's host, where it sees all processes.
func (p *project) onHost(t *testing.T, command string) string {
	t.Helper()
	return p.docker(t, "run", "--rm", "--pid=host", "--user=root", "--network=none", "wirefence/tools:"+p.name, "sh", "-c", command)
}

// url is that of the database app, by the proxy.
func (p *project) url(password string) string {
	return "postgres://app:" + password + "@127.0.0.1:" + p.proxyPort + "/app?sslmode=disable"
}

// rows returns how many rows of a table a condition fits.
func (p *project) rows(t *testing.T, from string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), p.url("app"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM "+from).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// answer returns the status of a request to a port, 0 if there is none.
func (p *project) answer(t *testing.T, port, path, token, body string) int {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:"+port+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}
