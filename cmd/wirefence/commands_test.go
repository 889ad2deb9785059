package main

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

const noSchema = "the database has no wirefence schema"

func issuer(url string) []string { return []string{"WIREFENCE_DATABASE_URL=" + url} }

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := database(t, false)
	wirefence(t, issuer(url), "migrate", "--dry-run").expect(t, 0).says(t, "CREATE FUNCTION wirefence.")
	wirefence(t, issuer(url), "status").expect(t, exitConfig, noSchema, "wirefence migrate") // the dry run changed nothing
	if r := wirefence(t, issuer(url), "migrate").expect(t, 0); r.stdout == "" {
		t.Error("migrate doesn't say what it did")
	}
	wirefence(t, issuer(url), "migrate", "--dry-run").expect(t, 0).says(t, "nothing to do")
	wirefence(t, issuer(url), "migrate").expect(t, 0)
	wirefence(t, issuer(url), "status").expect(t, 0).says(t, "No resource has been fenced yet.")
}

func TestMigrateWithoutRights(t *testing.T) {
	t.Parallel()
	url := database(t, false)
	stack.Exec(t, url, "CREATE ROLE poor LOGIN")
	poor := strings.Replace(url, "postgres@", "poor@", 1)
	wirefence(t, issuer(poor), "migrate").expect(t, 1, `role "poor" lacks rights`, "GRANT ")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')", "SELECT wirefence.check('used=7')")
	r := wirefence(t, issuer(url), "status").expect(t, 0).says(t, "RESOURCE", "TOKEN", "LEASE", "LAST HOLDER", "WRITERS")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 3 {
		t.Fatalf("a heading and two rows were expected:\n%s", r.stdout)
	}
	if got := strings.Fields(lines[1]); got[0] != "orders" || got[1] != "34" || got[2] != "unknown" || got[3] != "worker-B" || got[5] != "grant" || got[7] != "5s" || got[8] != "enforce" || got[9] != "0" {
		t.Errorf("the row is %q", got)
	}
	if got := strings.Fields(lines[2]); got[0] != "used" || got[1] != "7" || got[2] != "unknown" || got[3] != "-" || got[5] != "use" {
		t.Errorf("the row is %q", got)
	}

	var rows []struct {
		Resource     string
		Token        int64
		Holder       string
		Since        string
		Advance      string
		PreemptAfter float64 `json:"preempt_after_seconds"`
	}
	r = wirefence(t, issuer(url), "status", "-o", "json").expect(t, 0)
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil {
		t.Fatalf("%v:\n%s", err, r.stdout)
	}
	if len(rows) != 2 || rows[0].Resource != "orders" || rows[0].Token != 34 || rows[0].Holder != "worker-B" || rows[0].Since == "" ||
		rows[0].Advance != "grant" || rows[0].PreemptAfter != 5 {
		t.Errorf("got %+v", rows)
	}
}

func TestStatusCountsRefusalsOfTheLastHour(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	refused := func(kind, resource, age, last string, count int) string {
		return fmt.Sprintf("INSERT INTO wirefence.history (kind, resource, at, last_at, count) VALUES ('%s', %s, now() - %s::interval, now() - %s::interval, %d)",
			kind, resource, age, last, count)
	}
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B'), wirefence.seal('äü', 1, 'worker-B')", refused("refusal", "'orders'", "'10 min'", "NULL", 7),
		refused("refusal", "'orders'", "'60.5 min'", "'59 min'", 5), refused("refusal", "'orders'", "'61 min'", "NULL", 100), refused("refusal", "'orders'", "'62 min'", "'1 s'", 500), refused("shadow", "'orders'", "'0'", "NULL", 3),
		refused("shadow", "'äü'", "'0'", "NULL", 2))
	r := wirefence(t, issuer(url), "status").expect(t, 0).says(t, "REFUSED 1H", "LET PASS 1H")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 3 || !strings.HasSuffix(strings.Join(strings.Fields(lines[1]), " "), " 512 3") || !strings.HasSuffix(strings.Join(strings.Fields(lines[2]), " "), " 0 2") {
		t.Errorf("got\n%s", r.stdout)
	}
	wirefence(t, issuer(url), "status", "-o", "json").expect(t, 0).says(t, `"refused_last_hour": 512`, `"let_pass_last_hour": 3`, `"let_pass_last_hour": 2`)
	stack.Exec(t, url, refused("refusal", "NULL", "'0'", "NULL", 4), refused("refusal", "'oders'", "'0'", "NULL", 1), refused("shadow", "NULL", "'0'", "NULL", 6))
	wirefence(t, issuer(url), "status").expect(t, 0).says(t, "Not attributed to a resource of this list, in the last hour: 5 refused, 6 passed in shadow mode.")
}

