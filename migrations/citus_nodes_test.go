package migrations_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// citusNodes is a database of which each node has the schema, as each node sees it: the
// coordinator and two workers. The current token of orders is 34.
type citusNodes struct {
	cluster *servers.Citus
	at      []database
}

func TestOnTheNodesOfCitus(t *testing.T) {
	t.Parallel()
	n := citusNodes{cluster: stack.Citus(t, 2, nil)}
	for _, db := range stack.OnCitusNodes(t, n.cluster, "CREATE TABLE sharded (id int PRIMARY KEY, token int)", "SELECT create_distributed_table('sharded', 'id')") {
		n.at = append(n.at, database{db.Postgres, db.Name})
		db.Exec(t, "SET citus.enable_ddl_propagation = off", "CREATE ROLE app LOGIN", "CREATE ROLE issuer LOGIN", "GRANT wirefence_issuer TO issuer", "RESET citus.enable_ddl_propagation")
	}
	for _, part := range []struct {
		name string
		test func(*testing.T, citusNodes)
	}{
		{"migrated", nodesMigrated}, {"each node judges", eachNodeJudges}, {"each node takes lock clients", eachNodeGrants}, {"policies", policiesOfNodes},
		{"holders on each node", holdersOfNodes}, {"an attempt that a worker misses", missedByAWorker}, {"a commit that another node has still to carry out", unsettledCommitOfAWorker},
		{"a node that comes and goes", comingNode},
		{"uninstalled", nodesUninstalled},
	} {
		t.Run(part.name, func(t *testing.T) {
			token := n.at[0].nextToken(t)
			n.at[0].seal(t, "orders", token)
			part.test(t, n)
		})
	}
}

// nextToken is one above the last token of orders.
func (db database) nextToken(t *testing.T) int64 {
	t.Helper()
	return look[int64](t, db, "SELECT coalesce(max(last_token), 33) + 1 FROM wirefence.resource_locks WHERE resource_id = 'orders'")
}

func nodesMigrated(t *testing.T, n citusNodes) {
	for i, db := range n.at {
		admin := db.admin(t)
		wantCode(t, exec(admin, "BEGIN; SELECT wirefence.propagate('off'); CREATE TABLE local (id int PRIMARY KEY, claim bigint); "+
			"SELECT wirefence.declare_rows('local', 'local', '{id}', 'claim', 'claim > 0')"), "0A000")
		mustExec(t, admin, "ROLLBACK")
		wantInstalled(t, admin)
		unfit := (*migrations.UnfitError)(nil)
		if err := (migrations.Options{Citus: migrations.CitusCoordinator}).Apply(t.Context(), admin, nil); !errors.As(err, &unfit) {
			t.Errorf("node %d goes back: %v", i, err)
		}
	}
}

// The same token is current on each node. None counts that no seal has granted.
func eachNodeJudges(t *testing.T, n citusNodes) {
	last := n.at[0].lastToken(t, "orders")
	for _, db := range n.at {
		app := db.as(t, "app")
		mustExec(t, app, fmt.Sprintf("SELECT wirefence.check('orders=%d')", last))
		hold(t, app, fmt.Sprintf("orders=%d", last))
		mustExec(t, app, unhold)
		for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
			wantCode(t, exec(app, fmt.Sprintf("BEGIN ISOLATION LEVEL %s; SELECT wirefence.check('orders=%d')", level, last-1)), "WF001")
			mustExec(t, app, fmt.Sprintf("ROLLBACK; BEGIN ISOLATION LEVEL %s; SELECT wirefence.check('orders=%d'); COMMIT", level, last))
		}
		wantCode(t, exec(app, fmt.Sprintf("SELECT wirefence.check('orders=%d')", last+1)), "WF003")
		wantCode(t, exec(app, "SELECT wirefence.check('unknown=1')"), "WF003")
	}
	// A resource that any use would advance elsewhere is no exception.
	mustExec(t, n.at[0].as(t, "issuer"), "SELECT wirefence.declare_resource('used', 'a test', advance => 'use')")
	for _, db := range n.at {
		wantCode(t, exec(db.as(t, "app"), "SELECT wirefence.check('used=1')"), "WF003")
	}
}

