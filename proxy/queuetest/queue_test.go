package queuetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/wirefence/wirefence/internal/stack"
)

// queue is what the tests know of one. The expressions are over a row of its table.
type queue struct {
	name  string
	page  string // the page's SQL that declares and guards
	table string
	key   string
	claim string
	while string

	install func(t *testing.T, w *world)
	command func(w *world) *exec.Cmd // a worker
	insert  func(w *world, n int) error
	// rescue lets other workers take the jobs that have been worked on for too long, as the queue
	// itself does it, or sooner.
	rescue func(ctx context.Context, w *world) error
	// cancel cancels a job as an operator does, nil where nobody can cancel one that is worked on.
	cancel func(ctx context.Context, w *world) error
	acts   []string // besides done, which a worker's part in a job can end with
	left   string   // counts the jobs that aren't done with
	lost   string   // counts the completed jobs without a result
}

const micros, millis = "(extract(epoch FROM %s) * 1000000)::bigint", "floor(extract(epoch FROM %s) * 1000)::bigint"

var queues = []queue{
	{
		name: "river", page: "river.sql", table: "river_job", key: "id", claim: fmt.Sprintf(micros, "attempted_at"), while: "state = 'running'",
		install: func(t *testing.T, w *world) {
			migrator, err := rivermigrate.New(riverpgxv5.New(w.app), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
				t.Fatal(err)
			}
		},
		command: func(*world) *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = []string{riverProcess + "=1"}
			return cmd
		},
		insert: func(w *world, n int) error {
			client, err := river.NewClient(riverpgxv5.New(w.admin), &river.Config{})
			if err != nil {
				return err
			}
			_, err = client.InsertManyFast(context.Background(), riverJobs(n))
			return err
		},
		rescue: rescueRiver,
		cancel: func(ctx context.Context, w *world) error {
			client, err := river.NewClient(riverpgxv5.New(w.admin), &river.Config{})
			if err != nil {
				return err
			}
			var id int64
			if err = w.admin.QueryRow(ctx, "SELECT id FROM river_job WHERE state = 'running' ORDER BY random() LIMIT 1").Scan(&id); err == nil {
				_, err = client.JobCancel(ctx, id)
			}
			return err
		},
		acts: []string{"retry", "snooze", "cancel"},
		left: "SELECT count(*) FROM river_job WHERE finalized_at IS NULL",
		lost: "SELECT count(*) FROM river_job WHERE state = 'completed' AND NOT EXISTS (SELECT FROM results WHERE job_id = id)",
	},
	{
		name: "pg-boss", page: "boss.sql", table: "pgboss.job", key: "name || ':' || id", claim: fmt.Sprintf(millis, "started_on"), while: "state = 'active'",
		install: func(t *testing.T, w *world) {
			runNode(t, w, "boss.mjs", "install")
		},
		command: node("boss.mjs"),
		insert: func(w *world, n int) error {
			_, err := w.admin.Exec(context.Background(), "INSERT INTO pgboss.job (name, retry_limit, expire_seconds, policy) SELECT 'work', 1000000, $2, 'standard' FROM generate_series(1, $1)", n, int(w.wait.Seconds()))
			return err
		},
		// One of its processes does it, which rescuing starts.
		rescue: func(context.Context, *world) error { return nil },
		cancel: cancelBy("UPDATE pgboss.job SET completed_on = now(), state = 'cancelled' WHERE name = 'work' AND id = (SELECT id FROM pgboss.job WHERE state = 'active' ORDER BY random() LIMIT 1) AND state < 'completed'"),
		acts:   []string{"retry", "cancel"},
		left:   "SELECT count(*) FROM pgboss.job WHERE name = 'work' AND state < 'completed'",
		lost:   "SELECT count(*) FROM pgboss.job WHERE name = 'work' AND state = 'completed' AND NOT EXISTS (SELECT FROM results WHERE job_id = id)",
	},
	{
		name: "graphile-worker", page: "graphile.sql", table: "graphile_worker._private_jobs", key: "id", claim: fmt.Sprintf(millis, "locked_at"), while: "locked_at IS NOT NULL",
		install: func(t *testing.T, w *world) {
			runNode(t, w, "graphile.mjs", "install")
		},
		command: node("graphile.mjs"),
		insert: func(w *world, n int) error {
			_, err := w.admin.Exec(context.Background(), "SELECT graphile_worker.add_job('work', '{}', max_attempts => 10000) FROM generate_series(1, $1)", n)
			return err
		},
		// The worker waits for 4 hours, a constant. An operator needn't.
		rescue: func(ctx context.Context, w *world) error {
			_, err := w.admin.Exec(ctx, "SELECT graphile_worker.force_unlock_workers(ARRAY(SELECT DISTINCT locked_by FROM graphile_worker._private_jobs WHERE locked_at < now() - $1::interval))", w.wait)
			if err == nil { // a retry waits for seconds
				_, err = w.admin.Exec(ctx, "SELECT FROM graphile_worker.reschedule_jobs(ARRAY(SELECT id FROM graphile_worker._private_jobs WHERE locked_at IS NULL AND run_at > now()), run_at => now())")
			}
			return err
		},
		acts: []string{"retry"},
		left: "SELECT count(*) FROM graphile_worker._private_jobs",
		lost: "SELECT count(DISTINCT job) FROM history WHERE NOT EXISTS (SELECT FROM results WHERE job_id::text = job)",
	},
	{
		name: "own", page: "queue.sql", table: "jobs", key: "id", claim: "claim", while: "NOT done",
		install: func(*testing.T, *world) {},
		command: func(*world) *exec.Cmd { return exec.Command(python, "own.py") },
		insert: func(w *world, n int) error {
			_, err := w.admin.Exec(context.Background(), "INSERT INTO jobs (payload) SELECT 'work' FROM generate_series(1, $1)", n)
			return err
		},
		rescue: func(context.Context, *world) error { return nil }, // taken_until passes
		cancel: cancelBy("UPDATE jobs SET done = true, payload = 'cancelled' WHERE id = (SELECT id FROM jobs WHERE claim IS NOT NULL AND NOT done ORDER BY random() LIMIT 1) AND NOT done"),
		acts:   []string{"retry", "snooze", "cancel"},
		left:   "SELECT count(*) FROM jobs WHERE NOT done",
		lost:   "SELECT count(*) FROM jobs WHERE done AND payload <> 'cancelled' AND NOT EXISTS (SELECT FROM results WHERE job_id = id)",
	},
}