func TestStatusOfAnEmptyDatabaseInJSON(t *testing.T) {
	t.Parallel()
	if r := wirefence(t, issuer(database(t, true)), "status", "-o", "json").expect(t, 0); strings.TrimSpace(r.stdout) != "[]" {
		t.Errorf("got %q", r.stdout)
	}
}

func TestStatusReady(t *testing.T) {
	t.Parallel()
	p := startProxy(t, database(t, true))
	at := "WIREFENCE_ADMIN_LISTEN="
	wirefence(t, []string{at + p.admin}, "status", "--ready").expect(t, 0)
	_, port, _ := net.SplitHostPort(p.admin)
	wirefence(t, []string{at + "0.0.0.0:" + port}, "status", "--ready").expect(t, 0)
	wirefence(t, []string{at + "127.0.0.1:1"}, "status", "--ready").expect(t, 1, "don't answer")
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')")
	holder := stack.ConnectAs(t, url, "revoked")
	if _, err := holder.Exec(t.Context(), "SET application_name = 'night batch'; BEGIN; SELECT wirefence.check('orders=34')"); err != nil {
		t.Fatal(err)
	}
	wirefence(t, issuer(url), "revoke", "orders", "--reason", "it hangs").expect(t, 0).says(t, "orders is revoked: tokens below 35 are stale", "locked out: worker-B, with token 34",
		fmt.Sprintf(`ended: a transaction of revoked, process %d, application "night batch"`, holder.PgConn().PID()))
	wirefence(t, issuer(url), "history", "--kind", "ended").expect(t, 0).says(t, "orders", "night batch",
		fmt.Sprintf("ended to let a newer token in, process %d", holder.PgConn().PID()))
	wirefence(t, issuer(url), "history", "--kind", "revocation").expect(t, 0).says(t, "it hangs", " wirefence/", "@")
	wirefence(t, issuer(url), "status").expect(t, 0).says(t, " 35 ")
	wirefence(t, issuer(url), "revoke", "no-such").expect(t, 1, "no-such", "WF008", "HINT: wirefence status lists the resources.")
	wirefence(t, issuer(url), "resource", "show", "no-such").expect(t, 1, "wirefence status lists")

	if _, err := holder.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("the holder's session is there still")
	}
	stack.Exec(t, url, "SELECT wirefence.seal('jobs', 7, 'worker-C', 'redis')")
	var out struct {
		Resource, LockedOut string
		Token               int64
		Former              int64 `json:"locked_out_token"`
		Ended               []struct{ PID int }
	}
	r := wirefence(t, issuer(url), "revoke", "jobs", "-o", "json").expect(t, 0, "its tokens come from redis", "WIREFENCE_REDIS_URL", "was not freed")
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || out.Resource != "jobs" || out.Token != 8 || out.Former != 7 || out.Ended == nil {
		t.Errorf("%v: %s", err, r.stdout)
	}
}