func eachNodeGrants(t *testing.T, n citusNodes) {
	for i, db := range n.at {
		issuer, resource := db.as(t, "issuer"), fmt.Sprintf("lease:%d", i)
		token := value[int64](t, issuer, "SELECT token FROM wirefence.acquire($1, 'worker-a', '1 min', 'grant-a')", resource)
		for _, other := range n.at {
			mustExec(t, other.as(t, "app"), fmt.Sprintf("SELECT wirefence.check('%s=%d')", resource, token))
			if by := look[string](t, other, "SELECT held_by FROM wirefence.acquire($1, 'worker-b', '1 min')", resource); by != "worker-a" {
				t.Errorf("the lease is held by %q", by)
			}
			if !lookAs[bool](t, other, "issuer", "SELECT wirefence.renew($1, 'grant-a', '1 min')", resource) {
				t.Error("the lease isn't renewed")
			}
		}
		if !value[bool](t, issuer, "SELECT wirefence.release($1, 'grant-a')", resource) || value[bool](t, issuer, "SELECT wirefence.release($1, 'grant-a')", resource) {
			t.Error("the lease isn't released once")
		}
		revoked := value[int64](t, issuer, "SELECT wirefence.revoke($1)", resource)
		for _, other := range n.at {
			if last := other.lastToken(t, resource); last != revoked || revoked <= token {
				t.Errorf("behind the revocation of %d the last token is %d, not %d", token, last, revoked)
			}
			wantCode(t, exec(other.as(t, "app"), fmt.Sprintf("SELECT wirefence.check('%s=%d')", resource, token)), "WF001")
		}
		// A session can't wait for itself.
		holder := db.as(t, "issuer")
		mustExec(t, holder, fmt.Sprintf("BEGIN; SELECT wirefence.check('%s=%d')", resource, revoked))
		if i > 0 {
			wantCode(t, exec(holder, "SELECT wirefence.revoke($1)", resource), "55006")
		}
		mustExec(t, holder, "ROLLBACK")
		// Errors are those of the coordinator.
		wantCode(t, exec(issuer, "SELECT wirefence.revoke('nothing')"), "WF008")
		wantCode(t, exec(issuer, "SELECT wirefence.acquire('a', 'b', '-1 min')"), "22023")
		wantCode(t, exec(db.as(t, "app"), "SELECT wirefence.acquire('a', 'b', '1 min')"), "42501")
		wantCode(t, exec(db.as(t, "app"), "SELECT wirefence.at_coordinator('revoke', 'orders')"), "42501")
		wantCode(t, exec(issuer, "SELECT wirefence.at_coordinator('revoke', 'orders')"), "42501")
	}
}

// The coordinator sets policies, and the others have them at once. Uses are counted there alone.
func policiesOfNodes(t *testing.T, n citusNodes) {
	last := n.at[0].lastToken(t, "orders")
	issuer := n.at[0].as(t, "issuer")
	mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'a test', preempt_after => 'never', mode => 'shadow')")
	for _, db := range n.at {
		if !look[bool](t, db, "SELECT preempt_after IS NULL AND mode = 'shadow' FROM wirefence.resource_locks WHERE resource_id = 'orders'") {
			t.Error("a node has another policy")
		}
	}
	mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'a test', preempt_after => '5 s', mode => 'enforce', reuse => 'once')")
	fence := fmt.Sprintf("SELECT wirefence.check('orders=%d')", last)
	for _, worker := range n.at[1:] {
		wantCode(t, exec(worker.as(t, "app"), fence), "55000")
		wantCode(t, exec(worker.as(t, "issuer"), "SELECT wirefence.set_resource('orders', 'a test', reuse => 'allow')"), "55000")
		wantCode(t, exec(worker.as(t, "issuer"), "SELECT wirefence.declare_resource('declared', 'a test')"), "55000")
	}
	mustExec(t, n.at[0].as(t, "app"), fence)
	wantCode(t, exec(n.at[0].as(t, "app"), fence), "WF005")
	mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'a test', reuse => 'allow')")
}

