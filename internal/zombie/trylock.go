package zombie

import (
	"context"
	"maps"
	"time"
)

// explored is what a play of Explore has besides.
type explored struct {
	taps     map[bool]*tap // of the first run, and, true, of the second
	patience time.Duration // for which a second run may write nothing until a lock keeps it out
	// endLock returns who waits where it can't end the lock.
	endLock func(context.Context, *play) (waiting, error)
	swapped bool // another connection's statement goes ahead of the message that is held back
	// delayed is how much later than an undisturbed run the second has sent its messages, and delay
	// from what on a lock has delayed it.
	delayed func([]*Message) time.Duration
	delay   time.Duration

	open   bool      // no lock kept the second run out
	locked bool      // one did, until its end
	asked  time.Time // when the second run had sent something since it is watched; zero: it hasn't
	shows  Shows
}

// awaitMessage waits for the message that is held back.
func (p *play) awaitMessage(ctx context.Context) error {
	tap, timer, patience := p.explored.taps[false], time.NewTimer(p.Within), time.NewTimer(p.explored.patience)
	defer timer.Stop()
	defer patience.Stop()
	for {
		select {
		case <-tap.held:
			return nil
		case <-p.first.Gone():
			return p.endedBefore()
		case <-patience.C:
			if p.explored.swapped {
				p.explored.shows = NotReached
				return unknown("no other connection has sent a statement meanwhile")
			}
			tap.giveUp()
		case <-timer.C:
			return unknown("the first run has not sent this message within %v", p.Within)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryLock lets a second run try while the first has its lock, and, unless that has done the work,
// ends the lock and lets a second run have the turn.
func (p *play) tryLock(ctx context.Context) (err error) {
	x, second := p.explored, &p.report.Second
	if !p.settled {
		if waits, err := p.blocked(ctx); err != nil {
			return err
		} else if x.swapped && waits.behind(x.taps[false], x.taps[false]) { // that the other connection has sent
			x.shows = NotReached
		}
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
	behindEnd := func(goes func(context.Context, time.Duration) (waiting, error)) (waits waiting, err error) {
		if waits, err = x.endLock(ctx, p); err == nil && waits.text == "" {
			waits, err = goes(ctx, p.Within)
		}
		return waits, err
	}
	var waits waiting
	if second.Ended == nil {
		waits, err = behindEnd(p.watchSecond)
	}
	if err == nil && second.Ended != nil && (*second.Status != 0 || second.Writes == 0) {
		waits, err = behindEnd(p.startSecond) // it tried before the lock's end, or took it just ahead of that
	}
	switch {
	case err != nil:
		return err
	case second.Ended == nil && waits.advisory:
		return unknown("the lock has not ended: %s (advisory); --end-lock says how it ends", waits.text)
	case waits.text != "":
		x.shows = Held
		return unknown("%s", waits.text)
	case second.Ended == nil || *second.Status != 0:
	case second.Writes == 0:
		x.shows = Idle
		return unknown("the second run had nothing to do")
	default:
		x.locked = true
		return nil
	}
	inside, err := p.firstIsInside(ctx)
	switch {
	case err != nil:
		return err
	case inside && (second.Ended != nil || second.Writes == 0 && !x.asked.IsZero()):
		x.shows = Held
		return unknown("the second run did not come through while the first had a transaction open")
	case second.Ended == nil:
		return unknown("the second run has not ended within %v", p.Within)
	}
	x.locked = true
	return unknown("the second run failed, with status %d: has the lock not ended?", *second.Status)
}

// firstIsInside reports whether the first run, which is frozen, has a transaction open.
func (p *play) firstIsInside(ctx context.Context) (bool, error) {
	open, err := p.openTransactions(ctx)
	maps.DeleteFunc(open, func(xid uint32, _ bool) bool { return !p.firsts[xid] })
	return len(open) > 0, err
}

func (p *play) startSecond(ctx context.Context, limit time.Duration) (waits waiting, err error) {
	p.report.Second = Run{}
	p.explored.taps[true].begin(hold{})
	if p.second, err = p.start(&p.report.Second); err != nil {
		return waits, err
	}
	return p.watchSecond(ctx, limit)
}

// watchSecond waits for the second run's end, or until it has written nothing for the limit, or
// waits in the database for as long as a run takes, or has written nothing for as long after it has sent
// something, while the first has a transaction open. One that sends nothing may pause before it tries again.
func (p *play) watchSecond(ctx context.Context, limit time.Duration) (waits waiting, err error) {
	began, free := time.Now(), time.Now()
	had := p.explored.taps[true].count()
	p.explored.asked = time.Time{}
	for {
		gone, err := await(ctx, p.second, pollPause)
		switch {
		case err != nil:
			return waits, err
		case gone:
			if err := p.secondEnded(ctx); err != nil {
				return waits, err
			}
			return waiting{}, p.look(ctx)
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
		if p.explored.asked.IsZero() && p.explored.taps[true].count() > had {
			p.explored.asked = time.Now()
		}
		late := time.Since(began) > limit
		if !late && waits.text == "" && !p.explored.asked.IsZero() && time.Since(p.explored.asked) > p.explored.patience {
			if late, err = p.firstIsInside(ctx); err != nil {
				return waits, err
			}
		}
		if late {
			if err := p.look(ctx); err != nil || p.report.Second.Writes == 0 {
				return waiting{}, err
			}
			limit = p.Within
		}
	}
}
