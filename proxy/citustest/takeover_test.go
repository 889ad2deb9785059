package citustest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// busyWrites are what busy writers send, in turn.
var busyWrites = []func(c *stack.Client, token int64) error{
	func(c *stack.Client, token int64) error {
		return c.Extended("insert into jobs (token) values ($1)", fmt.Sprint(token))
	},
	func(c *stack.Client, token int64) error {
		return c.Simple(fmt.Sprintf("insert into jobs (token) select %d from generate_series(1, 8)", token))
	},
	func(c *stack.Client, token int64) error {
		insert := stack.Unnamed("insert into jobs (token) values ($1), ($1)", fmt.Sprint(token))
		return c.Batch(append(append([]pgproto3.FrontendMessage{}, insert...), insert...)...)
	},
	func(c *stack.Client, token int64) error {
		var all []pgproto3.FrontendMessage
		for _, sql := range []string{"begin", fmt.Sprintf("insert into jobs (token) values (%d)", token), fmt.Sprintf("insert into jobs (token) values (%d)", token), "commit", fmt.Sprintf("insert into jobs (token) values (%d)", token)} {
			all = append(all, stack.Unnamed(sql)...)
		}
		return c.Batch(all...)
	},
}

// While writers are busy, two holders take the lease from each other again and again, and get no
// token twice. Each node's write-ahead log has no write with an older token behind a grant, and all
// that was written before it was visible when it returned. Where all nodes have the tokens, writers
// and holders are on any of them.
func TestTakeoversAgainstBusyWriters(t *testing.T) {
	c := cluster(t)
	lasting := 3 * time.Second
	if !testing.Short() {
		lasting = 5 * time.Minute
	}
	for way, hold := range map[string]time.Duration{"checked": -1, "held": 50 * time.Millisecond} {
		t.Run(way+" at the coordinator", func(t *testing.T) { takeOverBusyWriters(t, []*world{newWorld(t, c, hold)}, lasting) })
		t.Run(way+" on all nodes", func(t *testing.T) { takeOverBusyWriters(t, onNodes(t, c, hold), lasting) })
	}
}

func takeOverBusyWriters(t *testing.T, worlds []*world, lasting time.Duration) {
	logs := openLogs(t, worlds[0])
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	end := time.Now().Add(lasting)
	var running sync.WaitGroup
	var current, wrote, refused atomic.Int64
	current.Store(34)
	for i := range 4 {
		running.Go(func() {
			for ctx.Err() == nil {
				mine := current.Load()
				session := worlds[i%len(worlds)].fenced(t, fmt.Sprintf("orders=%d", mine))
				for ctx.Err() == nil {
					switch state := stack.State(busyWrites[rand.IntN(len(busyWrites))](session, mine)); state {
					case "":
						wrote.Add(1)
						continue
					case "WF001", "57P01": // or ended, since it took too long
						refused.Add(1)
					default:
						t.Errorf("a writer got %s", state)
					}
					break
				}
				session.Close()
			}
		})
	}
	var granted sync.Mutex
	visible := map[int64]int{} // by token, when the next one was granted
	var slowest time.Duration
	for range 2 {
		var nodes []*pgx.Conn
		for _, w := range worlds {
			nodes = append(nodes, w.node.Direct(t))
		}
		running.Go(func() {
			for ctx.Err() == nil {
				began, at := time.Now(), nodes[rand.IntN(len(nodes))]
				var token *int64
				var grant *string
				if err := at.QueryRow(t.Context(), "select token, grant_id from wirefence.acquire('orders', 'a holder', '1 minute')").Scan(&token, &grant); err != nil {
					t.Error(err)
					stop()
					return
				}
				if token == nil { // the other has it
					time.Sleep(time.Millisecond)
					continue
				}
				granted.Lock()
				logs.granted(t, *token)
				former := current.Swap(*token)
				if _, twice := visible[former]; twice || *token <= former {
					t.Errorf("token %d was granted behind %d", *token, former)
				}
				visible[former] = worlds[rand.IntN(len(worlds))].rowsOf(t, former)
				slowest = max(slowest, time.Since(began))
				if len(visible) > 2 && time.Now().After(end) {
					stop()
				}
				granted.Unlock()
				time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond) // writers write
				stack.MustExec(t, at, "select wirefence.release('orders', $1)", grant)
			}
		})
	}
	running.Wait()
	written := logs.read(t)
	for token, n := range visible {
		if written[token] != n {
			t.Errorf("behind the grant of the next token %d rows of token %d were visible, and %d later", n, token, written[token])
		}
	}
	if wrote.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d writes were made, and %d refused", wrote.Load(), refused.Load())
	}
	t.Logf("%d takeovers, the slowest in %v; %d writes, %d refused", len(visible), slowest, wrote.Load(), refused.Load())
}