func TestProtect(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE orders (id int)", `CREATE TABLE "Reports" (id int, tenant text)`, "SELECT wirefence.seal('orders', 34)")
	wirefence(t, issuer(url), "status", "--guards").expect(t, 0).says(t, "No table is guarded.")
	wirefence(t, issuer(url), "protect", "orders").expect(t, 2, "--resource is missing")
	wirefence(t, issuer(url), "protect", "--resource", "orders").expect(t, 2, "wants one table")
	wirefence(t, issuer(url), "protect", "nowhere", "--resource", "orders").expect(t, 1, `relation "nowhere" does not exist`)
	wirefence(t, issuer(url), "protect", "Plain Table", "--resource", "orders").expect(t, 1, "HINT: Write the name as in SQL")
	wirefence(t, issuer(url), "protect", "orders", "--resource", "report:{tenant}").expect(t, 1, `no column "tenant"`, "HINT: The table has id.")
	wirefence(t, issuer(url), "protect", "public.orders", "--resource", "orders").expect(t, 0).says(t, "public.orders is guarded for orders")
	wirefence(t, issuer(url), "protect", `"Reports"`, "--resource", "report:{tenant}:{id}").expect(t, 0)
	wirefence(t, issuer(url), "status", "--guards").expect(t, 0).says(t, "TABLE", "public.orders", `public."Reports"`, "report:{tenant}:{id}")
	stack.Exec(t, url, "ALTER TABLE orders DISABLE TRIGGER ALL")
	r := wirefence(t, issuer(url), "status", "--guards", "-o", "json").expect(t, 0)
	var rows []struct{ Table, Resource, By, Since, Fault string }
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil {
		t.Fatalf("%v:\n%s", err, r.stdout)
	}
	if len(rows) != 2 || rows[1].Table != "public.orders" || rows[1].By != "postgres" || rows[1].Since == "" || !strings.Contains(rows[1].Fault, "disabled") || rows[0].Fault != "" {
		t.Errorf("got %+v", rows)
	}
	wirefence(t, issuer(url), "unprotect", "orders").expect(t, 0).says(t, "orders is not guarded any more")
	wirefence(t, issuer(url), "unprotect", "orders").expect(t, 1, "is not guarded")
	stack.Exec(t, url, `DROP TABLE "Reports"`)
	wirefence(t, issuer(url), "unprotect", `"Reports"`).expect(t, 1, "does not exist and was not guarded")
	wirefence(t, issuer(url), "status", "--guards").expect(t, 0).says(t, "the table has gone")
	wirefence(t, issuer(url), "unprotect", `public."Reports"`).expect(t, 0)
	wirefence(t, issuer(url), "status", "--guards").expect(t, 0).says(t, "No table is guarded.")
}

