package queuetest

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// A worker that is stopped between its take and its write, for longer than the queue waits, writes
// and completes nothing, whether its successor is done or still works. The successor isn't disturbed.
// A guard alone refuses it, and so does the proxy.
func TestALateWorker(t *testing.T) {
	for name, early := range map[string]bool{"successor done, without a proxy": true, "successor at work, without a guard": false} {
		t.Run(name, func(t *testing.T) {
			each(t, 6*time.Second, func(t *testing.T, w *world) {
				if w.direct = early; !w.direct {
					w.Exec(t, "SELECT wirefence.unprotect('public.results')")
				}
				if err := w.insert(w, 1); err != nil {
					t.Fatal(err)
				}
				a := w.start(t, "a", 0)
				first := a.says(t, "took")
				a.signal(t, syscall.SIGSTOP)
				stop := w.rescuing(t)
				b := w.start(t, "b", 0)
				second := b.says(t, "took")
				stop()
				if second.Job != first.Job || second.Claim == first.Claim {
					t.Fatalf("taken by claim %d of %s, then %d of %s", first.Claim, first.Job, second.Claim, second.Job)
				}
				if early {
					b.tell(t, "done")
					b.says(t, "wrote")
				}
				a.signal(t, syscall.SIGCONT)
				a.tell(t, "done")
				refused := a.says(t, "refused")
				if refused.State != "WF001" || refused.Claim != first.Claim {
					t.Errorf("the late worker is refused by %+v", refused)
				}
				if !early {
					// When the late worker has reported of another job, it has of this one, if it does.
					if err := w.insert(w, 1); err != nil {
						t.Fatal(err)
					}
					a.says(t, "took")
					if w.name != "graphile-worker" { // where a retry waits for seconds
						a.tell(t, "retry")
						a.says(t, "took")
					}
					a.tell(t, "done")
					a.says(t, "wrote")
					b.tell(t, "done")
					b.says(t, "wrote")
				}
				w.done(t)
				if writers := w.query(t, "SELECT split_part(result, '/', 1) FROM results WHERE job_id::text = $1", first.Job[strings.Index(first.Job, ":")+1:]); len(writers) != 1 || writers[0] != "b" {
					t.Errorf("results are of %v", writers)
				}
				second.Event = "wrote"
				w.judge(t, []event{refused, second})
			})
		})
	}
}

// What workers do with their own jobs is never refused.
func TestANormalLife(t *testing.T) {
	each(t, time.Minute, func(t *testing.T, w *world) {
		if err := w.insert(w, 1); err != nil {
			t.Fatal(err)
		}
		a := w.start(t, "a", 0)
		stop := w.rescuing(t)
		defer stop()
		claims := map[int64]bool{}
		for _, act := range append(w.acts, "done") {
			if act == "cancel" {
				continue
			}
			e := a.says(t, "took")
			if claims[e.Claim] {
				t.Errorf("two takes have the claim %d", e.Claim)
			}
			claims[e.Claim] = true
			a.tell(t, act)
		}
		a.says(t, "wrote")
		w.done(t)
		want := []string{"1"}
		if w.acts[len(w.acts)-1] == "cancel" {
			if err := w.insert(w, 1); err != nil {
				t.Fatal(err)
			}
			a.says(t, "took")
			a.tell(t, "cancel")
			w.done(t)
		}
		if results := w.query(t, "SELECT count(*) FROM results"); results[0] != want[0] {
			t.Errorf("%s results", results)
		}
		w.judge(t, nil)
	})
}

// done waits until no job is left.
func (w *world) done(t *testing.T) {
	t.Helper()
	stack.Eventually(t, "all jobs are done", func() bool { return w.query(t, w.left)[0] == "0" })
}