// takeOver seals the next token, and returns how long that took.
func (w *world) takeOver(t *testing.T, token int64) time.Duration {
	t.Helper()
	began := time.Now()
	w.Seal(t, "orders", token)
	return time.Since(began)
}

// A holder that pauses in a transaction over several shards is ended after preempt_after, and its
// rows are on none of them.
func TestAPausedHolderIsEnded(t *testing.T) {
	c := cluster(t)
	t.Parallel()
	everywhere(t, c, time.Second, aPausedHolderIsEnded)
}

func aPausedHolderIsEnded(t *testing.T, w *world) {
	w.Exec(t, "update wirefence.resource_locks set preempt_after = '1 s'")
	s := w.fenced(t, "orders=34")
	s.Must("begin", "insert into jobs (token) select 34 from generate_series(1, 20)")
	if took := w.takeOver(t, 35); took < time.Second || took > 5*time.Second {
		t.Errorf("the takeover took %v", took)
	}
	if err := s.Simple("commit"); err == nil {
		t.Error("a transaction that was ended commits")
	}
	if n := w.rowsOf(t, 34); n > 0 {
		t.Errorf("%d of its rows count", n)
	}
}

// The proxy, or the network before the coordinator, stands still while a session holds. The
// takeover ends that session long before preempt_after.
func TestAFrozenHolderIsEnded(t *testing.T) {
	c := cluster(t)
	t.Parallel()
	everywhere(t, c, time.Second, aFrozenHolderIsEnded)
}

func aFrozenHolderIsEnded(t *testing.T, w *world) {
	w.Exec(t, "update wirefence.resource_locks set preempt_after = null")
	s := w.busy(t, "orders=34")
	s.Must("insert into jobs (token) values (34)")
	w.network.Hold()
	if took := w.takeOver(t, 35); took > 10*time.Second { // without that, it would last for ever
		t.Errorf("the takeover took %v", took)
	}
	s.Send(&pgproto3.Query{String: "insert into jobs (token) values (34)"})
	w.network.Restore()
	_ = s.End()
	if n := w.rowsOf(t, 34); n != 1 {
		t.Errorf("%d rows of the former token count, not the one before the takeover", n)
	}
}

// A worker that dies fails the writes to its shards. Nobody can know what it had still to carry
// out, so there is no grant before it is back.
func TestAWorkerDies(t *testing.T) {
	c := stack.Citus(t, 2, settings)
	t.Parallel()
	everywhere(t, c, time.Second, aWorkerDies)
}

func aWorkerDies(t *testing.T, w *world) {
	s := w.busy(t, "orders=34")
	const insert = "insert into jobs (token) select 34 from generate_series(1, 20)"
	s.Must(insert, "begin", insert)
	w.citus.Workers[0].Kill()
	if err := s.Simple("commit"); err == nil {
		t.Error("a commit without one of its workers succeeds")
	}
	if err := s.Simple(insert); err == nil {
		t.Error("a write without one of its workers succeeds")
	}
	var granted bool
	if err := w.Admin.QueryRow(t.Context(), "select wirefence.seal('orders', 35, 'worker-b')").Scan(&granted); granted || stack.State(err) != "55P03" {
		t.Errorf("the next token is granted: %v, %v", granted, err)
	}
	if err := w.citus.Workers[0].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Seal(t, "orders", 35)
	stack.WantState(t, s.Simple(insert), "WF001", "the former holder")
	if n := w.rowsOf(t, 34); n != 20 {
		t.Errorf("%d rows of the former token count, not the 20 before the worker died", n)
	}
	w.fenced(t, "orders=35").Must("insert into jobs (token) select 35 from generate_series(1, 20)")
}

