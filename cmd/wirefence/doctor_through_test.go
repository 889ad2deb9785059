package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// The doctor tries the ways to carry a fence through PgBouncer, and finds what each mode and setting
// does to them, and to locks. Before its version 1.22 a client without a name gets another's.
func TestDoctorThroughAPooler(t *testing.T) {
	stack.NeedsMore(t, "PgBouncer")
	t.Parallel()
	url := database(t, true)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	const (
		comments   = "comments survive"
		local      = "SET LOCAL lasts for its transaction"
		refused    = "the startup parameter options is refused"
		dropped    = "the startup parameter options sets nothing that lasts"
		leaks      = "what one client sets by SET another gets"
		lasts      = "SET lasts for its client's session"
		nameless   = "a client without application_name gets another's"
		keptOff    = "each client keeps its application_name, and a fence there doesn't count"
		keptCounts = "each client keeps its application_name, and a fence there counts"
		held       = "a session's advisory lock lasts for its client's session"
		shared     = "a session's advisory lock that one client takes another has, too"
		lost       = "a session's advisory lock doesn't last for its client"
		heldLocal  = "a transaction's advisory lock lasts for its transaction"
		listens    = "LISTEN lasts"
		deaf       = "LISTEN doesn't last"
		anyLock    = "for a lock: a session's or a transaction's advisory lock, or leases of Wirefence"
		localLock  = "for a lock: a transaction's advisory lock, or leases of Wirefence"
	)
	through := func(mode string, settings map[string]string) string {
		b := stack.Started(servers.StartPgBouncer(t.Context(), servers.PgBouncerConfig{
			Upstream: fmt.Sprintf("%s:%d", cfg.Host, cfg.Port), Clients: 20, PoolSize: 8, PoolMode: mode, Settings: settings})).EndWith(t)
		return b.URL(cfg.Database)
	}
	strict := map[string]string{"ignore_startup_parameters": "extra_float_digits"}
	withHost := map[string]string{"application_name_add_host": "1"}
	stack.Exec(t, url, "CREATE ROLE lockless LOGIN", "REVOKE EXECUTE ON FUNCTION pg_catalog.pg_try_advisory_lock(bigint) FROM PUBLIC")
	for _, c := range []struct {
		name, url string
		counts    bool
		says      []string
	}{
		{"direct", url, false, []string{comments, local, "the startup parameter options lasts", lasts, keptOff, held, heldLocal, listens, "use for a fence: any", anyLock}},
		{"a lock is refused", strings.Replace(url, "postgres@", "lockless@", 1), false, []string{comments, local, "the startup parameter options lasts", lasts, keptOff, lost, heldLocal, listens, "use for a fence: any", localLock}},
		{"transaction", through("transaction", strict), false, []string{comments, local, refused, leaks, nameless, shared, heldLocal, deaf, "use for a fence: SET LOCAL in each transaction", localLock}},
		{"transaction, options ignored", through("transaction", nil), true, []string{comments, local, dropped, leaks, nameless, shared, heldLocal, deaf, "use for a fence: SET LOCAL in each transaction", localLock}},
		{"session", through("session", strict), true, []string{comments, local, refused, lasts, keptCounts, held, heldLocal, listens, "or wirefence lock --carry name", anyLock}},
		{"statement", through("statement", strict), false, []string{comments, "SET LOCAL doesn't last", refused, leaks, nameless, shared, "a transaction's advisory lock doesn't last", deaf, "use for a fence: a comment in each statement", "for a lock: leases of Wirefence"}},
		{"transaction, settings reset", through("transaction", map[string]string{"server_reset_query": "DISCARD ALL", "server_reset_query_always": "1"}), false, []string{comments, local, dropped, "SET sets nothing that lasts", keptOff, lost, heldLocal, deaf, "use for a fence: SET LOCAL in each transaction", localLock}},
		{"session, names with an address", through("session", withHost), true, []string{comments, local, dropped, lasts, keptCounts, held, heldLocal, listens, "or wirefence lock --carry name", anyLock}},
	} {
		stack.Exec(t, url, fmt.Sprintf("SELECT wirefence.set_carry_name(%v, 'a test')", c.counts))
		r := wirefence(t, issuer(url), "doctor", "--through", c.url)
		if bad := c.counts && c.says[4] != keptCounts; bad != strings.Contains(r.stdout, "problem    through.carriers") {
			t.Errorf("%s: a problem is %v", c.name, !bad)
		}
		r.says(t, c.says...)
		if t.Failed() {
			t.Fatal(c.name, r.stdout)
		}
	}
	wirefence(t, issuer(url), "doctor", "--through", "postgres://postgres@127.0.0.1:1/x").expect(t, exitProblem).says(t, "no session through --through")
}
