package queuetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/wirefence/wirefence/fence"
)

// finish writes the result of a job and completes it, in one transaction under the job's claim.
func finish[A river.JobArgs](ctx context.Context, db *pgxpool.Pool, job *river.Job[A], write func(pgx.Tx) error) error {
	claim, err := fence.NewClaims(fence.Claim{Class: "job", Key: fence.Key(job.ID), Value: job.AttemptedAt.UnixMicro()})
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, claim.Transaction()); err != nil {
			return err
		}
		if err := write(tx); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if fence.IsStale(err) {
		return lost{err}
	}
	return err
}

// lost makes River report nothing about the job, which is another worker's.
type lost struct{ error }

func (lost) Jobs() []*rivertype.JobRow   { return nil }
func (lost) ErrorsByID() map[int64]error { return nil }
func (l lost) Unwrap() error             { return l.error }

// The page shows this code.
func TestTheDocumentedGoIsTested(t *testing.T) {
	page, err := os.ReadFile("../../docs/howto/queue.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("river_test.go")
	if err != nil {
		t.Fatal(err)
	}
	from, to := strings.Index(string(source), "// finish writes"), strings.Index(string(source), "\n// The page shows")
	if !strings.Contains(string(page), string(source[from:to])) {
		t.Errorf("the page doesn't have\n%s", source[from:to])
	}
}

// riverProcess is the variable that makes the test's binary a worker of River.
const riverProcess = "WIREFENCE_TEST_RIVER"

type riverArgs struct{}

func (riverArgs) Kind() string { return "work" }

func riverJobs(n int) (all []river.InsertManyParams) {
	for range n {
		all = append(all, river.InsertManyParams{Args: riverArgs{}, InsertOpts: &river.InsertOpts{MaxAttempts: 1000}})
	}
	return all
}

// at once, and not after seconds.
type atOnce struct{}

func (atOnce) NextRetry(*rivertype.JobRow) time.Time { return time.Now() }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	db    *pgxpool.Pool
	act   func() string
	print func(event)
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverArgs]) error {
	e := event{Event: "took", Job: strconv.FormatInt(job.ID, 10), Claim: job.AttemptedAt.UnixMicro()}
	w.print(e)
	switch w.act() {
	case "retry":
		return errors.New("told to retry")
	case "snooze":
		return river.JobSnooze(0)
	case "cancel":
		return river.JobCancel(errors.New("told to cancel"))
	}
	err := finish(ctx, w.db, job, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO results (job_id, result) VALUES ($1, $2)", job.ID, fmt.Sprint(os.Getenv("NAME"), "/", e.Claim))
		return err
	})
	switch e.Event, e.At = "wrote", time.Now().UnixMicro(); {
	case err != nil:
		e.Event, e.State, e.Error = "failed", string(fence.StateOf(err)), err.Error()
		if fence.IsRefusal(err) {
			e.Event = "refused"
		}
	}
	w.print(e)
	return err
}

// workRiver is a worker of River, until it is killed.
func workRiver() int {
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	db, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	told := bufio.NewScanner(os.Stdin)
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64)
	chance := rand.New(rand.NewPCG(seed, 0))
	acts := strings.Fields(os.Getenv("ACTS"))
	wait, err := time.ParseDuration(os.Getenv("WAIT") + "ms")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	hurry, err := strconv.Atoi(os.Getenv("HURRY"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	worker := &riverWorker{db: db, print: func(e event) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(e)
	}}
	many := 4
	if worker.act = func() string {
		mu.Lock()
		act, pause := acts[chance.IntN(len(acts))], time.Duration(chance.IntN(500/hurry))*time.Millisecond
		if chance.IntN(20*hurry) == 0 {
			pause += 2 * wait // for which the queue doesn't wait
		}
		mu.Unlock()
		time.Sleep(pause)
		return act
	}; len(acts) == 0 {
		many = 1
		worker.act = func() string { told.Scan(); return told.Text() }
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	client, err := river.NewClient(riverpgxv5.New(db), &river.Config{
		ID: os.Getenv("NAME"), Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: many}}, Workers: workers,
		RetryPolicy: atOnce{}, JobTimeout: -1, FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for client.Start(ctx) != nil { // the proxy may be restarting
		time.Sleep(100 * time.Millisecond)
	}
	<-ctx.Done()
	return 0
}
