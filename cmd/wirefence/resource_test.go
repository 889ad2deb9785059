package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
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

// A resource is forgotten by its name, or with all that are unused. One whose lease is held in
// Redis stays, and so does one whose store isn't named. Behind that a store that counts from 1
// is granted a token above the forgotten ones.
func TestForgetResources(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	redis := stack.Started(servers.StartRedis(context.Background())).EndWith(t)
	here := append(issuer(url), "WIREFENCE_REDIS_URL="+redis.URL())
	conn := stack.Connect(t, url)
	last := func(resource string) string {
		t.Helper()
		var token string
		if err := conn.QueryRow(t.Context(), "SELECT coalesce(max(last_token)::text, 'none') FROM wirefence.status() WHERE resource = $1", resource).Scan(&token); err != nil {
			t.Fatal(err)
		}
		return token
	}
	forget := func(env []string, in string, args ...string) result {
		t.Helper()
		cmd := command(t.Context(), env, append([]string{"resource", "forget"}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run()
		return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
	for _, c := range []struct{ args, says string }{
		{"", "wants one resource"}, {"orders --unused-for 1h", "wants one resource"}, {"a b", "one resource"}, {"--unused-for soon", "not a duration"}, {"--unused-for -1h", "not a duration"},
		{strings.Repeat("z", 256), "256 bytes"},
	} {
		forget(here, "", strings.Fields(c.args)...).expect(t, exitUsage, c.says)
	}
	forget(here, "", "nothing", "--yes").expect(t, exitFailure, "unknown fenced resource")

	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34)", "SELECT wirefence.check('service=7')", "SELECT wirefence.declare_resource('declared', 'why')")
	forget(here, "", "orders").expect(t, exitUsage, "--yes").says(t, "resource orders, whose last token is 34", "no token up to 34")
	forget(here, "n\n", "orders").expect(t, exitFailure, "nothing was removed")
	forget(here, "", "declared", "--yes").expect(t, exitFailure, "declared stays", "An operator has declared or set it", "nothing was forgotten")
	forget(here, "y\n", "orders").expect(t, 0).says(t, "removed: 1")
	if got := last("orders"); got != "none" {
		t.Errorf("its last token is %s", got)
	}
	// Redis counts from 1.
	wirefence(t, here, "lock", "orders", "--", "true").expect(t, 0)
	if got := last("orders"); got != "35" {
		t.Errorf("behind the forget Redis granted %s", got)
	}
	wirefence(t, here, "lock", "invoice:1", "--", "true").expect(t, 0)
	stack.Exec(t, url, "UPDATE wirefence.resource_locks SET granted_at = granted_at - interval '40 days' WHERE resource_id <> 'service'")
	wirefence(t, here, "lock", "invoice:1", "--", os.Args[0], "resource", "forget", "invoice:1", "--yes").expect(t, exitFailure, "invoice:1 stays: its lease is held")
	stack.Exec(t, url, "UPDATE wirefence.resource_locks SET granted_at = granted_at - interval '40 days' WHERE resource_id <> 'service'")
	forget(issuer(url), "", "--unused-for", "30d", "--yes").expect(t, 0).says(t, "removed: 0; in use, and kept: 2")
	forget(here, "", "--unused-for", "30d", "--yes").expect(t, 0).says(t, "removed: 2")
	if last("orders") != "none" || last("invoice:1") != "none" || last("service") != "7" || last("declared") == "none" {
		t.Error("it kept or removed others")
	}

	// A proxy does it by itself.
	stack.Exec(t, url, "UPDATE wirefence.resource_locks SET granted_at = granted_at - interval '40 days'")
	startProxy(t, url, append(issuer(url), "WIREFENCE_FORGET_AFTER=720h")...)
	stack.Eventually(t, "the proxy forgets", func() bool { return last("service") == "none" })
	wirefence(t, nil, "proxy", "--check-config", "--upstream", url, "--forget-after", "720h").expect(t, exitUsage, "WIREFENCE_FORGET_AFTER is set without WIREFENCE_DATABASE_URL")
}