func cancelBy(sql string) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error {
		_, err := w.admin.Exec(ctx, sql)
		return err
	}
}

func node(file string) func(*world) *exec.Cmd {
	return func(*world) *exec.Cmd { return exec.Command("node", file) }
}

// runNode runs a program for Node to its end, past the proxy.
func runNode(t *testing.T, w *world, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", args...)
	cmd.Dir = w.dir
	cmd.Env = append(os.Environ(), "DATABASE_URL="+w.URLFor("app", w.Name))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// rescueRiver runs the statements of River's rescuer and scheduler. River itself runs them each 30
// seconds and each 5.
func rescueRiver(ctx context.Context, w *world) error {
	exec, now := riverpgxv5.New(w.admin).GetExecutor(), time.Now()
	stuck, err := exec.JobGetStuck(ctx, &riverdriver.JobGetStuckParams{Max: 1000, StuckHorizon: now.Add(-w.wait)})
	if err != nil {
		return err
	}
	if len(stuck) > 0 {
		p := &riverdriver.JobRescueManyParams{StuckHorizon: now.Add(-w.wait)}
		for _, job := range stuck {
			p.ID = append(p.ID, job.ID)
			p.Error = append(p.Error, []byte("{}"))
			p.FinalizedAt = append(p.FinalizedAt, nil)
			p.ScheduledAt = append(p.ScheduledAt, now)
			p.State = append(p.State, string(rivertype.JobStateRetryable))
		}
		if _, err := exec.JobRescueMany(ctx, p); err != nil {
			return err
		}
	}
	_, err = exec.JobSchedule(ctx, &riverdriver.JobScheduleParams{Max: 1000, Now: &now})
	return err
}

// each runs a test with each queue.
func each(t *testing.T, wait time.Duration, test func(t *testing.T, w *world)) {
	stack.NeedsMore(t, "Node, Python and libraries of queues")
	for _, q := range queues {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, q, wait))
		})
	}
}

// rescuing runs the queue's rescues until it is stopped.
func (w *world) rescuing(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	supervisor := func() {}
	if w.name == "pg-boss" {
		supervisor = w.start(t, "supervisor", 0).kill
	}
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			if err := w.rescue(ctx, w); err != nil && ctx.Err() == nil && stack.State(err) != "40P01" { // it has met a queue's own report of many jobs
				t.Errorf("rescue: %v", err)
				return
			}
			select {
			case <-time.After(w.wait / 4):
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-over
		supervisor()
	}
}
