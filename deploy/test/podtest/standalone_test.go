package podtest

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/deploy/test/kube"
	"github.com/wirefence/wirefence/internal/authority"
)

const (
	labelled = `wirefence.client: "true"`
	proxies  = "app.kubernetes.io/name=wirefence,app.kubernetes.io/component=proxy"
)

// The plain manifests, with their policies.
func TestManifests(t *testing.T) {
	s := newSpace(t, "plain")
	s.kubectl(t, "apply", "--kustomize", root+"deploy/kubernetes")
	s.rolledOut(t, "wirefence")
	s.kubectl(t, "wait", "--for", "condition=Complete", "job/wirefence-migrate", "--timeout", "1m")
	client, stranger := s.client(t, "client", labelled), s.client(t, "stranger", "")
	if out, err := client.sql(t, "", "CREATE TABLE orders (item text)"); err != nil {
		t.Fatal(out)
	}

	t.Run("policies", func(t *testing.T) {
		s.kubectl(t, "create", "namespace", "monitoring")
		s.atEnd(t, "delete", "namespace", "monitoring", "--wait=false")
		monitoring := &space{name: "monitoring", env: s.env}
		address := s.kubectl(t, "get", "pods", "--selector", proxies, "--output", "jsonpath={.items[0].status.podIP}")
		client.reaches(t, "wirefence", 6433, true)
		client.reaches(t, "wirefence", 9434, true)
		client.reaches(t, "postgres", 5432, false)
		client.reaches(t, address, 9433, false)
		stranger.reaches(t, "wirefence", 6433, false)
		stranger.reaches(t, "postgres", 5432, false)
		s.kubectl(t, "config", "set-context", "--current", "--namespace", monitoring.name)
		defer s.kubectl(t, "config", "set-context", "--current", "--namespace", s.name)
		kube.Eventually(t, "the namespace has its account", func() bool { return s.command(t.Context(), "kubectl", "get", "serviceaccount", "default").Run() == nil })
		prometheus := s.client(t, "prometheus", "")
		prometheus.reaches(t, address, 9433, true)
		prometheus.reaches(t, address, 6433, false)
	})

	// Each connection is served, and a transaction that is open commits.
	t.Run("rolling restart", func(t *testing.T) {
		const connects = `for i in {1..60}; do psql -Atqc 'SELECT 1' || echo failed; sleep 0.3; done`
		long, short := make(chan string, 1), make(chan string, 1)
		go func() {
			out, _ := client.sql(t, "", "BEGIN; INSERT INTO orders VALUES ('long'); SELECT pg_sleep(12); COMMIT")
			long <- out
		}()
		go func() {
			out, _ := client.exec(t, "bash", "-c", connects)
			short <- out
		}()
		kube.Eventually(t, "the transaction is open", func() bool {
			return s.superuser(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'BEGIN%'") == "1"
		})
		s.kubectl(t, "rollout", "restart", "deployment/wirefence")
		s.rolledOut(t, "wirefence")
		if out := <-long; !strings.Contains(out, "COMMIT") {
			t.Errorf("the transaction: %s", out)
		}
		if out := <-short; strings.Count(out, "1\n")+1 != 60 || strings.Contains(out, "failed") {
			t.Errorf("not all connections were served:\n%s", out)
		}
	})

	// The disruption budget keeps one of two.
	t.Run("eviction", func(t *testing.T) {
		kube.Eventually(t, "two proxies", func() bool {
			return s.kubectl(t, "get", "deployment", "wirefence", "--output", "jsonpath={.status.replicas} {.status.readyReplicas}") == "2 2" &&
				s.kubectl(t, "get", "poddisruptionbudget", "wirefence", "--output", "jsonpath={.status.disruptionsAllowed}") == "1"
		})
		pods := strings.Fields(s.kubectl(t, "get", "pods", "--selector", proxies, "--output", "jsonpath={.items[*].metadata.name}"))
		evict := func(pod string) (string, error) {
			cmd := s.command(t.Context(), "kubectl", "create", "--raw", "/api/v1/namespaces/"+s.name+"/pods/"+pod+"/eviction", "--filename", "-")
			cmd.Stdin = strings.NewReader(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "` + pod + `"}}`)
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := evict(pods[0]); err != nil {
			t.Fatal(out)
		}
		if out, err := evict(pods[1]); err == nil || !strings.Contains(out, "disruption budget") {
			t.Errorf("the second is evicted, too: %v %s", err, out)
		}
		if out, err := client.sql(t, "", "SELECT 1"); err != nil {
			t.Errorf("meanwhile: %s", out)
		}
		s.rolledOut(t, "wirefence")
	})

	t.Run("witness", func(t *testing.T) { witness(t, s, client) })
}

// The overlay with TLS serves a certificate that is renewed, without a restart.
func TestTLS(t *testing.T) {
	s := newSpace(t, "tls")
	first, second := authority.New(t), authority.New(t)
	s.kubectl(t, "create", "configmap", "authorities", "--from-file", "first="+first.CAFile, "--from-file", "second="+second.CAFile)
	s.certificate(t, "wirefence-tls", first.Issue(t, "wirefence"))
	s.kubectl(t, "create", "secret", "generic", "wirefence-users", `--from-literal=users.txt="app" "secret"`)
	s.kubectl(t, "apply", "--kustomize", root+"deploy/kubernetes-tls")
	s.rolledOut(t, "wirefence")
	client := s.client(t, "client", labelled)
	verified := func(authority string) error {
		_, err := client.sql(t, "sslmode=verify-full channel_binding=require sslrootcert=/authorities/"+authority, "SELECT 1")
		return err
	}
	if err := verified("first"); err != nil {
		t.Errorf("before the renewal: %v", err)
	}
	if out, err := client.sql(t, "sslmode=disable", "SELECT 1"); err == nil {
		t.Errorf("without TLS: %s", out)
	}
	s.certificate(t, "wirefence-tls", second.Issue(t, "wirefence"))
	kube.Eventually(t, "the renewed certificate is served", func() bool { return verified("second") == nil && verified("first") != nil })
	if restarts := s.kubectl(t, "get", "pods", "--selector", proxies, "--output", "jsonpath={.items[*].status.containerStatuses[0].restartCount}"); restarts != "0 0" {
		t.Errorf("restarts: %s", restarts)
	}
}

// The chart is installed as its page says, scaled, and taken away.
func TestChart(t *testing.T) {
	s := newSpace(t, "chart")
	chart := func(verb string, values ...string) {
		t.Helper()
		s.run(t, "", "helm", append([]string{verb, "orders", root + "deploy/helm/wirefence", "--wait", "--timeout", "3m", "--namespace", s.name,
			"--set", "upstream.url=postgres://postgres:5432/?sslmode=disable", "--set", "issuer.existingSecret=wirefence-issuer",
			"--set", "migration.existingSecret=wirefence-owner", "--set", "networkPolicy.database.enabled=true"}, values...)...)
	}
	chart("install")
	client, stranger := s.client(t, "client", labelled), s.client(t, "stranger", "")
	if out, err := client.sql(t, "host=orders-wirefence", "SELECT 1"); err != nil {
		t.Error(out)
	}
	stranger.reaches(t, "orders-wirefence", 6433, false)
	client.reaches(t, "postgres", 5432, false)
	chart("upgrade", "--set", "replicaCount=3")
	if ready := s.kubectl(t, "get", "deployment", "orders-wirefence", "--output", "jsonpath={.status.readyReplicas}"); ready != "3" {
		t.Errorf("%s are ready", ready)
	}
	s.run(t, "", "helm", "uninstall", "orders", "--namespace", s.name)
	if left := s.kubectl(t, "get", "all,networkpolicy,poddisruptionbudget,secret", "--selector", "app.kubernetes.io/instance=orders", "--output", "name"); left != "" {
		kube.Eventually(t, "nothing is left", func() bool {
			return s.kubectl(t, "get", "all,networkpolicy,poddisruptionbudget,secret", "--selector", "app.kubernetes.io/instance=orders", "--output", "name") == ""
		})
	}
}
