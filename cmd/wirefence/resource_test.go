package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// resourceJSON is what `wirefence resource show -o json` prints.
type resourceJSON struct {
	Resource       string
	Token          int64
	Source         string
	MustNameSource bool `json:"must_name_source"`
	Reuse          string
	PreemptAfter   *float64 `json:"preempt_after_seconds"`
	Changes        []struct {
		At, By, Reason string
		Settings       map[string][2]any
	}
}

func show(t *testing.T, url, resource string) (r resourceJSON) {
	t.Helper()
	out := wirefence(t, issuer(url), "resource", "show", resource, "-o", "json").expect(t, 0)
	if err := json.Unmarshal([]byte(out.stdout), &r); err != nil {
		t.Fatalf("%v:\n%s", err, out.stdout)
	}
	return r
}

func TestResource(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	wirefence(t, issuer(url), "resource", "list").expect(t, 0).says(t, "No resource has been fenced or declared yet.")
	wirefence(t, issuer(url), "resource", "list", "-o", "json").expect(t, 0).says(t, "[]")
	declare := []string{"resource", "declare", "orders", "--source", "etcd-revision", "--advance", "use", "--preempt-after", "never", "--reason", "own election"}
	wirefence(t, issuer(url), declare...).expect(t, 0).says(t, "orders is declared")
	wirefence(t, issuer(url), declare...).expect(t, 0).says(t, "was declared so before")
	wirefence(t, issuer(url), "resource", "declare", "orders", "--source", "redis", "--reason", "x").
		expect(t, 1, "already exists, with other settings", "wirefence resource set")
	stack.Exec(t, url, "SELECT wirefence.check('orders=3400@etcd-revision')", "SELECT wirefence.check('plain=7')")
	r := wirefence(t, issuer(url), "resource", "list").expect(t, 0)
	if lines := strings.Split(strings.TrimSpace(r.stdout), "\n"); len(lines) != 3 ||
		strings.Join(strings.Fields(lines[1]), " ") != "orders 3400 etcd-revision use allow never enforce reacquire" || strings.Join(strings.Fields(lines[2]), " ") != "plain 7 - use allow 5s enforce reacquire" {
		t.Errorf("listed\n%s", r.stdout)
	}

	wirefence(t, issuer(url), "resource", "set", "orders", "--source", "kubernetes", "--last-token=0", "--reason", "moved to a Lease").
		expect(t, 0).says(t, "orders is set", "source: etcd-revision -> kubernetes", "last_token: 3400 -> 0", "must_name_source: false -> true")
	wirefence(t, issuer(url), "resource", "set", "orders", "--preempt-after=1m30s", "--reuse=once", "--reason", "they are slow").expect(t, 0)
	wirefence(t, issuer(url), "resource", "set", "orders", "--reuse=allow", "--reason", "again", "-o", "json").expect(t, 0).says(t, `"reuse": [`, `"once"`)
	got := show(t, url, "orders")
	if got.Resource != "orders" || got.Token != 0 || got.Source != "kubernetes" || !got.MustNameSource || got.Reuse != "allow" || *got.PreemptAfter != 90 {
		t.Errorf("shown %+v", got)
	}
	if len(got.Changes) != 4 || got.Changes[1].Reason != "moved to a Lease" || got.Changes[1].By != "postgres" || got.Changes[1].At == "" ||
		got.Changes[1].Settings["source"] != [2]any{"etcd-revision", "kubernetes"} {
		t.Errorf("changes %+v", got.Changes)
	}
	wirefence(t, issuer(url), "resource", "show", "orders").expect(t, 0).
		says(t, "kubernetes, to be named", "1m30s", "by postgres (wirefence/", "): moved to a Lease", "  source: etcd-revision -> kubernetes", "  preempt_after: - -> 00:01:30")
	wirefence(t, issuer(url), "resource", "show", "plain").expect(t, 0).says(t, "last token     7")
	wirefence(t, issuer(url), "status", "-o", "json").expect(t, 0).says(t, `"source": "kubernetes"`)

	wirefence(t, issuer(url), "resource", "set", "plain", "--resource-mode=shadow", "--reason", "a trial").
		expect(t, 0).says(t, "mode: enforce -> shadow")
	wirefence(t, issuer(url), "resource", "show", "plain").expect(t, 0).says(t, "mode           shadow")
	stack.Exec(t, url, "SELECT wirefence.check('plain=6')") // which passes
	wirefence(t, issuer(url), "resource", "declare", "once", "--reuse=once", "--reason", "x").expect(t, 0)
	wirefence(t, issuer(url), "resource", "show", "once", "-o", "json").expect(t, 0).says(t, `"advance": "grant"`, `"mode": "enforce"`)
}

func TestResourceRefusals(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.check('orders=7')")
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"show nothing", 1, `unknown fenced resource "nothing"`},
		{"show", 2, "one resource"},
		{"list orders", 2, "no arguments"},
		{"orders", 2, `unknown command "orders"`},
		{"set nothing --source=etcd --reason=x", 1, "WF008"},
		{"set orders --source=etcd", 2, "--reason"},
		{"set orders --reason=x", 2, "nothing to change"},
		{"set orders --source=Etcd --reason=x", 2, "--source"},
		{"set " + strings.Repeat("z", 256) + " --source=etcd --reason=x", 2, "256 bytes"},
		{"declare new", 2, "--reason"},
		{"set orders --advance=soon --reason=x", 2, "--advance"},
		{"set orders --preempt-after=soon --reason=x", 2, "--preempt-after"},
		{"set orders --last-token=x --reason=x", 2, "--last-token"},
		{"set orders --resource-mode=off --reason=x", 2, "--resource-mode"},
		{"set --reason=x", 2, "wants one resource"},
		{"set --undeclared=never --reason=x", 2, "--undeclared"},
		{"set --undeclared=refuse", 2, "--reason"},
		{"set --undeclared=refuse --reuse=once --reason=x", 2, "only --undeclared and --failover can be for all"},
		{"set orders --undeclared=refuse --reason=x", 2, "name none"},
		{"set --failover=hope --reason=x", 2, "--failover"},
		{"set --failover=trust --undeclared=refuse --reason=x", 2, "one after the other"},
		{"set orders lines --reuse=once --reason=x", 2, "wants one resource"},
	} {
		wirefence(t, issuer(url), append([]string{"resource"}, strings.Fields(c.args)...)...).expect(t, c.status, c.says)
	}
	if got := show(t, url, "orders"); got.Token != 7 || got.Source != "" || len(got.Changes) != 0 {
		t.Errorf("changed to %+v", got)
	}
	wirefence(t, issuer(database(t, false)), "resource", "list").expect(t, exitConfig, noSchema)
}
