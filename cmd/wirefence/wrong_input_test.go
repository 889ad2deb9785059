package main

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// A command reports wrong input, and what to do, before it changes anything.
func TestWrongInput(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE ROLE wrong_input LOGIN", "CREATE TABLE orders (id int)", "CREATE VIEW seen AS SELECT * FROM orders",
		"CREATE FOREIGN DATA WRAPPER w", "CREATE SERVER s FOREIGN DATA WRAPPER w", "CREATE FOREIGN TABLE far (id int) SERVER s",
		"SELECT wirefence.seal('orders', 34, 'worker-A')")
	bare := database(t, false)
	others := strings.Replace(url, "postgres@", "wrong_input@", 1)
	long := strings.Repeat("z", 256)
	readOnly := url + "&options=-cdefault_transaction_read_only%3Don"
	const wantsPrimary = "target_session_attrs=read-write"
	const needsIssuer = "GRANT wirefence_issuer TO"
	for _, c := range []struct {
		url, args string
		status    int
		says      string
	}{
		{url, "protect orders", 2, "--resource is missing"},
		{url, "protect orders --resource=" + long, 1, "It has 256 bytes"},
		{url, "protect orders --resource={tenant}", 1, "HINT: The table has id."},
		{url, "protect orders --resource={id", 1, "double each brace"},
		{url, "protect orders lines --resource=x", 2, "wants one table"},
		{url, "protect a.b.c.d --resource=x", 1, "a.b.c.d"},
		{url, "protect seen --resource=x", 1, "not on views"},
		{url, "protect far --resource=x", 1, "foreign"},
		{url, "unprotect", 2, "wants one table"},
		{url, "unprotect orders", 1, "is not guarded"},
		{url, "unprotect nowhere", 1, "does not exist and was not guarded"},
		{url, "revoke", 2, "wants one resource"},
		{url, "revoke " + long, 2, "256 bytes"},
		{url, "revoke nothing", 1, "WF008"},
		{url, "lock", 2, "--help"},
		{url, "lock orders psql -c true", 2, "if it is a flag of the command to run, put -- before that"},
		{url, "lock orders psql -h 127.0.0.1", 2, "if -h is a flag of the command to run, put -- before that"},
		{url, "lock orders psql", 2, "two dashes"},
		{url, "lock " + long + " -- true", 2, "256 bytes"},
		{url, "lock orders --ttl=-1s -- true", 2, `--ttl is "-1s": 20ms to 8784h`},
		{url, "lock orders --holder=" + long + " -- true", 2, "at most 160 are allowed"},
		{url, "lock orders --wait=-1s -- true", 2, `--wait is "-1s": at least 0`},
		{url, "lock orders --term-grace=0s -- true", 2, `--term-grace is "0s": at least 1ms`},
		{url, "resource set orders --preempt-after=600h --reason=x", 1, "never, or 0 to 24 days"},
		{url, "status --wait=1s", 2, "give it with --ready"},
		{url, "status --ready --wait=300ms --admin-listen=127.0.0.1:1", 1, "the proxy's probes don't answer"},
		{url, "status --nothing", 2, "unknown flag"},
		{others, "protect orders --resource=x", 1, "HINT: Connect as postgres"},
		{others, "revoke orders", 1, needsIssuer},
		{others, "status", 1, needsIssuer},
		{others, "status --guards", 1, needsIssuer},
		{others, "resource list", 1, needsIssuer},
		{others, "resource set orders --reuse=once --reason=x", 1, needsIssuer},
		{others, "resource declare new --reason=x", 1, needsIssuer},
		{others, "lock orders -- true", exitConfig, needsIssuer},
		{readOnly, "revoke orders", 1, wantsPrimary},
		{readOnly, "resource set orders --reuse=once --reason=x", 1, wantsPrimary},
		{readOnly, "protect orders --resource=x", 1, wantsPrimary},
		{readOnly, "lock orders -- true", exitUnavailable, wantsPrimary},
		{strings.Replace(readOnly, url, bare, 1), "migrate", 1, wantsPrimary},
		{bare, "protect orders --resource=x", exitConfig, noSchema},
		{bare, "unprotect orders", exitConfig, noSchema},
		{bare, "revoke orders", exitConfig, noSchema},
		{bare, "status --guards", exitConfig, noSchema},
		{bare, "lock orders -- true", exitConfig, "run `wirefence migrate`"},
		{"", "protect orders --resource=x", 2, "WIREFENCE_OWNER_URL is not set (--owner-url), nor WIREFENCE_DATABASE_URL: it is the connection string of the table's owner"},
		{"", "unprotect orders", 2, "the table's owner"},
		{url, "history " + long, 2, "history: a resource name has 256 bytes"},
		{"not a url", "status", 2, "WIREFENCE_DATABASE_URL"},
		{url, "lock orders --ttl=9000h --wait=1h -- true", 2, `--ttl is "9000h"`},
		{url + "&sslcrl=/x", "lock orders --wait=1h -- true", 2, "sslcrl is not supported"},
		{url + "&search_path=x", "lock orders --wait=1h -- true", 2, "libpq doesn't know"},
		{url + "&options=-cnonsense%3D1", "lock orders --wait=1h -- true", exitConfig, "nonsense"},
		{"jdbc:" + url, "lock orders --wait=1h -- true", 2, "begins with postgres://"},
	} {
		wirefence(t, issuer(c.url), strings.Fields(c.args)...).expect(t, c.status, c.says)
	}
	if r := show(t, url, "orders"); r.Token != 34 || r.Reuse != "allow" || len(r.Changes) > 0 {
		t.Errorf("changed to %+v", r)
	}
	wirefence(t, issuer(url), "status", "--guards").expect(t, 0).says(t, "No table is guarded.")
}
