package zombie

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// worker plays one moment at a time, in a database that no other worker uses.
type worker struct {
	Exploring // its commands lead to the worker's database
	*database
	x        *explorer
	taps     map[bool]*tap // of the first run, and, true, of the second
	commands *tap          // of Reset and EndLock
}

// open makes the workers, and where there are several, a copy of the database for each.
func (x *explorer) open(ctx context.Context, cfg *pgx.ConnConfig) error {
	if x.free = make(chan *worker, max(1, x.Jobs)); cap(x.free) == 1 {
		return x.addWorker(ctx, cfg, "", "")
	}
	source, maintenance := cmp.Or(cfg.Database, cfg.User), "postgres"
	if source == maintenance { // the database that is copied must have no session
		maintenance = "template1"
	}
	server, err := x.connect(ctx, cfg, maintenance)
	if err != nil {
		return err
	}
	var oid uint32
	if err := server.QueryRow(ctx, "SELECT oid FROM pg_catalog.pg_database WHERE datname = $1", source).Scan(&oid); err != nil {
		return err
	}
	for n := range x.Jobs {
		name := fmt.Sprintf("wirefence_zombie_%d_%d", oid, n+1)
		quoted := pgx.Identifier{name}.Sanitize()
		if _, err := server.Exec(ctx, "DROP DATABASE IF EXISTS "+quoted); err != nil { // left by an exploration that was killed
			return err
		}
		if _, err := server.Exec(ctx, "CREATE DATABASE "+quoted+" TEMPLATE "+pgx.Identifier{source}.Sanitize()); err != nil {
			return fmt.Errorf("%s can't be copied: %w", source, err)
		}
		x.atEnd(func(ctx context.Context) error {
			_, err := server.Exec(ctx, endSQL, name)
			if err == nil {
				_, err = server.Exec(ctx, "DROP DATABASE "+quoted)
			}
			return err
		})
		if err := x.addWorker(ctx, cfg, source, name); err != nil {
			return err
		}
	}
	return nil
}

// addWorker adds one that works in the database itself, or in a copy.
func (x *explorer) addWorker(ctx context.Context, cfg *pgx.ConnConfig, source, copied string) error {
	conn, err := x.connect(ctx, cfg, cmp.Or(copied, cfg.Database))
	if err != nil {
		return err
	}
	w := &worker{Exploring: x.Exploring, x: x, taps: map[bool]*tap{}}
	if w.database, err = openWithin(ctx, conn, x.Tables); err != nil {
		return err
	}
	x.atEnd(func(ctx context.Context) error { w.close(ctx); return nil })
	x.all = append(x.all, w)
	if first := x.all[0]; (w.slot == "") != (first.slot == "") {
		return fmt.Errorf("not all of %d jobs can decode changes: %s%s", x.Jobs, w.why, first.why)
	}
	env := slices.Clone(x.Env)
	if copied != "" {
		w.mark = "ZOMBIE_COPY=" + copied // wirefence refuses variables that begin with its name
		env = append(env, w.mark)
	}
	tapped := func(command, locks []string) (*tap, error) {
		t, err := newTap(command, env, locks, source, copied)
		if err == nil {
			x.atEnd(func(context.Context) error { return t.close() })
		}
		return t, err
	}
	for _, second := range []bool{false, true} {
		if w.taps[second], err = tapped(x.Command, x.LockKeys); err != nil {
			return err
		}
	}
	if w.commands, err = tapped([]string{x.Reset, x.EndLock}, nil); err != nil {
		return err
	}
	w.Env, w.Reset, w.EndLock = w.commands.Env, w.commands.Command[0], w.commands.Command[1]
	x.free <- w
	return nil
}

func (x *explorer) connect(ctx context.Context, cfg *pgx.ConnConfig, database string) (*pgx.Conn, error) {
	cfg = cfg.Copy()
	cfg.Database = database
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		x.atEnd(conn.Close)
	}
	return conn, err
}

// atEnd has close do something, ahead of what it was told before.
func (x *explorer) atEnd(do func(context.Context) error) { x.ends = append(x.ends, do) }

func (x *explorer) close(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTime)
	defer cancel()
	for _, end := range slices.Backward(x.ends) {
		err = errors.Join(err, end(ctx))
	}
	return err
}

// spread has the workers do n things, each one thing at a time.
func (x *explorer) spread(ctx context.Context, n int, do func(ctx context.Context, w *worker, i int) error) error {
	work, ctx := errgroup.WithContext(ctx)
	for i := range n {
		select {
		case w := <-x.free:
			work.Go(func() error {
				defer func() { x.free <- w }()
				return do(ctx, w, i)
			})
		case <-ctx.Done():
			return errors.Join(work.Wait(), context.Cause(ctx))
		}
	}
	return work.Wait()
}

// repeat has the workers do the same n times. The first times it is another worker each time.
func (x *explorer) repeat(n int, do func(*worker, context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		return x.spread(ctx, n, func(ctx context.Context, w *worker, _ int) error { return do(w, ctx) })
	}
}

// noOthers looks for other writers.
func (w *worker) noOthers(ctx context.Context) error {
	if err := w.clear(ctx); err != nil {
		return err
	}
	return (&play{Options: w.Options, database: w.database, report: &Report{}}).noOthers(ctx, "")
}
