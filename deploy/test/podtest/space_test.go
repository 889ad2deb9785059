package podtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/deploy/test/kube"
	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/pages"
)

const root = "../../../"

// space is a namespace with PostgreSQL, and with the roles and secrets of docs/howto/kubernetes.md.
type space struct {
	name         string
	config       string // a file
	env          []string
	certificates *authority.Authority // of PostgreSQL
}

func newSpace(t *testing.T, name string) *space {
	t.Helper()
	s := &space{name: name, env: os.Environ(), certificates: authority.New(t)}
	s.config = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(s.config, []byte(s.kubectl(t, "config", "view", "--raw", "--flatten")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "KUBECONFIG="+s.config)
	s.kubectl(t, "create", "namespace", name)
	s.atEnd(t, "delete", "namespace", name, "--wait=false")
	t.Cleanup(func() {
		if t.Failed() {
			for _, what := range []string{"get pods --output wide", "describe pods", "get events --sort-by .lastTimestamp", "logs --all-containers --prefix --selector app.kubernetes.io/name"} {
				out, _ := s.command(context.Background(), "kubectl", strings.Fields(what)...).CombinedOutput()
				t.Logf("kubectl %s\n%s", what, out)
			}
		}
	})
	s.kubectl(t, "config", "set-context", "--current", "--namespace", name)
	kube.Eventually(t, "the namespace has its account", func() bool { return s.command(t.Context(), "kubectl", "get", "serviceaccount", "default").Run() == nil })

	s.certificate(t, "postgres-tls", s.certificates.Issue(t, "postgres"))
	s.kubectl(t, "create", "secret", "generic", "postgres-ca", "--from-file", s.certificates.CAFile)
	s.kubectl(t, "apply", "--filename", "testdata/database.yaml")
	s.rolledOut(t, "postgres")
	s.superuser(t, "CREATE ROLE admin LOGIN SUPERUSER PASSWORD 'secret'; CREATE ROLE app LOGIN PASSWORD 'secret'")
	s.superuser(t, "CREATE DATABASE app OWNER app")
	page, err := os.ReadFile(root + "docs/howto/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	run := 0
	for _, b := range pages.Blocks(strings.ReplaceAll(string(page), "…", "secret")) {
		switch {
		case b.Section != "Roles and secrets":
		case b.Language == "sql":
			s.superuser(t, b.Text)
			run++
		default:
			cmd := s.command(t.Context(), "bash", "-euc", b.Text)
			cmd.Dir = t.TempDir()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("line %d of the page: %v\n%s", b.Line, err, out)
			}
			run++
		}
	}
	if run != 3 {
		t.Fatalf("the page has %d blocks", run)
	}
	return s
}

func (s *space) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = s.env
	return cmd
}

// kubectl returns what a command prints to its standard output.
func (s *space) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return s.run(t, "", "kubectl", args...)
}

func (s *space) run(t *testing.T, input, name string, args ...string) string {
	t.Helper()
	cmd := s.command(t.Context(), name, args...)
	var out, errors bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errors
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, &out, &errors)
	}
	return strings.TrimSpace(out.String())
}

// atEnd runs kubectl when the test has ended.
func (s *space) atEnd(t *testing.T, args ...string) {
	t.Cleanup(func() {
		if out, err := s.command(context.Background(), "kubectl", args...).CombinedOutput(); err != nil {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	})
}

func (s *space) apply(t *testing.T, manifest string) {
	t.Helper()
	s.run(t, manifest, "kubectl", "apply", "--filename", "-")
}

func (s *space) rolledOut(t *testing.T, deployment string) {
	t.Helper()
	s.kubectl(t, "rollout", "status", "deployment/"+deployment, "--timeout", "3m")
}

// certificate makes a secret of a certificate, or replaces it.
func (s *space) certificate(t *testing.T, secret string, pair authority.Pair) {
	t.Helper()
	s.apply(t, s.kubectl(t, "create", "secret", "tls", secret, "--cert", pair.CertFile, "--key", pair.KeyFile, "--dry-run=client", "--output", "yaml"))
}

// superuser executes SQL in PostgreSQL's own pod, in the database app if it is there.
func (s *space) superuser(t *testing.T, sql string) string {
	t.Helper()
	const in = `psql -U postgres -At -v ON_ERROR_STOP=1 -d "$(psql -U postgres -Atc "SELECT coalesce(max(datname) FILTER (WHERE datname = 'app'), 'postgres') FROM pg_database")" -c "$1"`
	return s.kubectl(t, "exec", "deployment/postgres", "--", "bash", "-c", in, "-", sql)
}

// client starts a pod with psql and wirefence.
func (s *space) client(t *testing.T, name, labels string) *client {
	t.Helper()
	return s.pod(t, name, labels, "false", "999")
}

func (s *space) pod(t *testing.T, name, labels, host, user string) *client {
	t.Helper()
	manifest, err := os.ReadFile("testdata/client.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, strings.NewReplacer("$name", name, "$labels", labels, "$host", host, "$user", user).Replace(string(manifest)))
	s.kubectl(t, "wait", "--for", "condition=Ready", "pod/"+name, "--timeout", "1m")
	return &client{s, name}
}

// signal sends a signal to all processes of a pod, as root on its node.
func (s *space) signal(t *testing.T, host *client, pod, signal string) {
	t.Helper()
	uid := strings.ReplaceAll(s.kubectl(t, "get", "pod", pod, "--output", "jsonpath={.metadata.uid}"), "-", "[-_]")
	script := `for p in /proc/[0-9]*; do ! grep -qs "$1" $p/cgroup || { kill -$2 ${p#/proc/} && echo $p; }; done`
	if out, err := host.exec(t, "bash", "-c", script, "-", uid, signal); err != nil || out == "" {
		t.Fatalf("signal %s to %s: %v\n%s", signal, pod, err, out)
	}
}

// client is a pod.
type client struct {
	*space
	name string
}

func (c *client) exec(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := c.command(t.Context(), "kubectl", append([]string{"exec", "--quiet", c.name, "--"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// sql executes SQL by psql, in the database that a connection string names, or the pod's environment.
func (c *client) sql(t *testing.T, connection, sql string) (string, error) {
	t.Helper()
	return c.exec(t, "psql", "-X", "-At", "-v", "VERBOSITY=verbose", "-c", sql, connection)
}

// reaches wants a port to be reached, or not.
func (c *client) reaches(t *testing.T, host string, port int, want bool) {
	t.Helper()
	out, err := c.exec(t, "timeout", "3", "bash", "-c", fmt.Sprintf("</dev/tcp/%s/%d", host, port))
	if (err == nil) != want {
		t.Errorf("%s reaches %s:%d: %v, want %v: %s", c.name, host, port, err == nil, want, out)
	}
}