// A worker's standby takes its place while a holder writes. The next grant counts there, too, and
// nothing of the former holder's shows behind it.
func TestAWorkerFailsOver(t *testing.T) {
	c := stack.Citus(t, 2, settings)
	t.Parallel()
	w := onNodes(t, c, time.Second)[2]
	const insert = "insert into jobs (token) select 34 from generate_series(1, 20)"
	rows := func() int { return stack.Value[int](t, w.DB, "select count(*) from jobs where token = 34") }
	w.busy(t, "orders=34").Must(insert)
	standby := stack.Started(c.Workers[0].StartStandby(t.Context())).EndWith(t)
	ended := make(chan string, 1)
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { // as an application that goes on for ever
		for writing.Err() == nil {
			conn, err := pgx.Connect(writing, strings.Replace(w.URLFor("app", w.Name), w.Addr(), w.proxy, 1)+"&options=-c%20wirefence.token%3Dorders%3D34")
			for err == nil {
				_, err = conn.Exec(writing, insert)
			}
			if conn != nil {
				_ = conn.Close(writing)
			}
			if stack.State(err) == "WF001" {
				ended <- "WF001"
				return
			}
		}
	}()
	before := rows()
	stack.Eventually(t, "it writes", func() bool { return rows() > before })
	c.Workers[0].Kill()
	promoted := &stack.DB{Postgres: standby, Name: w.Name, Admin: stack.Connect(t, standby.URL(w.Name))}
	promoted.Exec(t, "select pg_promote()")
	w.Exec(t, fmt.Sprintf("select citus_update_node(nodeid, '127.0.0.1', %d) from pg_dist_node where concat('127.0.0.1:', nodeport) = '%s'", standby.Port, c.Links[0].Addr()))
	w.DB.Admin = stack.Connect(t, w.URL(w.Name)) // the former one has a connection to the killed worker
	before = rows()
	stack.Eventually(t, "it writes again", func() bool { return rows() > before })
	_, err := promoted.Admin.Exec(t.Context(), "select wirefence.check('orders=34')")
	stack.WantState(t, err, "WF001", "at the promoted worker, a token of before")
	w.Seal(t, "orders", 35)
	visible := rows()
	if state := <-ended; state != "WF001" {
		t.Errorf("the former holder got %s", state)
	}
	promoted.Exec(t, "select wirefence.check('orders=35')", "insert into jobs (token) select 35 from generate_series(1, 20)")
	if n := rows(); n != visible {
		t.Errorf("%d rows of the former token were visible behind the grant, and %d later", visible, n)
	}
}

// A worker stands still with all that it was sent, as a frozen one does. No grant counts until it goes
// on, and the caller's own time limit ends the wait for it.
func TestAWorkerStandsStill(t *testing.T) {
	c := stack.Citus(t, 2, settings)
	t.Parallel()
	everywhere(t, c, time.Second, aWorkerStandsStill)
}

func aWorkerStandsStill(t *testing.T, w *world) {
	const insert = "insert into jobs (token) select 34 from generate_series(1, 20)"
	s := w.busy(t, "orders=34")
	s.Must(insert, "begin", insert)
	w.citus.Links[0].Hold()
	s.Send(&pgproto3.Query{String: "commit"}, &pgproto3.Query{String: insert})
	taker := w.Direct(t)
	_, err := taker.Exec(t.Context(), "set statement_timeout = '2 s'")
	if err == nil {
		_, err = taker.Exec(t.Context(), "select wirefence.seal('orders', 35, 'worker-b')")
	}
	if stack.State(err) != "57014" {
		t.Errorf("the takeover from a worker that stands still: %v", err)
	}
	w.citus.Links[0].Restore()
	began := time.Now()
	w.Seal(t, "orders", 35)
	visible := w.rowsOf(t, 34)
	t.Logf("behind the restoration the takeover took %v, and %d rows are there", time.Since(began), visible)
	s.Ready(2) // of what was sent ahead of the takeover
	stack.WantState(t, s.Simple(insert), "WF001", "the former holder")
	if n := w.rowsOf(t, 34); n != visible {
		t.Errorf("%d rows of the former token were visible behind the grant, and %d later", visible, n)
	}
	w.fenced(t, "orders=35").Must("insert into jobs (token) select 35 from generate_series(1, 20)")
}

// Shards move from worker to worker while the former holder writes and the next one takes over.
func TestShardsMove(t *testing.T) {
	c := stack.Citus(t, 2, settings)
	t.Parallel()
	everywhere(t, c, 50*time.Millisecond, shardsMove)
}

