// Package citustest tests fencing from end to end on Citus, with a coordinator and two workers.
// Its tests run where Citus is installed. Each has a database of its own on all nodes; those that
// cut, stop or count have a cluster of their own.
package citustest

import (
	"context"
	"flag"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// shared is the cluster of the tests that break nothing.
var shared struct {
	sync.Mutex
	*servers.Citus
}

var settings = map[string]string{"track_commit_timestamp": "on", "synchronous_commit": "on"}

func TestMain(m *testing.M) {
	flag.Parse()
	status := m.Run()
	if shared.Citus != nil {
		shared.Close()
	}
	os.Exit(status)
}

func cluster(t *testing.T) *servers.Citus {
	t.Helper()
	stack.NeedsCitus(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.Citus == nil {
		c, err := servers.StartCitus(context.Background(), 2, settings)
		if err != nil {
			t.Fatal(err)
		}
		shared.Citus = c
	}
	return shared.Citus
}

// world is a database of a test's own, at the coordinator, with a proxy before a node. The current
// token of orders is 34.
type world struct {
	*stack.DB
	node    *stack.DB // what the proxy is before
	citus   *servers.Citus
	network *servers.Link // between proxy and node
	proxy   string
}

// objects are what the tests write to. jobs and cells are on both workers, copies is on each
// node, and notes at the coordinator alone. The clients are app's: a takeover can't end the
// sessions of a superuser.
var objects = []string{
	"do $$ begin if to_regrole('app') is null then create role app login; end if; end $$",
	"grant create on schema public to app",
	"create table jobs (id bigint generated always as identity, token bigint, note text)",
	"select create_distributed_table('jobs', 'id')",
	"create table cells (id bigint primary key, n int not null)",
	"select create_distributed_table('cells', 'id')",
	"insert into cells select i, 0 from generate_series(1, 50) as i",
	"create table copies (id bigint primary key, n int not null)",
	"select create_reference_table('copies')",
	"insert into copies select i, 0 from generate_series(1, 3) as i",
	"create table notes (token bigint)",
	"grant all on jobs, copies to app",
	"grant all on notes to app",
	"alter table cells owner to app",
	"create function writes(wanted bigint) returns void language plpgsql as $$ begin insert into jobs (token) values (wanted); end $$",
	"create procedure committing(wanted bigint) language plpgsql as $$ begin insert into jobs (token) values (wanted); commit; insert into jobs (token) values (wanted); end $$",
}

// seal seals the first grant, again if other tests' nodes don't answer just now.
func seal(t *testing.T, db *stack.DB) {
	t.Helper()
	conn := db.Direct(t)
	stack.Eventually(t, "the first grant is sealed", func() bool {
		_, err := conn.Exec(t.Context(), "select wirefence.seal('orders', 34, 'a holder')")
		if err != nil && stack.State(err) != "55P03" {
			t.Fatal(err)
		}
		return err == nil
	})
}

// newWorld has a proxy before the coordinator, which has the tokens.
func newWorld(t *testing.T, c *servers.Citus, hold time.Duration) *world {
	t.Helper()
	db := stack.OnCitus(t, c, objects...)
	seal(t, db)
	return before(t, c, db, db, hold)
}

// onNodes has a proxy before each node, the coordinator first. Each has the tokens.
func onNodes(t *testing.T, c *servers.Citus, hold time.Duration) (all []*world) {
	t.Helper()
	nodes := stack.OnCitusNodes(t, c, objects...)
	seal(t, nodes[0])
	for _, node := range nodes {
		all = append(all, before(t, c, nodes[0], node, hold))
	}
	return all
}

// everywhere runs a test before the coordinator, where that has the tokens, and before a worker,
// where all nodes have them.
func everywhere(t *testing.T, c *servers.Citus, hold time.Duration, test func(t *testing.T, w *world)) {
	t.Run("at the coordinator", func(t *testing.T) { test(t, newWorld(t, c, hold)) })
	t.Run("at a worker", func(t *testing.T) { test(t, onNodes(t, c, hold)[len(c.Workers)]) })
}

func before(t *testing.T, c *servers.Citus, coordinator, node *stack.DB, hold time.Duration) *world {
	t.Helper()
	network := stack.Started(servers.StartLink(node.Addr())).EndWith(t)
	w := &world{DB: coordinator, node: node, citus: c, network: network}
	w.proxy = stack.Serve(t, proxy.Options{Upstream: "postgres://" + network.Addr() + "/", DatabaseURL: node.URL(node.Name), Hold: hold, DrainTimeout: time.Second}).Addr
	return w
}

// fenced logs in through the proxy with a fence in the startup packet; "" is none.
func (w *world) fenced(t *testing.T, fence string) *stack.Client {
	t.Helper()
	if fence == "" {
		return stack.Login(t, w.proxy, w.Name, "user", "app")
	}
	return stack.Login(t, w.proxy, w.Name, "user", "app", "options", "-c wirefence.token="+fence)
}

// atWorker reports whether the proxy is before a worker.
func (w *world) atWorker() bool { return w.node.Port != w.Port }

// busy logs in and waits until the session holds its fence.
func (w *world) busy(t *testing.T, fence string) *stack.Client {
	t.Helper()
	c := w.fenced(t, fence)
	stack.Eventually(t, "the session holds", func() bool {
		c.Must("select 1")
		pid, _ := c.Key()
		return stack.Value[bool](t, w.node, "select exists(select from pg_locks where pid = $1 and locktype = 'advisory' and objsubid = 2)", int32(pid))
	})
	return c
}

// rowsOf is how many rows of jobs were written with a token.
func (w *world) rowsOf(t *testing.T, token int64) int {
	t.Helper()
	return stack.Value[int](t, w.node, "select count(*) from jobs where token = $1", token)
}
