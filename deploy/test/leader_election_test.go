package deploy

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/wirefence/wirefence/deploy/test/kube"
	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/servers"
)

// The Role and the setting that docs/howto/leader-election.md shows, and client-go's elections: the
// leader's sidecar lets it write, and no other.
func TestLeaderElection(t *testing.T) {
	t.Parallel()
	var role *rbacv1.Role
	var env struct {
		Env []corev1.EnvVar `json:"env"`
	}
	for _, block := range pages.Blocks(read(t, "../../docs/howto/leader-election.md")) {
		if block.Language != "yaml" {
			continue
		}
		if strings.HasPrefix(block.Text, "env:") {
			if err := yaml.UnmarshalStrict([]byte(block.Text), &env); err != nil {
				t.Fatal(err)
			}
		} else if objects, err := decode(block.Text); err != nil {
			t.Fatal(err)
		} else {
			role = one[rbacv1.Role](objects)
		}
	}
	if len(role.Rules) != 1 || !slices.Equal(role.Rules[0].Verbs, []string{"list", "watch"}) || !slices.Equal(role.Rules[0].ResourceNames, []string{"orders"}) || len(env.Env) != 1 {
		t.Fatalf("the page's role %v, its settings %v", role, env)
	}

	api := apiservertest.Start(t)
	postgres, err := servers.StartPostgres(t.Context(), servers.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(postgres.Close)
	url := postgres.URL("postgres")
	migrate := exec.CommandContext(t.Context(), binary(t), "migrate")
	migrate.Env = []string{"WIREFENCE_DATABASE_URL=" + url}
	if out, err := migrate.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
	if out := psql(t, url, "CREATE TABLE orders (note text)", "SELECT wirefence.protect('orders', 'orders')"); strings.Contains(out, "ERROR") {
		t.Fatal(out)
	}
	pods := []*pod{}
	for name, uuid := range map[string]string{"web-1": "0d9f3c52-6a0e-4c5a-9a8f-3f0a2b6c7d11", "web-2": "77aa0b52-9c5d-4b39-a5ab-21c9d7ee0002"} {
		settings := []string{env.Env[0].Name + "=" + env.Env[0].Value, "WIREFENCE_LEASE_OWNER=" + name, "WIREFENCE_KUBERNETES_URL=" + api.Setting(),
			"WIREFENCE_DATABASE_URL=" + url, "WIREFENCE_UPSTREAM=postgres://" + postgres.Addr() + "/?sslmode=disable"}
		sidecar, err := servers.StartWirefence(t.Context(), binary(t), settings...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sidecar.Close)
		p := &pod{identity: name + "_" + uuid, url: "postgres://postgres@" + sidecar.Addr() + "/postgres?sslmode=disable"}
		kube.Eventually(t, "the sidecar is ready", func() bool { return sidecar.Answers(t.Context(), "/readyz") })
		pods = append(pods, p)
	}
	config := &rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}, BearerTokenFile: api.TokenFile, TLSClientConfig: rest.TLSClientConfig{CAFile: api.CAFile}}
	for _, release := range []bool{true, false, true} {
		leader, standby := pods[0], pods[1]
		stop := kube.Enter(t, config, leader.identity, release)
		kube.Eventually(t, leader.identity+" writes", func() bool { return leader.writes(t) == "INSERT 0 1" })
		if got := standby.writes(t); !strings.Contains(got, "WF00") {
			t.Errorf("the standby's write: %s", got)
		}
		stop()
		stop = kube.Enter(t, config, standby.identity, true)
		kube.Eventually(t, standby.identity+" writes", func() bool { return standby.writes(t) == "INSERT 0 1" })
		if got := leader.writes(t); !strings.Contains(got, "WF00") {
			t.Errorf("the former leader's write: %s", got)
		}
		stop()
	}
}

// pod takes part in the election by client-go.
type pod struct {
	identity, url string
}

// writes writes to the protected table through the pod's sidecar.
func (p *pod) writes(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(psql(t, p.url, "INSERT INTO orders VALUES ('x')"))
}

func psql(t *testing.T, url string, statements ...string) string {
	t.Helper()
	args := []string{"-X", "-v", "VERBOSITY=sqlstate"}
	for _, sql := range statements {
		args = append(args, "-c", sql)
	}
	out, _ := exec.CommandContext(t.Context(), "psql", append(args, url)...).CombinedOutput()
	return string(out)
}
