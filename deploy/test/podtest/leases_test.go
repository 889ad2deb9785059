package podtest

import (
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/wirefence/wirefence/deploy/test/kube"
	"github.com/wirefence/wirefence/internal/pages"
)

// Of two pods with an injected sidecar one writes. When it is frozen, with its sidecar, the other takes
// over, and none of its writes lands behind the other's.
func TestInjectedSidecars(t *testing.T) {
	s := newSpace(t, "sidecars")
	s.kubectl(t, "apply", "--filename", root+"deploy/kubernetes/injection.yaml")
	s.atEnd(t, "delete", "--filename", root+"deploy/kubernetes/injection.yaml")
	s.kubectl(t, "create", "configmap", "wirefence-sidecar", "--from-literal=WIREFENCE_UPSTREAM=postgres://postgres:5432/?sslmode=disable")
	s.kubectl(t, "apply", "--filename", root+"deploy/kubernetes/migrate.yaml")
	s.kubectl(t, "wait", "--for", "condition=Complete", "job/wirefence-migrate", "--timeout", "1m")
	s.superuser(t, "CREATE TABLE written (n int GENERATED ALWAYS AS IDENTITY, by text); GRANT INSERT ON written TO app")
	host := s.pod(t, "host", "", "true", "0")
	s.kubectl(t, "apply", "--filename", "testdata/reports.yaml")
	writer := func() string { return s.superuser(t, "SELECT by FROM written ORDER BY n DESC LIMIT 1") }
	kube.Eventually(t, "one writes", func() bool { return writer() != "" })
	first := writer()
	kube.Eventually(t, "the other stands by", func() bool {
		return strings.Contains(s.kubectl(t, "logs", "--selector", "app=reports", "--container", "wirefence", "--tail", "-1", "--prefix"), "standing by for the lease")
	})

	s.signal(t, host, first, "STOP")
	kube.Eventually(t, "the other writes", func() bool { return writer() != first })
	second := writer()
	s.signal(t, host, first, "CONT")
	kube.Eventually(t, "the late one is refused", func() bool {
		log := s.kubectl(t, "logs", first, "--container", "reports")
		return strings.Contains(log, "57P01") || strings.Contains(log, "WF00")
	})
	seen := s.superuser(t, "SELECT max(n) FROM written")
	kube.Eventually(t, "the leader goes on", func() bool { return s.superuser(t, "SELECT max(n) > 20 + "+seen+" FROM written") == "t" })
	if late := s.superuser(t, "SELECT count(*) FROM written WHERE by = '"+first+"' AND n > (SELECT min(n) FROM written WHERE by = '"+second+"')"); late != "0" {
		t.Errorf("%s late writes", late)
	}

	s.kubectl(t, "delete", "pod", second, "--wait=false")
	kube.Eventually(t, "another leads when the leader's pod ends", func() bool { return writer() != second })
}