// judge holds results, and what workers said, against the history. A result must be of the claim
// that its own transaction ended, by completing the job, and a completed job has exactly one. A
// refused claim must have ended before: its worker had lost the job.
func (w *world) judge(t *testing.T, said []event) {
	t.Helper()
	job := "job_id::text"
	if w.name == "pg-boss" {
		job = "queue || ':' || job_id"
	}
	for _, stale := range w.query(t, `
		SELECT r.job_id, r.result FROM results AS r WHERE NOT EXISTS (
			SELECT FROM history AS h
			WHERE h.job = `+job+` AND h.before = split_part(r.result, '/', 2)::bigint AND h.after IS NULL
			  AND h.xid % 4294967296 = r.xmin::text::bigint)`) {
		t.Errorf("a stale write: %s", stale)
	}
	for _, twice := range w.query(t, "SELECT job_id, count(*) FROM results GROUP BY 1 HAVING count(*) > 1") {
		t.Errorf("a job has several results: %s", twice)
	}
	for _, claim := range w.query(t, "SELECT job, after, count(*) FROM history WHERE after IS NOT NULL GROUP BY 1, 2 HAVING count(*) > 1") {
		t.Errorf("several takes have one claim: %s", claim)
	}
	if lost := w.query(t, w.lost)[0]; lost != "0" {
		t.Errorf("%s completed jobs have no result", lost)
	}
	w.Exec(t, "CREATE TABLE said (event text, job text, claim bigint, at bigint)")
	if _, err := w.admin.CopyFrom(t.Context(), pgx.Identifier{"said"}, []string{"event", "job", "claim", "at"}, pgx.CopyFromSlice(len(said), func(i int) ([]any, error) {
		return []any{said[i].Event, said[i].Job, said[i].Claim, said[i].At}, nil
	})); err != nil {
		t.Fatal(err)
	}
	for _, e := range w.query(t, `
		SELECT s.* FROM said AS s LEFT JOIN results ON `+job+` = s.job AND split_part(result, '/', 2) = s.claim::text
		WHERE (result IS NOT NULL) <> (s.event = 'wrote')`) {
		t.Errorf("a worker says %s, and that isn't so", e)
	}
	for _, e := range w.query(t, `
		SELECT s.* FROM said AS s WHERE s.event = 'refused' AND NOT EXISTS (
			SELECT FROM history AS h WHERE h.job = s.job AND h.before = s.claim AND extract(epoch FROM h.at) * 1000000 <= s.at)`) {
		t.Errorf("a worker was refused, and had not lost its job: %s", e)
	}
}

// While a checked transaction is open, another worker can't take its job. The timeout that the page
// recommends ends a transaction whose worker is stopped.
func TestAStoppedTransaction(t *testing.T) {
	stack.NeedsMore(t, "libraries of queues")
	own := queues[len(queues)-1]
	w := newWorld(t, own, time.Second)
	if err := w.insert(w, 1); err != nil {
		t.Fatal(err)
	}
	a, b := stack.Connect(t, w.url()), stack.Connect(t, w.url())
	var job, claim int64
	take := func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), "SELECT job, claimed FROM take_job('0')").Scan(&job, &claim)
	}
	if err := take(a); err != nil {
		t.Fatal(err)
	}
	stack.MustExec(t, a, "BEGIN")
	stack.MustExec(t, a, fmt.Sprintf("SET LOCAL wirefence.token = 'job(%d)=%d'", job, claim))
	stack.MustExec(t, a, "INSERT INTO results VALUES ($1, 'by A')", job)
	if err := take(b); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("the job of an open transaction is taken: %v", err)
	}
	stack.Eventually(t, "the job is taken", func() bool { return take(b) == nil })
	if _, err := a.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("the stopped transaction was committed")
	}
	if n := w.query(t, "SELECT count(*) FROM results")[0]; n != "0" {
		t.Errorf("%s results", n)
	}
}

// However many jobs there were, Wirefence's tables are as large as before.
func TestJobsLeaveNothingBehind(t *testing.T) {
	w := &world{DB: suite.Database(t, *major)}
	sizes := func() string {
		return stack.Value[string](t, w.DB, `
			SELECT string_agg(relname || ' ' || pg_total_relation_size(oid), ', ' ORDER BY relname) FROM pg_class
			WHERE relnamespace = 'wirefence'::regnamespace AND relkind = 'r'`)
	}
	w.Exec(t, `
		CREATE TABLE jobs (id bigint PRIMARY KEY, claim bigint, done boolean NOT NULL DEFAULT false);
		CREATE TABLE results (job_id bigint NOT NULL);
		SELECT wirefence.declare_rows('job', 'public.jobs', '{id}', 'claim', 'NOT done'), wirefence.protect('public.results', 'job({job_id})');
		CREATE PROCEDURE work(first bigint, last bigint) LANGUAGE plpgsql AS $$
		BEGIN
			FOR n IN first..last LOOP
				INSERT INTO jobs VALUES (n, 10 * n);
				COMMIT;
				PERFORM wirefence.check(format('job(%s)=%s', n, 10 * n));
				INSERT INTO results VALUES (n);
				UPDATE jobs SET done = true WHERE id = n;
				COMMIT;
			END LOOP;
		END $$`)
	w.Exec(t, "CALL work(1, 10)")
	before := sizes()
	const many = 1000 // to end in the time of a statement
	for n := 11; n <= *jobs; n += many {
		w.Exec(t, fmt.Sprintf("CALL work(%d, %d)", n, min(n+many-1, *jobs)))
	}
	if after := sizes(); after != before {
		t.Errorf("after %d jobs: %s; before: %s", *jobs, after, before)
	}
	t.Log(before)
}