// A takeover waits for holders on each node, and ends them after preempt_after, which bounds all of
// it; a revocation ends them at once.
func holdersOfNodes(t *testing.T, n citusNodes) {
	for i, db := range n.at {
		for _, ends := range []string{"commit", "preempt_after", "revoke"} {
			last := n.at[0].lastToken(t, "orders")
			mustExec(t, n.at[0].as(t, "issuer"), "SELECT wirefence.set_resource('orders', 'a test', preempt_after => $1)", map[string]string{"commit": "60 s", "preempt_after": "1 s", "revoke": "60 s"}[ends])
			holder := db.as(t, "app")
			mustExec(t, holder, fmt.Sprintf("BEGIN; SELECT wirefence.check('orders=%d')", last))
			began := time.Now()
			takes := fmt.Sprintf("SELECT wirefence.seal('orders', %d, 'worker-b')", last+1)
			if ends == "revoke" {
				takes = "SELECT wirefence.revoke('orders')"
			}
			taken := make(chan error, 1)
			taker := n.at[(i+1)%len(n.at)].as(t, "issuer")
			go func() { taken <- exec(taker, takes) }()
			if ends == "commit" {
				stack.Eventually(t, "the takeover waits", func() bool {
					return look[bool](t, db, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)")
				})
				mustExec(t, holder, "COMMIT")
				wantCode(t, <-taken, "")
			} else {
				wantCode(t, <-taken, "")
				if err := exec(holder, "COMMIT"); err == nil {
					t.Errorf("node %d, %s: the holder commits", i, ends)
				}
			}
			t.Logf("node %d, %s: the takeover took %v", i, ends, time.Since(began))
			wantCode(t, exec(db.as(t, "app"), fmt.Sprintf("SELECT wirefence.check('orders=%d')", last)), "WF001")
		}
	}
	mustExec(t, n.at[0].as(t, "issuer"), "SELECT wirefence.set_resource('orders', 'a test', preempt_after => '5 s')")
}

// While a worker doesn't answer there is no grant. Another may have recorded the token, and then
// no lower one is granted.
func missedByAWorker(t *testing.T, n citusNodes) {
	last, issuer := n.at[0].lastToken(t, "orders"), n.at[0].as(t, "issuer")
	n.cluster.Links[1].Cut()
	wantSaid(t, "sealing without a worker", exec(issuer, "SELECT wirefence.seal('orders', $1, 'worker-b')", last+10), "55P03", "all workers answer")
	n.cluster.Links[1].Restore()
	if is := n.at[0].lastToken(t, "orders"); is != last {
		t.Errorf("the coordinator has token %d", is)
	}
	if is := n.at[1].lastToken(t, "orders"); is != last+10 {
		t.Fatalf("the worker that answered has token %d", is)
	}
	if value[bool](t, issuer, "SELECT wirefence.seal('orders', $1, 'worker-b')", last+5) {
		t.Error("a token is granted that one node accepts no more")
	}
	for i, db := range n.at {
		if is := db.lastToken(t, "orders"); is != last+10 {
			t.Errorf("node %d has token %d", i, is)
		}
	}
	n.at[0].seal(t, "orders", last+11)
}

