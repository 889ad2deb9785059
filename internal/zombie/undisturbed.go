package zombie

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/runner"
)

// What an exploration does between plays: it puts the data back, and has runs go undisturbed.

// tryReset puts the data back twice, so that it is known what it puts them back to.
func (x *explorer) tryReset(ctx context.Context) (err error) {
	if err := x.sh(ctx, x.Reset); err != nil {
		return err
	}
	if x.origin, err = x.rowsNow(ctx, x.Tables); err != nil {
		return err
	}
	if err := x.sh(ctx, x.Reset); err != nil {
		return err
	}
	again, err := x.rowsNow(ctx, x.Tables)
	if err != nil {
		return err
	}
	for _, t := range x.tables {
		x.varies[t.Name], x.resets[t.Name] = map[string]bool{}, map[string]bool{}
		for _, column := range t.Numbered {
			x.varies[t.Name][column], x.resets[t.Name][column] = true, true
		}
	}
	if table, ok := x.resets.add(x.origin, again); !ok {
		return unknown("--reset doesn't put %s back: done twice, it leaves different numbers of rows", table)
	}
	return nil
}

// reset waits until nothing of earlier runs is at work, and puts the data back.
func (x *explorer) reset(ctx context.Context) error {
	if err := x.clear(ctx); err != nil {
		return err
	}
	if err := x.sh(ctx, x.Reset); err != nil {
		return err
	}
	now, err := x.rowsNow(ctx, x.Tables)
	if err != nil {
		return err
	}
	if table, so := x.resets.differs(x.origin, now); so {
		return unknown("--reset doesn't put %s back as it was before the first run", table)
	}
	_, err = x.changes(ctx) // none of the next play
	return err
}

// clear ends the connections of the taps, and waits until their server processes have ended.
func (x *explorer) clear(ctx context.Context) error {
	for end := time.Now().Add(settleTime); time.Now().Before(end); {
		left := 0
		for _, t := range x.taps {
			t.hangUp()
			rows, err := x.conn.Query(ctx, goneSQL, slices.Collect(maps.Keys(t.backends)))
			if err != nil {
				return err
			}
			pids, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
			if err != nil {
				return err
			}
			left += len(pids)
			t.cancel(ctx, pids)
		}
		if left == 0 {
			return nil
		}
		if err := pause(ctx, pollPause); err != nil {
			return err
		}
	}
	return nil
}

// sh runs a command of the user's.
func (x *explorer) sh(ctx context.Context, command string) error {
	status, _, err := x.once(ctx, []string{"sh", "-c", command}, x.Env)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s: status %d", command, status)
	}
	return err
}

// once runs a command to its end.
func (x *explorer) once(ctx context.Context, command, env []string) (status int, took time.Duration, err error) {
	began := time.Now()
	process, err := runner.Start(command, runner.Options{Stdout: x.Output, Stderr: x.Output, Env: env})
	if err != nil {
		return 0, 0, err
	}
	gone, err := await(ctx, process, x.Within)
	if err == nil && !gone {
		err = unknown("%s has not ended within %v", strings.Join(command, " "), x.Within)
	}
	if took = time.Since(began); err != nil {
		return 0, took, errors.Join(err, runner.End(x.TermGrace, process))
	}
	return process.Exit(), took, nil
}

// twoRuns runs the command twice, one behind the other.
func (x *explorer) twoRuns(ctx context.Context) error {
	x.Tell(Other, "two runs, one behind the other")
	if err := x.reset(ctx); err != nil {
		return err
	}
	for _, second := range []bool{false, true} {
		t := x.taps[second]
		t.begin(0)
		status, took, err := x.once(ctx, t.Command, t.Env)
		if err != nil {
			return err
		}
		if _, err := x.settle(ctx); err != nil {
			return err
		}
		t.hangUp()
		for text, at := range firstTimes(t.messages) {
			x.times[text] = max(x.times[text], at)
		}
		now, err := x.rowsNow(ctx, x.Tables)
		if err != nil {
			return err
		}
		x.took = max(x.took, took)
		_, changed := x.resets.differs(x.origin, now)
		switch {
		case status != 0:
			return unknown("undisturbed, the %s run fails, with status %d", nameOf(second), status)
		case second:
			x.serial = append(x.serial, now)
		case len(t.messages) == 0:
			return unknown("the command has sent nothing through this proxy: let it find its server by PGHOST and PGPORT, or by a URL in its environment or its arguments")
		case !changed:
			return unknown("the command changes nothing in the tables")
		default:
			x.single = now
			if len(x.plays) == 0 { // their moments are among these
				x.messages = moments(t.messages)
				x.report.Messages = len(x.messages)
			}
			if err := x.endsLock(ctx, time.Now()); err != nil {
				return err
			}
		}
	}
	if table, ok := x.varies.add(x.serial[0], x.serial[len(x.serial)-1]); !ok {
		return unknown("twice two runs, one behind the other, leave different numbers of rows in %s", table)
	}
	return nil
}

func nameOf(second bool) string {
	if second {
		return "second"
	}
	return "first"
}

func (x *explorer) endsLock(ctx context.Context, frozen time.Time) error {
	if x.EndLock != "" {
		return x.sh(ctx, x.EndLock)
	}
	return pause(ctx, time.Until(frozen.Add(x.LockEndsAfter)))
}