func shardsMove(t *testing.T, w *world) {
	w.Exec(t, "update wirefence.resource_locks set preempt_after = '30 s'") // writers wait for the move
	const move = `select citus_move_shard_placement(s.shardid, f.nodename, f.nodeport, n.nodename, n.nodeport, 'block_writes')
		from (select min(shardid) as shardid from pg_dist_shard where logicalrelid = 'jobs'::regclass) as s
		join pg_dist_shard_placement as f using (shardid)
		join pg_dist_node as n on n.groupid > 0 and n.nodeport <> f.nodeport`
	for token := int64(34); token < 38; token++ {
		s := w.fenced(t, fmt.Sprintf("orders=%d", token))
		moved := make(chan error, 1)
		mover := w.Direct(t)
		go func() {
			_, err := mover.Exec(t.Context(), move)
			moved <- err
		}()
		writing := make(chan string, 1)
		go func() {
			for {
				if state := stack.State(s.Simple(fmt.Sprintf("insert into jobs (token) select %d from generate_series(1, 8)", token))); state != "" {
					writing <- state
					return
				}
			}
		}()
		stack.Eventually(t, "it writes", func() bool { return w.rowsOf(t, token) > 0 })
		w.Seal(t, "orders", token+1)
		visible := w.rowsOf(t, token)
		if state := <-writing; state != "WF001" {
			t.Errorf("the former holder got %s", state)
		}
		if err := <-moved; err != nil {
			t.Error(err)
		}
		if n := w.rowsOf(t, token); n != visible {
			t.Errorf("%d rows of token %d were visible behind the grant, and %d later", visible, token, n)
		}
	}
}

// The coordinator ends a holder whose statement still runs on a worker, and can't tell the worker:
// the network is cut. No grant counts before that statement has ended, or it would be committed
// behind the grant.
func TestAStatementIsLeftOnAWorker(t *testing.T) {
	c := stack.Citus(t, 2, settings)
	t.Parallel()
	everywhere(t, c, time.Second, aStatementIsLeftOnAWorker)
}

func aStatementIsLeftOnAWorker(t *testing.T, w *world) {
	w.Exec(t, "update wirefence.resource_locks set preempt_after = '500 ms'")
	// The shard is on the first worker; a proxy before a worker is before another.
	id := stack.Value[int](t, w.DB, "select min(id) from cells join pg_dist_shard_placement as p on p.shardid = get_shard_id_for_distribution_column('cells', id) where concat('127.0.0.1:', p.nodeport) = $1", w.citus.Links[0].Addr())
	shard := stack.Value[string](t, w.DB, "select 'cells_' || get_shard_id_for_distribution_column('cells', $1::int)", id)
	worker := &stack.DB{Postgres: w.citus.Workers[0], Name: w.Name, Admin: stack.Connect(t, w.citus.Workers[0].URL(w.Name))}
	locking := &stack.DB{Postgres: worker.Postgres, Name: w.Name, Admin: worker.Direct(t)}
	locking.Exec(t, "set citus.enable_manual_changes_to_shards = on", "begin", "lock table "+shard+" in exclusive mode")
	s := w.busy(t, "orders=34")
	s.Send(&pgproto3.Query{String: fmt.Sprintf("update cells set n = 34 where id = %d", id)})
	const running = "select exists(select from pg_stat_activity where application_name like 'citus_internal%' and query like 'UPDATE%' and state = 'active')"
	stack.Eventually(t, "the statement runs on the worker", func() bool { return stack.Value[bool](t, worker, running) })
	w.citus.Links[0].Cut()
	var granted bool
	err := w.Admin.QueryRow(t.Context(), "select wirefence.seal('orders', 35, 'worker-b')").Scan(&granted)
	again := w.Admin.QueryRow(t.Context(), "select wirefence.seal('orders', 35, 'worker-b')").Scan(&granted)
	if granted || stack.State(err) != "55P03" || stack.State(again) != "55P03" {
		t.Errorf("the next token is granted: %v, %v, %v", granted, err, again)
	}
	w.citus.Links[0].Restore()
	if !stack.Value[bool](t, worker, running) {
		t.Fatal("the statement has ended")
	}
	if err := w.Admin.QueryRow(t.Context(), "select wirefence.seal('orders', 35, 'worker-b')").Scan(&granted); granted || stack.State(err) != "55P03" {
		t.Errorf("while the statement runs the next token is granted: %v, %v", granted, err)
	}
	locking.Exec(t, "commit")
	w.Seal(t, "orders", 35)
	before := stack.Value[int](t, w.DB, "select n from cells where id = $1", id)
	worker.Becomes(t, "false", strings.Replace(running, "select exists", "select (exists", 1)+")::text")
	if after := stack.Value[int](t, w.DB, "select n from cells where id = $1", id); after != before {
		t.Errorf("a write shows behind the grant")
	}
}
