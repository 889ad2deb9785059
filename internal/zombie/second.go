package zombie

import (
	"context"
	"maps"
	"time"

	"github.com/wirefence/wirefence/internal/runner"
)

// runSecond starts the second run, and waits for its end or freezes it.
func (p *play) runSecond(ctx context.Context) (err error) {
	if p.second, err = p.start(&p.report.Second); err != nil {
		return err
	}
	p.Tell(SecondStarted, "the second run has been started")
	if err := p.awaitSecond(ctx); err != nil {
		return err
	}
	return p.hadTurn(ctx)
}

// look counts what the second run has written.
func (p *play) look(ctx context.Context) error {
	more, err := p.changes(ctx)
	if err != nil {
		return err
	}
	p.turn = append(p.turn, more...)
	if p.between, err = p.read(ctx, p.isCompared); err != nil {
		return err
	}
	p.report.Second.Writes = 0
	for _, c := range p.turn {
		if !p.firsts[c.transaction] {
			p.report.Second.Writes++
		}
	}
	for _, t := range p.tables {
		if p.isCompared(t) {
			p.report.Second.Writes += len(differences(t, p.base[t.Name], p.between[t.Name]))
		}
	}
	return nil
}

// hadTurn says why the second run isn't known to have had the turn, if so.
func (p *play) hadTurn(ctx context.Context) error {
	if err := p.look(ctx); err != nil {
		return err
	}
	switch status := p.report.Second.Status; {
	case status != nil && *status != 0:
		return unknown("the second run failed, with status %d: did another hold its lock?", *status)
	case p.report.Second.Writes == 0:
		return unknown("the second run changed nothing in the tables, so that it isn't known to have had the turn")
	}
	return nil
}

func (p *play) awaitSecond(ctx context.Context) error {
	limit := p.Within
	if p.SecondFor > 0 {
		limit = p.SecondFor
	}
	gone, err := await(ctx, p.second, limit)
	switch {
	case err != nil:
		return err
	case gone:
		return p.secondEnded(ctx)
	case p.SecondFor == 0:
		waits, err := p.blocked(ctx)
		why := waits.text
		if err == nil && why == "" {
			why = "it may wait for a lock that the frozen first run still holds"
		}
		if err == nil {
			err = unknown("the second run has not ended within %v: %s", limit, why)
		}
		return err
	}
	if _, err := p.freeze(ctx, p.second, &p.report.Second); err != nil {
		return err
	}
	p.Tell(Other, "the second run is frozen, too")
	p.seconds, err = p.openTransactions(ctx)
	maps.DeleteFunc(p.seconds, func(xid uint32, _ bool) bool { return p.firsts[xid] })
	return err
}

func (p *play) secondEnded(ctx context.Context) error {
	p.ended(p.second, &p.report.Second)
	if p.second.LeftOthers() {
		return unknown("the second run has ended and left processes behind that may still write: run it in the foreground")
	}
	_, err := p.settle(ctx)
	return err
}

// await waits for the end of a run.
func await(ctx context.Context, process *runner.Process, limit time.Duration) (gone bool, err error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-process.Gone():
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
