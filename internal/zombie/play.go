package zombie

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wirefence/wirefence/internal/runner"
)

// play is one play as it goes on.
type play struct {
	Options
	*database
	report        *Report
	first, second *runner.Process

	// earlier are transactions that were open before the first run: not the first's.
	earlier map[uint32]bool
	settled bool // what the first had sent before it was frozen is completed
	// firsts and seconds are transactions that were open when their run was frozen.
	firsts, seconds map[uint32]bool
	base            map[string]copied // when the second run began
	turn, after     []change          // since then; since the first went on
	between, last   map[string]copied // tables that are compared, at these moments
}

// pollPause is the time between two questions.
const pollPause = 20 * time.Millisecond

func (p *play) run(ctx context.Context) error {
	for _, t := range p.tables {
		if p.isDecoded(t) {
			p.report.Decoded = append(p.report.Decoded, t.Name)
		} else {
			p.report.Compared = append(p.report.Compared, t.Name)
		}
	}
	if p.slot == "" {
		p.note("the tables are compared, since their changes can't be decoded here (%s): a write of the same value and a row that came and went are not seen", p.why)
	}
	steps := []func(context.Context) error{p.before, p.freezeFirst, p.endLock, p.runSecond, p.thawFirst, p.judge}
	if p.explored != nil {
		steps = []func(context.Context) error{p.freezeFirst, p.tryLock, p.thawFirst, p.judge}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *play) note(format string, args ...any) {
	p.report.Notes = append(p.report.Notes, fmt.Sprintf(format, args...))
}

// freezeFirst starts the first run and freezes it.
func (p *play) freezeFirst(ctx context.Context) (err error) {
	if p.first, err = p.start(&p.report.First); err != nil {
		return err
	}
	p.Tell(FirstStarted, "the first run has been started")
	if err := p.awaitFreeze(ctx); err != nil {
		return err
	}
	if p.settled, err = p.freeze(ctx, p.first, &p.report.First); err != nil {
		return err
	}
	if p.isGone(p.first) {
		return p.endedBefore()
	}
	p.Tell(FirstFrozen, fmt.Sprintf("it is frozen; its lock is to run out within %v", p.LockEndsAfter))
	own, err := p.changes(ctx)
	if err != nil {
		return err
	}
	p.report.First.Writes = len(own)
	p.firsts, err = p.openTransactions(ctx)
	return err
}

// endLock waits until the first run's lock has run out.
func (p *play) endLock(ctx context.Context) error {
	if err := pause(ctx, time.Until(p.report.First.Frozen.Add(p.LockEndsAfter))); err != nil {
		return err
	}
	return p.quiet(ctx)
}

// read copies the tables that want says. A table whose changes are decoded may stay without a copy.
func (p *play) read(ctx context.Context, want func(table) bool) (map[string]copied, error) {
	all := map[string]copied{}
	for _, t := range p.tables {
		if !want(t) {
			continue
		}
		rows, err := p.copy(ctx, t)
		switch {
		case err == nil:
			all[t.Name] = rows
		case !errors.As(err, new(noCopyError)):
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		case p.isDecoded(t):
			p.note("%s %v: rows are shown as they were before only if they were changed before or REPLICA IDENTITY is FULL", t.Name, err)
		default:
			return nil, unknown("%s %v, and so can't be compared", t.Name, err)
		}
	}
	return all, nil
}

func (p *play) start(run *Run) (*runner.Process, error) {
	command, env := p.Command, []string(nil)
	if p.explored != nil {
		through := p.explored.taps[run == &p.report.Second]
		command, env = through.Command, through.Env
	}
	process, err := runner.Start(command, runner.Options{Stdout: p.Output, Stderr: p.Output, Env: env, Mark: p.mark})
	if err == nil {
		run.Started = now()
	}
	return process, err
}

func now() *time.Time {
	at := time.Now()
	return &at
}

// awaitFreeze waits for the moment at which the first run is to be frozen.
func (p *play) awaitFreeze(ctx context.Context) error {
	if p.explored != nil {
		return p.awaitMessage(ctx)
	}
	after := p.FreezeAfter
	if after <= 0 {
		after = p.Within
	}
	for end := time.Now().Add(after); ; {
		if p.isGone(p.first) {
			return p.endedBefore()
		}
		if p.FreezeWhen != "" {
			so, err := p.isTrue(ctx, p.FreezeWhen)
			if err != nil {
				return fmt.Errorf("the query that says when to freeze: %w", err)
			}
			if so {
				return nil
			}
		}
		if time.Now().After(end) {
			if p.FreezeAfter > 0 {
				return nil
			}
			return unknown("the first run was never frozen: the query was not true within %v", p.Within)
		}
		if err := pause(ctx, min(pollPause, max(0, time.Until(end))+time.Millisecond)); err != nil {
			return err
		}
	}
}

func (p *play) isGone(process *runner.Process) bool {
	select {
	case <-process.Gone():
		return true
	default:
		return false
	}
}

func (p *play) endedBefore() error {
	p.ended(p.first, &p.report.First)
	if p.explored != nil && (*p.report.First.Status == 0 || p.explored.swapped) {
		p.explored.shows = NotReached
	}
	return unknown("the first run was never frozen: it ended before, with status %d", *p.report.First.Status)
}

func (p *play) ended(process *runner.Process, run *Run) {
	status := process.Exit()
	run.Ended, run.Status = now(), &status
}

// freeze freezes a run, and reports whether the server has completed what the run had sent.
func (p *play) freeze(ctx context.Context, process *runner.Process, run *Run) (settled bool, err error) {
	stopping, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := process.Freeze(stopping); err != nil {
		return false, err
	}
	run.Frozen = now()
	if settled, err = p.settle(ctx); err == nil && !settled {
		p.note("a statement that a frozen run had sent was still at work after %v; what it changes is the first run's only if its transaction was known", settleTime)
	}
	return settled, err
}

// thawFirst lets the first run go on, and finds what it changes.
func (p *play) thawFirst(ctx context.Context) error {
	limit := p.Within
	if p.report.Second.Ended == nil {
		limit = p.LockEndsAfter / 2
	}
	p.report.First.Thawed = now()
	p.first.Thaw()
	if p.explored != nil {
		p.explored.taps[false].release()
	}
	p.Tell(FirstThawed, "the first run goes on")
	gone, err := await(ctx, p.first, limit)
	if err != nil {
		return err
	}
	if gone {
		p.ended(p.first, &p.report.First)
		if _, err := p.settle(ctx); err != nil {
			return err
		}
	}
	if err := p.find(ctx, p.Tables); err != nil {
		return err
	}
	if p.after, err = p.changes(ctx); err != nil {
		return err
	}
	p.last, err = p.read(ctx, p.isCompared)
	return err
}

// judge ends the runs, looks for other writers again, and says what the first run did.
func (p *play) judge(ctx context.Context) error {
	waits, err := p.blocked(ctx)
	if err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	p.collect()
	if _, err := p.settle(ctx); err != nil {
		return err
	}
	if p.explored == nil { // which looks for them itself
		if err := p.noOthers(ctx, "after the first run, "); err != nil {
			return err
		}
	}
	switch first := p.report.First; {
	case len(p.report.Writes) > 0:
		p.report.Verdict = Stale
		return nil
	case first.Ended == nil && waits.text != "":
		return unknown("the first run has not gone on: %s", waits.text)
	case first.Ended == nil && p.report.Second.Ended != nil:
		return unknown("the first run has not ended within %v; until then it wrote nothing", p.Within)
	case first.Ended == nil:
		p.note("the first run was watched for %v, while the second, frozen, still had its lock", p.LockEndsAfter/2)
	}
	p.report.Verdict = None
	return nil
}

// collect finds the first run's writes in the changes.
func (p *play) collect() {
	s := newState(p.tables, p.base)
	for _, c := range p.turn {
		if w := s.apply(c); p.firsts[c.transaction] {
			p.report.Writes = append(p.report.Writes, w)
		}
	}
	for _, c := range p.after {
		if w := s.apply(c); !p.seconds[c.transaction] {
			p.report.Writes = append(p.report.Writes, w)
		}
	}
	for _, t := range p.tables {
		if p.isCompared(t) {
			p.report.Writes = append(p.report.Writes, differences(t, p.between[t.Name], p.last[t.Name])...)
		}
	}
}

// end ends what is left of the runs. It may be called more than once.
func (p *play) end() error {
	if p.explored != nil { // a run that is told to end may have something to send
		p.explored.taps[false].release()
	}
	var all []*runner.Process
	for _, process := range []*runner.Process{p.first, p.second} {
		if process != nil {
			all = append(all, process)
		}
	}
	return runner.End(p.TermGrace, all...)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