// A transaction of a worker's is committed and confirmed, while another node can't be reached for
// the last step. No grant counts before that step is made.
func unsettledCommitOfAWorker(t *testing.T, n citusNodes) {
	worker, last := n.at[1], n.at[0].lastToken(t, "orders")
	admin, writer := worker.admin(t), worker.admin(t)
	mustExec(t, admin, "ALTER SYSTEM SET citus.recover_2pc_interval = -1")
	mustExec(t, writer, fmt.Sprintf("SET synchronous_commit = on; SET wirefence.token = 'orders=%d'", last))
	mustExec(t, writer, "BEGIN; SELECT wirefence.check(); INSERT INTO sharded SELECT i, 34 FROM generate_series(1, 100) AS i")
	worker.cutBetweenPhases(t, writer, n.cluster.Links[1])
	prepared := func() int {
		return look[int](t, n.at[2], "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
	}
	if prepared() == 0 {
		t.Fatal("the other node has no prepared transaction")
	}
	issuer := n.at[0].as(t, "issuer")
	wantCode(t, exec(issuer, "SELECT wirefence.seal('orders', $1, 'worker-b')", last+1), "55P03")
	n.cluster.Links[1].Restore()
	n.at[0].seal(t, "orders", last+1)
	if rows := look[int](t, n.at[0], "SELECT count(*) FROM sharded"); rows != 100 || prepared() > 0 {
		t.Errorf("behind the grant %d rows are visible, and %d transactions prepared", rows, prepared())
	}
}

// A node that is added gets no grant by itself, and its tokens are void once it was removed.
func comingNode(t *testing.T, n citusNodes) {
	last, issuer, admin := n.at[0].lastToken(t, "orders"), n.at[0].as(t, "issuer"), n.at[0].admin(t)
	third := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: n.cluster.Coordinator.Major,
		Settings: map[string]string{"shared_preload_libraries": "citus", "max_prepared_transactions": "100", "citus.local_hostname": "127.0.0.1"}})).EndWith(t)
	node := database{third, n.at[0].name}
	mustExec(t, database{third, "postgres"}.admin(t), "CREATE DATABASE "+node.name)
	mustExec(t, node.admin(t), "CREATE EXTENSION citus")
	mustExec(t, admin, "SELECT citus_add_node('127.0.0.1', $1)", third.Port)
	wantSaid(t, "sealing with a node that has no schema", exec(issuer, "SELECT wirefence.seal('orders', $1, 'worker-b')", last+1), "55P03", "wirefence migrate --citus nodes")
	unready := "SELECT coalesce(wirefence.unready_workers(), '')"
	if got := value[string](t, issuer, unready); !contains(got, fmt.Sprint("Worker 127.0.0.1:", third.Port)) || !contains(got, `schema "wirefence" does not exist`) {
		t.Errorf("with a node that has no schema: %q", got)
	}
	if err := (migrations.Options{Citus: migrations.CitusNodes}).Apply(t.Context(), node.admin(t), nil); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, issuer, unready); got != "" {
		t.Errorf("with schemas everywhere: %q", got)
	}
	mustExec(t, node.admin(t), "UPDATE wirefence.applied_version SET version = version - 1")
	if got := value[string](t, issuer, unready); !contains(got, "its schema has version") {
		t.Errorf("with an older schema at a node: %q", got)
	}
	mustExec(t, node.admin(t), "UPDATE wirefence.applied_version SET version = version + 1")
	current := func(token int64) string { return fmt.Sprintf("SELECT wirefence.check('orders=%d')", token) }
	wantCode(t, exec(node.admin(t), current(last)), "WF003")
	n.at[0].seal(t, "orders", last+1)
	mustExec(t, node.admin(t), current(last+1))
	mustExec(t, admin, "SELECT citus_remove_node('127.0.0.1', $1)", third.Port)
	n.at[0].seal(t, "orders", last+2)
	mustExec(t, admin, "SELECT citus_add_node('127.0.0.1', $1)", third.Port)
	wantCode(t, exec(node.admin(t), current(last+1)), "WF001")
	n.at[0].seal(t, "orders", last+3)
	mustExec(t, node.admin(t), current(last+3))
	mustExec(t, admin, "SELECT citus_remove_node('127.0.0.1', $1)", third.Port)
}

// The way back to tokens at the coordinator begins at the workers.
func nodesUninstalled(t *testing.T, n citusNodes) {
	last := n.at[0].lastToken(t, "orders")
	for _, worker := range n.at[1:] {
		if err := migrations.Uninstall(t.Context(), worker.admin(t)); err != nil {
			t.Fatal(err)
		}
		wantCode(t, exec(n.at[0].as(t, "issuer"), "SELECT wirefence.seal('orders', $1, 'worker-b')", last+1), "55P03")
	}
	if err := migrations.Uninstall(t.Context(), n.at[0].admin(t)); err != nil {
		t.Fatal(err)
	}
	apply(t, n.at[0].admin(t))
	if !value[bool](t, n.at[0].admin(t), "SELECT wirefence.seal('orders', 1, 'worker-b')") || look[bool](t, n.at[0], "SELECT wirefence.citus_group() IS NOT NULL") {
		t.Error("the coordinator doesn't grant by itself")
	}
	unfit := (*migrations.UnfitError)(nil)
	if err := migrations.Apply(t.Context(), n.at[1].admin(t), nil); !errors.As(err, &unfit) {
		t.Errorf("migrating a worker: %v", err)
	}
}
