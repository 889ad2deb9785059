package jobstest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

type nightlyArgs struct{}

func (nightlyArgs) Kind() string { return "nightly" }

// nightlyWorker writes without the job's context, so that the end of the job's time doesn't keep
// it from writing.
type nightlyWorker struct {
	river.WorkerDefaults[nightlyArgs]
	db *pgxpool.Pool
}

func (w *nightlyWorker) Work(ctx context.Context, _ *river.Job[nightlyArgs]) error {
	ctx = context.WithoutCancel(ctx)
	var orders int
	if _, err := w.db.Exec(ctx, "INSERT INTO runs DEFAULT VALUES"); err != nil {
		return err
	}
	if err := w.db.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&orders); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // computes
	_, err := w.db.Exec(ctx, "UPDATE totals SET orders = $1, by = $2", orders, fmt.Sprint("river ", os.Getpid()))
	return err
}

// atOnce retries a rescued job without a pause.
type atOnce struct{}

func (atOnce) NextRetry(*rivertype.JobRow) time.Time { return time.Now() }

func riverClient(db *pgxpool.Pool, id string) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &nightlyWorker{db: db})
	return river.NewClient(riverpgxv5.New(db), &river.Config{
		ID: id, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}, Workers: workers, RetryPolicy: atOnce{},
		JobTimeout: time.Second, RescueStuckJobsAfter: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// prepareRiver makes River's tables and a job.
func prepareRiver(ctx context.Context, url string) error {
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(db), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	client, err := riverClient(db, "")
	if err != nil {
		return err
	}
	_, err = client.Insert(ctx, nightlyArgs{}, nil)
	return err
}

// workRiver is a worker of River, until SIGTERM.
func workRiver(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	db, err := pgxpool.New(ctx, "") // by PGHOST and the like
	if err != nil {
		return err
	}
	defer db.Close()
	client, err := riverClient(db, fmt.Sprint("worker ", os.Getpid()))
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	return client.StopAndCancel(context.WithoutCancel(ctx))
}
