package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

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