func TestRows(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE jobs (tenant text, id bigint, claim bigint, state text, PRIMARY KEY (tenant, id))", "INSERT INTO jobs VALUES ('acme', 17, 5, 'running')",
		"CREATE ROLE stranger LOGIN", "GRANT SELECT ON jobs TO stranger")
	running := "state = 'running'"
	declare := func(more ...string) result {
		t.Helper()
		return wirefence(t, issuer(url), append([]string{"rows", "declare", "job"}, more...)...)
	}
	wirefence(t, issuer(url), "rows", "list").expect(t, 0).says(t, "No rows are declared.")
	declare().expect(t, 2, "--table is missing")
	declare("--table", "jobs").expect(t, 2, "--key is missing")
	declare("--table", "jobs", "--key", "id", "--claim", "claim").expect(t, 2, "--while is missing")
	wirefence(t, issuer(url), "rows", "declare", "--table", "jobs").expect(t, 2, "wants one class")
	for _, c := range []struct {
		table, key, claim, while string
		says                     []string
	}{
		{"nowhere", "id", "claim", running, []string{`relation "nowhere" does not exist`}},
		{"jobs", "tenant,id", "attempt", running, []string{`the claim cannot be used: column "attempt" does not exist`, "DETAIL: It is 'attempt'.", "HINT: A claim is an expression"}},
	} {
		declare("--table", c.table, "--key", c.key, "--claim", c.claim, "--while", c.while).expect(t, 1, c.says...)
	}
	wirefence(t, issuer(url), "rows", "declare", "Job", "--table", "jobs", "--key", "tenant,id", "--claim", "claim", "--while", running).expect(t, 1, "the name of a class must have")
	good := []string{"--table", "jobs", "--key", "tenant, id", "--claim", "claim", "--while", running}
	declare(append(good, "--shadow")...).expect(t, 0).says(t, "rows of jobs judge fences of job in shadow mode")
	wirefence(t, issuer(url), "check", "job(acme:17)=6").expect(t, 0)
	declare(good...).expect(t, 0).says(t, "rows of jobs judge fences of job\n")
	wirefence(t, issuer(url), "check", "job(acme:17)=5").expect(t, 0).says(t, "job(acme:17)=5 is current")
	wirefence(t, issuer(url), "check", "job(acme:17)=6").expect(t, 10, "stale claim for row job(acme:17)", "DETAIL: Row job(acme:17): presented claim 6, but it is under another claim.", "HINT: Stop this work")
	wirefence(t, issuer(url), "check", "job(17)=6").expect(t, 10, "DETAIL: A key of class job is not of the form text:integer.")
	wirefence(t, issuer(url), "check", "jobs(17)=6").expect(t, 10, `unknown class of rows "jobs"`, "HINT: The owner of the table declares its rows: wirefence rows declare jobs")

	stack.Exec(t, url, "INSERT INTO wirefence.history (kind, resource, count) VALUES ('refusal', 'job()', 3)", "ALTER TABLE jobs RENAME claim TO claimed")
	for _, list := range [][]string{{"rows", "list"}, {"status", "--rows"}} {
		wirefence(t, issuer(url), list...).expect(t, 0).says(t, "CLASS", "job", "public.jobs", "tenant,id", "(state = 'running'::text)", "enforce", "declare it again")
		r := wirefence(t, issuer(url), append(list, "-o", "json")...).expect(t, 0)
		var rows []struct {
			Class, Table, Claim, Mode, By, Since, Fault string
			Key                                         []string
			Refused                                     int `json:"refused_last_hour"`
			LetPass                                     int `json:"let_pass_last_hour"`
		}
		if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil {
			t.Fatalf("%v:\n%s", err, r.stdout)
		}
		if len(rows) != 1 || rows[0].Class != "job" || rows[0].Claim != "claim" || rows[0].By != "postgres" || rows[0].Since == "" || len(rows[0].Key) != 2 ||
			rows[0].Mode != "enforce" || rows[0].Refused != 3 || rows[0].LetPass != 1 || !strings.Contains(rows[0].Fault, "declare it again") {
			t.Errorf("got %+v", rows)
		}
	}
	wirefence(t, issuer(url), "check", "job(acme:17)=5").expect(t, exitUnavailable, "column t.claim does not exist")
	stranger := issuer(strings.Replace(url, "postgres@", "stranger@", 1))
	wirefence(t, stranger, append([]string{"rows", "declare", "job"}, good...)...).expect(t, 1, "only the owner of table public.jobs may declare its rows", "GRANT postgres TO stranger", "Set WIREFENCE_OWNER_URL")
	wirefence(t, stranger, "rows", "drop", "job").expect(t, 1, `permission denied to drop class "job"`, "GRANT postgres TO stranger")
	wirefence(t, issuer(url), "rows", "drop", "job").expect(t, 0).says(t, "class job is not declared any more")
	wirefence(t, issuer(url), "rows", "drop", "job").expect(t, 1, `class "job" is not declared`, "HINT: wirefence rows list lists the classes.")
	wirefence(t, issuer(url), "status", "--rows").expect(t, 0).says(t, "No rows are declared.")
}

// A revoked holder loses the lease in the store, too, and gets the reason.
func TestRevokeFreesTheLease(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{"postgres": nil, "redis": {"WIREFENCE_REDIS_URL=" + redisServer(t).URL()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, resource := database(t, true), "revoked-"+name
			settings := append(issuer(url), settings...)
			holder := start(t, append(settings, "WIREFENCE_TTL=10m", "WIREFENCE_HOLDER=worker-A"), "lock", resource, "--", "sh", "-c", "echo working; exec sleep 600")
			holder.stdout.Await(t, "working")
			r := wirefence(t, settings, "revoke", resource).expect(t, 0)
			r.says(t, "tokens below 2 are stale", "locked out: worker-A/", ", with token 1", "the lease of worker-A/")
			if r.stderr != "" {
				t.Errorf("standard error has %s", r.stderr)
			}
			wirefence(t, settings, "lock", resource, "--", "sh", "-c", "echo $WIREFENCE_TOKEN").expect(t, 0).says(t, "3")
		})
	}
}

