package zombie

import (
	"context"
	"time"
)

// explored is what a play of Explore has besides.
type explored struct {
	taps     map[bool]*tap // of the first run, and, true, of the second
	patience time.Duration // for which a second run may write nothing until a lock keeps it out
	endLock  func(context.Context, *play) error
	// delayed is how much later than an undisturbed run the second has sent its messages, and delay
	// from what on a lock has delayed it.
	delayed func([]*Message) time.Duration
	delay   time.Duration

	open   bool // no lock kept the second run out
	locked bool // one did, until its end
	shows  Shows
}

// awaitMessage waits for the message that is held back.
func (p *play) awaitMessage(ctx context.Context) error {
	timer := time.NewTimer(p.Within)
	defer timer.Stop()
	select {
	case <-p.explored.taps[false].held:
		return nil
	case <-p.first.Gone():
		return p.endedBefore()
	case <-timer.C:
		return unknown("the first run has not sent this message within %v", p.Within)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// tryLock lets a second run try while the first has its lock, and, unless that has done the work,
// ends the lock and lets a second run have the turn.
func (p *play) tryLock(ctx context.Context) (err error) {
	x, second := p.explored, &p.report.Second
	if !p.settled {
		return unknown("a statement that the first run had sent before was still at work after %v", settleTime)
	}
	if err := p.quiet(ctx); err != nil {
		return err
	}
	if _, err := p.startSecond(ctx, x.patience); err != nil {
		return err
	}
	if second.Ended != nil && *second.Status == 0 && second.Writes > 0 {
		x.taps[true].hangUp()
		x.locked = x.delayed(x.taps[true].messages) > x.delay // until the lock's end
		x.open = !x.locked
		return nil
	}
	if err := x.endLock(ctx, p); err != nil {
		return err
	}
	waits := waiting{}
	if second.Ended == nil {
		waits, err = p.watchSecond(ctx, p.Within)
	}
	if err == nil && second.Ended != nil && (*second.Status != 0 || second.Writes == 0) { // it tried before the lock's end
		waits, err = p.startSecond(ctx, p.Within)
	}
	switch {
	case err != nil:
		return err
	case second.Ended == nil && waits.advisory:
		return unknown("the lock has not ended: %s (advisory); --end-lock says how it ends", waits.text)
	case second.Ended == nil && waits.text != "":
		x.shows = Held
		return unknown("%s", waits.text)
	case second.Ended == nil:
		return unknown("the second run has not ended within %v", p.Within)
	case *second.Status == 0 && second.Writes == 0:
		x.shows = Idle
		return unknown("the second run had nothing to do")
	case *second.Status != 0:
		open, err := p.openTransactions(ctx)
		if err != nil {
			return err
		}
		for xid := range open {
			if p.firsts[xid] {
				x.shows = Held
				return unknown("the second run failed, with status %d, while the first had a transaction open", *second.Status)
			}
		}
		x.locked = true
		return unknown("the second run failed, with status %d: has the lock not ended?", *second.Status)
	}
	x.locked = true
	return nil
}

func (p *play) startSecond(ctx context.Context, limit time.Duration) (waits waiting, err error) {
	p.report.Second = Run{}
	p.explored.taps[true].begin(0)
	if p.second, err = p.start(&p.report.Second); err != nil {
		return waits, err
	}
	return p.watchSecond(ctx, limit)
}

// watchSecond waits for the second run's end, or until it has written nothing for the limit, or
// waits in the database for as long as a run takes.
func (p *play) watchSecond(ctx context.Context, limit time.Duration) (waits waiting, err error) {
	began, free := time.Now(), time.Now()
	for {
		gone, err := await(ctx, p.second, pollPause)
		switch {
		case err != nil:
			return waits, err
		case gone:
			if err := p.secondEnded(ctx); err != nil {
				return waits, err
			}
			return waits, p.look(ctx)
		}
		if waits, err = p.blocked(ctx); err != nil {
			return waits, err
		}
		if waits.text == "" {
			free = time.Now()
		}
		if time.Since(free) > p.explored.patience || time.Since(began) > p.Within {
			return waits, p.look(ctx)
		}
		if time.Since(began) > limit {
			if err := p.look(ctx); err != nil || p.report.Second.Writes == 0 {
				return waits, err
			}
			limit = p.Within
		}
	}
}
