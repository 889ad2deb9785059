package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/runner"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/migrations"
)

// acquirer takes the lease for a command. Its errors tell a caller whether another holds the
// lease, a service is down, or the set-up is wrong.
type acquirer struct {
	client    *lockclient.Client
	databases []sealedDatabase // their schema is verified first
	resource  fence.Resource
	byName    bool // the fence is in application_name: see checkNames
	log       *slog.Logger
	verified  bool
}

// The pause between two tries while the store or the database is down.
const (
	outagePauseMin = 100 * time.Millisecond
	outagePauseMax = 5 * time.Second
)

// verifyTime bounds the question for the version of the schema.
const verifyTime = 10 * time.Second

// lastTryTime bounds the last try, after a wait.
const lastTryTime = 3 * time.Second

// acquire takes the lease. For as long as wait, it waits for the holder, and for a store and
// a database that are down. Its error is an *exitStatus.
func (a *acquirer) acquire(ctx context.Context, wait time.Duration) (*lockclient.Lease, error) {
	take := a.try
	if wait > 0 {
		take = func(ctx context.Context) (*lockclient.Lease, error) { return a.await(ctx, wait) }
	}
	lease, err := take(ctx)
	if err == nil {
		return lease, nil
	}
	if ctx.Err() != nil {
		return nil, &exitStatus{interrupted(ctx), fmt.Errorf("interrupted before the lease of %q was acquired", a.resource)}
	}
	return nil, &exitStatus{leaseExitStatus(err), err}
}

// await waits for the lease. While the store or the database is down it tries again.
func (a *acquirer) await(ctx context.Context, wait time.Duration) (*lockclient.Lease, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for pause := outagePauseMin; ; pause = min(2*pause, outagePauseMax) {
		lease, err := a.queue(waiting)
		if err == nil || ctx.Err() != nil || leaseExitStatus(err) == exitConfig {
			return lease, err
		}
		if waiting.Err() != nil {
			return a.lastTry(ctx, wait)
		}
		a.log.Warn("cannot acquire the lease, retrying", "resource", a.resource, "pause", pause, "error", err)
		sleep(waiting, pause/2+rand.N(pause/2))
	}
}

// queue waits until the holder gives the lease up.
func (a *acquirer) queue(ctx context.Context) (*lockclient.Lease, error) {
	if err := a.verify(ctx); err != nil {
		return nil, err
	}
	return a.client.Acquire(ctx, a.resource)
}

// lastTry tries once more when the wait is over: its error names the holder, or the service
// that is down.
func (a *acquirer) lastTry(ctx context.Context, waited time.Duration) (*lockclient.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, lastTryTime)
	defer cancel()
	lease, err := a.try(ctx)
	if err != nil {
		err = fmt.Errorf("not acquired within %v: %w", waited, err)
	}
	return lease, err
}

func (a *acquirer) try(ctx context.Context) (*lockclient.Lease, error) {
	if err := a.verify(ctx); err != nil {
		return nil, err
	}
	return a.client.TryAcquire(ctx, a.resource)
}

// verify checks once that this binary works with the schema of all databases.
func (a *acquirer) verify(ctx context.Context) error {
	if a.verified {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyTime)
	defer cancel()
	var all errgroup.Group
	for _, d := range a.databases {
		all.Go(func() error {
			err := d.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
				differs, err := migrations.Usable(ctx, c.Conn())
				if err == nil && differs != nil {
					a.log.Info("the schema and this binary are one version apart", "database", d.name, "schema", differs.Have, "binary", differs.Need)
				}
				if err == nil && a.byName {
					err = checkNames(ctx, c, a.resource)
				}
				return err
			})
			if err != nil && len(a.databases) > 1 {
				err = fmt.Errorf("%s: %w", d.name, err)
			}
			return err
		})
	}
	err := all.Wait()
	a.verified = err == nil
	return err
}

// collectTime bounds the recording of refusals behind a command.
const collectTime = 3 * time.Second

// collectRefusals records in the history what a database without a proxy has refused, most
// likely to the command that has ended.
func (a *acquirer) collectRefusals() {
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	for _, d := range a.databases {
		if err := fence.CollectRefusals(ctx, d); err != nil {
			a.log.Warn("refusals of the command may be missing in the history", "database", d.name, "error", err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// interrupted is the exit status of a process that a signal has ended, as a shell's.
func interrupted(ctx context.Context) int {
	signal := syscall.SIGINT
	if cause := context.Cause(ctx); strings.HasPrefix(cause.Error(), syscall.SIGTERM.String()) {
		signal = syscall.SIGTERM
	}
	return 128 + int(signal)
}

// leaseExitStatus is the exit status of a lease that could not be acquired.
func leaseExitStatus(err error) int {
	switch {
	case errors.Is(err, lockclient.ErrNotAcquired):
		return runner.ExitNotAcquired
	case wrongSchema(err), wrongDatabase(err), lockclient.Permanent(err), errors.Is(err, errNamesUnnoticed):
		return exitConfig
	}
	return exitUnavailable
}

// wrongSchema reports a schema that this binary doesn't work with.
func wrongSchema(err error) bool {
	return errors.As(err, new(*migrations.VersionError)) || errors.As(err, new(*migrations.ContentError)) || errors.Is(err, migrations.ErrNoVersion)
}

// wrongDatabase reports an error of PostgreSQL that doesn't pass by waiting.
func wrongDatabase(err error) bool {
	refusal := (*pgconn.PgError)(nil)
	if !errors.As(err, &refusal) {
		return false
	}
	if fence.SQLState(refusal.Code).Condition() != "" {
		return true // such as a resource whose tokens come from another store
	}
	// A value or a parameter that isn't valid, a user who may not log in, no such database, schema, right, function or table.
	return slices.Contains([]string{"22", "28", "3D", "3F", "42"}, refusal.Code[:min(2, len(refusal.Code))])
}