// A store that is away doesn't keep the holder in.
func TestRevokeWithoutTheStore(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B')")
	wirefence(t, append(issuer(url), "WIREFENCE_REDIS_URL=redis://127.0.0.1:1"), "revoke", "orders").
		expect(t, 0, "the lease was not freed", "127.0.0.1:1").says(t, "tokens below 35 are stale", "locked out: worker-B")
	wirefence(t, append(issuer(url), "WIREFENCE_REDIS_URL=redis://h", "WIREFENCE_ETCD_URL=etcd://h"), "revoke", "orders").expect(t, 2, "both")
}

// migrate --wait waits for a server that is down, as a pod's network is in its first second, and for
// nothing that doesn't pass by itself.
func TestMigrateWaitsForAServer(t *testing.T) {
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{})).EndWith(t)
	setting := []string{"WIREFENCE_DATABASE_URL=" + pg.URL("postgres")}
	wirefence(t, []string{"WIREFENCE_DATABASE_URL=" + pg.URL("nobodys")}, "migrate", "--wait=1h").expect(t, 1, "does not exist")
	pg.Kill()
	wirefence(t, setting, "migrate").expect(t, 1, "refused")
	wirefence(t, setting, "migrate", "--wait=10ms").expect(t, 1, "refused")
	waits := start(t, setting, "migrate", "--wait=1h")
	stack.Eventually(t, "it waits", func() bool { return strings.Contains(waits.stderr.String(), "waiting for the server for 1h") })
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := waits.end(t); r.status != 0 || strings.Count(r.stderr, "waiting") != 1 {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
}

// The owner's connection is another setting than the issuer's.
func TestOwnersConnection(t *testing.T) {
	t.Parallel()
	bare := database(t, false)
	owner, nowhere := "WIREFENCE_OWNER_URL=", "WIREFENCE_DATABASE_URL=postgres://127.0.0.1:1/x"
	wirefence(t, []string{owner + bare, nowhere}, "migrate").expect(t, 0)
	stack.Exec(t, bare, "CREATE TABLE t (id int)")
	wirefence(t, []string{owner + bare, nowhere}, "protect", "t", "--resource", "orders").expect(t, 0)
	wirefence(t, []string{owner + bare, nowhere}, "unprotect", "t").expect(t, 0)
	wirefence(t, []string{owner + bare}, "status").expect(t, 2, "WIREFENCE_DATABASE_URL is not set")
	wirefence(t, []string{owner + "not a url"}, "migrate").expect(t, 2, "WIREFENCE_OWNER_URL")
	wirefence(t, []string{owner + bare + "&options=-cdefault_transaction_read_only%3Don"}, "protect", "t", "--resource=x").
		expect(t, 1, "WIREFENCE_OWNER_URL leads to a standby server")
}

// An issuer is never advised to become the owner: with that it could change what refuses it.
func TestMigratingAsTheIssuer(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE ROLE issuer_only LOGIN IN ROLE wirefence_issuer", "CREATE TABLE t (id int)")
	as := strings.Replace(url, "postgres@", "issuer_only@", 1)
	const advice = "use another, owning role: set WIREFENCE_OWNER_URL"
	r := wirefence(t, issuer(as), "migrate").expect(t, 1, `role "issuer_only" has wirefence_issuer`, advice)
	if strings.Contains(r.stderr, "GRANT") {
		t.Errorf("it is advised to grant: %s", r.stderr)
	}
	wirefence(t, issuer(as), "protect", "t", "--resource", "orders").expect(t, 1, "Set WIREFENCE_OWNER_URL to a role that has the right.")
	stack.Exec(t, url, "UPDATE wirefence.applied_version SET version = version + 2",
		"CREATE OR REPLACE FUNCTION wirefence.schema_version() RETURNS int LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'SELECT version FROM wirefence.applied_version'")
	for _, url := range []string{as, url} {
		r := wirefence(t, issuer(url), "migrate").expect(t, exitConfig, "upgrade the binary")
		if strings.Contains(r.stderr, "WIREFENCE_OWNER_URL") || strings.Contains(r.stderr, "GRANT") {
			t.Errorf("it speaks of rights: %s", r.stderr)
		}
	}
	stack.Exec(t, url, "UPDATE wirefence.applied_version SET version = version - 1")
	wirefence(t, issuer(as), "migrate").expect(t, 0).says(t, "nothing to apply", "one above this binary's")
}