// An application elects by client-go, and keeps its election: docs/howto/leader-election.md.
func TestElection(t *testing.T) {
	s := newSpace(t, "shop")
	s.kubectl(t, "apply", "--filename", root+"deploy/kubernetes/migrate.yaml")
	s.kubectl(t, "wait", "--for", "condition=Complete", "job/wirefence-migrate", "--timeout", "1m")
	s.superuser(t, "CREATE TABLE orders (item text); GRANT INSERT ON orders TO app")
	page, err := os.ReadFile(root + "docs/howto/leader-election.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range pages.Blocks(string(page)) {
		switch {
		case b.Language == "sql":
			s.superuser(t, b.Text)
		case strings.HasPrefix(b.Text, "apiVersion:"):
			s.apply(t, b.Text)
		}
	}
	s.kubectl(t, "create", "rolebinding", "wirefence", "--role", "wirefence", "--serviceaccount", s.name+":default")
	sidecar, err := os.ReadFile(root + "deploy/kubernetes/sidecar.yaml")
	if err != nil {
		t.Fatal(err)
	}
	changes := strings.NewReplacer(
		"name: WIREFENCE_LEASE\n              value: reports", "name: WIREFENCE_LEASE_FROM\n              value: kubernetes:shop/orders=orders",
		"            - name: WIREFENCE_STANDBY\n              value: wait\n", "",
		"      automountServiceAccountToken: false\n", "",
		"image: example/reports:1.0.0", "image: wirefence/tools:0.1.0\n          command: [sleep, infinity]")
	s.kubectl(t, "create", "secret", "generic", "reports-database", "--from-literal=username=app", "--from-literal=password=secret")
	s.apply(t, changes.Replace(string(sidecar)))
	s.rolledOut(t, "reports")
	pods := strings.Fields(s.kubectl(t, "get", "pods", "--selector", "app.kubernetes.io/name=reports", "--output", "jsonpath={.items[*].metadata.name}"))
	if len(pods) != 2 {
		t.Fatalf("pods %v", pods)
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.config)
	if err != nil {
		t.Fatal(err)
	}
	writes := func(pod string) string {
		out, _ := (&client{s, pod}).sql(t, "postgres://app:secret@127.0.0.1:6433/app?sslmode=disable", "INSERT INTO orders VALUES ('x')")
		return out
	}
	for _, release := range []bool{true, false, true} {
		leader, standby := pods[0], pods[1]
		stop := kube.Enter(t, config, leader+"_0d9f3c52-6a0e-4c5a-9a8f-3f0a2b6c7d11", release)
		kube.Eventually(t, "the leader writes", func() bool { return writes(leader) == "INSERT 0 1" })
		if got := writes(standby); !strings.Contains(got, "WF00") {
			t.Errorf("the standby's write: %s", got)
		}
		stop()
		stop = kube.Enter(t, config, standby+"_77aa0b52-9c5d-4b39-a5ab-21c9d7ee0002", true)
		kube.Eventually(t, "the next leader writes", func() bool { return writes(standby) == "INSERT 0 1" })
		if got := writes(leader); !strings.Contains(got, "WF00") {
			t.Errorf("the former leader's write: %s", got)
		}
		stop()
	}
}

// A session with a fence ends when the Lease that names the primary names another.
func witness(t *testing.T, s *space, client *client) {
	s.apply(t, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "primary"}, "spec": {"holderIdentity": "postgres"}}`)
	s.kubectl(t, "create", "role", "witness", "--verb", "get", "--resource", "leases.coordination.k8s.io", "--resource-name", "primary")
	s.kubectl(t, "create", "rolebinding", "witness", "--role", "witness", "--serviceaccount", s.name+":default")
	s.kubectl(t, "patch", "deployment", "wirefence", "--patch", `{"spec": {"template": {"spec": {"automountServiceAccountToken": true}}}}`)
	s.kubectl(t, "set", "env", "deployment/wirefence", "WIREFENCE_WITNESS=kubernetes://"+s.name+"/primary?bound=2s")
	s.rolledOut(t, "wirefence")
	s.superuser(t, "SELECT wirefence.seal('orders', 1, 'a')")
	write := func() string {
		out, _ := client.sql(t, "options='-c wirefence.token=orders=1'", "INSERT INTO orders VALUES ('fenced')")
		return out
	}
	kube.Eventually(t, "a fenced write is taken", func() bool { return write() == "INSERT 0 1" })
	ended := make(chan string, 1)
	go func() {
		out, _ := client.sql(t, "options='-c wirefence.token=orders=1'", "BEGIN; INSERT INTO orders VALUES ('late'); SELECT pg_sleep(15); COMMIT")
		ended <- out
	}()
	kube.Eventually(t, "the transaction is open", func() bool {
		return s.superuser(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%late%' AND wait_event = 'PgSleep'") == "1"
	})
	s.kubectl(t, "patch", "lease", "primary", "--patch", `{"spec": {"holderIdentity": "postgres-2"}}`)
	if out := <-ended; !strings.Contains(out, "57P01") {
		t.Errorf("an open transaction: %s", out)
	}
	if out := write(); !strings.Contains(out, "57P01") {
		t.Errorf("a fenced write: %s", out)
	}
	if out, err := client.sql(t, "", "SELECT 1"); err != nil {
		t.Errorf("without a fence: %s", out)
	}
}
