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
func (w *worker) tryReset(ctx context.Context) (err error) {
	if err := w.sh(ctx, w.Reset); err != nil {
		return err
	}
	if w.x.origin, err = w.rowsNow(ctx, w.Tables); err != nil {
		return err
	}
	if err := w.sh(ctx, w.Reset); err != nil {
		return err
	}
	again, err := w.rowsNow(ctx, w.Tables)
	if err != nil {
		return err
	}
	for _, t := range w.tables {
		w.x.varies[t.Name], w.x.resets[t.Name] = map[string]bool{}, map[string]bool{}
		for _, column := range t.Numbered {
			w.x.varies[t.Name][column], w.x.resets[t.Name][column] = true, true
		}
	}
	if table, ok := w.x.resets.add(w.x.origin, again); !ok {
		return unknown("--reset doesn't put %s back: done twice, it leaves different numbers of rows", table)
	}
	return nil
}

// reset waits until nothing of earlier runs is at work, and puts the data back.
func (w *worker) reset(ctx context.Context) error {
	if err := w.clear(ctx); err != nil {
		return err
	}
	if err := w.sh(ctx, w.Reset); err != nil {
		return err
	}
	now, err := w.rowsNow(ctx, w.Tables)
	if err != nil {
		return err
	}
	if table, so := w.x.resets.differs(w.x.origin, now); so {
		return unknown("--reset doesn't put %s back as it was before the first run", table)
	}
	_, err = w.changes(ctx) // none of the next play
	return err
}

// clear ends the connections of the taps, and waits until their server processes have ended.
func (w *worker) clear(ctx context.Context) error {
	for end := time.Now().Add(settleTime); time.Now().Before(end); {
		left := 0
		for _, t := range []*tap{w.taps[false], w.taps[true], w.commands} {
			t.hangUp()
			rows, err := w.conn.Query(ctx, goneSQL, slices.Collect(maps.Keys(t.backends)))
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
func (w *worker) sh(ctx context.Context, command string) error {
	w.commands.begin(hold{})
	status, _, err := w.once(ctx, []string{"sh", "-c", command}, w.Env)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s: status %d", command, status)
	}
	return err
}

// once runs a command to its end.
func (w *worker) once(ctx context.Context, command, env []string) (status int, took time.Duration, err error) {
	began := time.Now()
	process, err := runner.Start(command, runner.Options{Stdout: w.Output, Stderr: w.Output, Env: env, Mark: w.mark})
	if err != nil {
		return 0, 0, err
	}
	gone, err := await(ctx, process, w.Within)
	if err == nil && !gone {
		err = unknown("%s has not ended within %v", strings.Join(command, " "), w.Within)
	}
	if took = time.Since(began); err != nil {
		return 0, took, errors.Join(err, runner.End(w.TermGrace, process))
	}
	return process.Exit(), took, nil
}

// twoRuns runs the command twice, one behind the other.
func (w *worker) twoRuns(ctx context.Context) error {
	w.Tell(Other, "two runs, one behind the other")
	if err := w.reset(ctx); err != nil {
		return err
	}
	for _, second := range []bool{false, true} {
		t := w.taps[second]
		t.begin(hold{})
		status, took, err := w.once(ctx, t.Command, t.Env)
		if err != nil {
			return err
		}
		if _, err := w.settle(ctx); err != nil {
			return err
		}
		t.hangUp()
		now, err := w.rowsNow(ctx, w.Tables)
		if err != nil {
			return err
		}
		if err := w.x.learn(second, t.messages, status, took, now); err != nil {
			return err
		}
		if !second {
			if _, err := w.endsLock(ctx, time.Now(), false); err != nil {
				return err
			}
		}
	}
	return nil
}

// learn adds what an undisturbed run shows.
func (x *explorer) learn(second bool, messages []*Message, status int, took time.Duration, now rowsOf) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for text, at := range firstTimes(messages) {
		x.times[text] = max(x.times[text], at)
	}
	x.took = max(x.took, took)
	_, changed := x.resets.differs(x.origin, now)
	switch {
	case status != 0 && len(x.all) > 1:
		return unknown("undisturbed, the %s run fails, with status %d: if its lock is not in the database, it is one lock for all copies, and --jobs must be 1", nameOf(second), status)
	case status != 0:
		return unknown("undisturbed, the %s run fails, with status %d", nameOf(second), status)
	case second:
		x.serial = append(x.serial, now)
		if table, ok := x.varies.add(x.serial[0], now); !ok {
			return unknown("twice two runs, one behind the other, leave different numbers of rows in %s", table)
		}
	case len(messages) == 0:
		return unknown("the command has sent nothing through this proxy: let it find its server by PGHOST and PGPORT, or by a URL in its environment or its arguments")
	case !changed:
		return unknown("the command changes nothing in the tables")
	default:
		x.single = now
		if len(x.plays) == 0 && len(pairs(messages)) >= len(pairs(x.messages)) { // their moments are among these
			x.messages = moments(messages)
			x.report.Messages = len(x.messages)
		}
	}
	return nil
}

func nameOf(second bool) string {
	if second {
		return "second"
	}
	return "first"
}

// endsLock ends the first run's lock. If that is frozen, it gives up while the command for it waits in the
// database for the run: two looks, since a statement may be about to end.
func (w *worker) endsLock(ctx context.Context, since time.Time, frozen bool) (waits waiting, err error) {
	if w.EndLock == "" {
		return waits, pause(ctx, time.Until(since.Add(w.LockEndsAfter)))
	}
	ending, giveUp := context.WithCancel(ctx)
	defer giveUp()
	ended := make(chan error, 1)
	go func() { ended <- w.sh(ending, w.EndLock) }()
	for sights := 0; ; {
		select {
		case err := <-ended:
			return waiting{}, err
		case <-time.After(pollPause):
		}
		if waits, err = w.blocked(ctx); err == nil && frozen && waits.behind(w.commands, w.taps[false]) {
			sights++
		} else {
			sights = 0
		}
		if err != nil || sights == 2 {
			giveUp()
			<-ended
			return waits, err
		}
	}
}
