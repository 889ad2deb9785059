package zombie

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// tried is a moment that was played.
type tried struct {
	explored
	*Report
	after  rowsOf
	scenes []Scene
}

type explorer struct {
	Exploring
	*database
	taps     map[bool]*tap
	origin   rowsOf
	resets   columns // differ from reset to reset
	varies   columns // differ from run to run
	serial   []rowsOf
	single   rowsOf // after one run
	messages []*Message
	took     time.Duration            // of a run
	times    map[string]time.Duration // of statements, in runs one behind the other
	plays    map[int]*tried
	report   *Exploration
}

// Explore plays with every moment of a command: it runs it once to count its messages, and then
// freezes it before each. What it leaves out is between two moments that show the same. The error
// says that it could not be made or was interrupted. Nothing of the runs is left.
func Explore(ctx context.Context, conn *pgx.Conn, o Exploring) (_ *Exploration, err error) {
	if o.Tell == nil {
		o.Tell = func(Step, string) {}
	}
	o.explored = &explored{}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	x := &explorer{Exploring: o, taps: map[bool]*tap{}, resets: columns{}, varies: columns{}, plays: map[int]*tried{}, times: map[string]time.Duration{}, report: &Exploration{Windows: []Window{}, Notes: []string{}}}
	if x.database, err = openWithin(ctx, conn, o.Tables); err != nil {
		return nil, err
	}
	defer x.close(ctx)
	for _, second := range []bool{false, true} {
		if x.taps[second], err = newTap(o.Command, o.Env, o.LockKeys); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, x.taps[second].close()) }()
	}
	why := unknownError("")
	switch err := x.explore(ctx); {
	case errors.As(err, &why):
		x.report.Verdict, x.report.Reason = Unknown, string(why)
	case err != nil:
		return nil, err
	}
	return x.report, nil
}

func (x *explorer) explore(ctx context.Context) error {
	for _, step := range []func(context.Context) error{x.noOthers, x.tryReset, x.twoRuns, x.twoRuns, x.playAll, x.confirm, x.noOthers} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return x.conclude()
}

// noOthers looks for other writers, which no play can tell from its runs.
func (x *explorer) noOthers(ctx context.Context) error {
	if err := x.clear(ctx); err != nil {
		return err
	}
	x.Tell(Other, fmt.Sprintf("looking for other writers for %v", x.Control))
	others, err := (&play{Options: x.Options, database: x.database, report: &Report{}}).control(ctx)
	if err == nil && others != "" {
		err = unknown("others write to the tables, and their writes can't be told from the runs': %s", others)
	}
	return err
}

// playAll plays the moments before statements that differ, and then those between two that show
// different things.
func (x *explorer) playAll(ctx context.Context) error {
	began := time.Now()
	for {
		at, left := x.next()
		if left == 0 {
			return nil
		}
		if n := len(x.plays); n > 0 {
			each := time.Since(began) / time.Duration(n)
			x.Tell(Other, fmt.Sprintf("%d of %d moments tried, about %d to try, %v", n, len(x.messages), left, (each*time.Duration(left)).Round(time.Second)))
		}
		played, err := x.play(ctx, at)
		if err != nil {
			return err
		}
		x.plays[at] = played
		x.Tell(Other, fmt.Sprintf("before %d, %s: %s", at, x.messages[at-1], x.shows(played)))
	}
}

// next is the moment to play, with an estimate of how many there are to play.
func (x *explorer) next() (at, left int) {
	for _, seed := range seeds(x.messages) {
		if x.plays[seed] == nil {
			if left++; left == 1 {
				at = seed
			}
		}
	}
	tried := slices.Sorted(maps.Keys(x.plays))
	for i := 1; i < len(tried); i++ {
		from, to := tried[i-1], tried[i]
		if to-from > 1 && x.shows(x.plays[from]) != x.shows(x.plays[to]) {
			if at == 0 {
				at = (from + to) / 2
			}
			left += bits.Len(uint(to - from - 1))
		}
	}
	return at, left
}

func (x *explorer) delayed(messages []*Message) (most time.Duration) {
	for text, at := range firstTimes(messages) {
		if undisturbed, known := x.times[text]; known {
			most = max(most, at-undisturbed)
		}
	}
	return most
}

// play plays with one moment.
func (x *explorer) play(ctx context.Context, at int) (*tried, error) {
	if err := x.reset(ctx); err != nil {
		return nil, err
	}
	p := &tried{explored: explored{taps: x.taps, patience: 2*x.took + time.Second, delayed: x.delayed}}
	if p.delay = x.LockEndsAfter / 4; p.delay == 0 {
		p.delay = p.patience
	}
	p.endLock = func(ctx context.Context, of *play) error { return x.endsLock(ctx, *of.report.First.Frozen) }
	x.taps[false].begin(at)
	o := x.Options
	o.explored, o.Tell = &p.explored, nil
	var err error
	if p.Report, err = x.database.play(ctx, o); err != nil {
		return nil, err
	}
	x.taps[false].hangUp()
	x.taps[true].hangUp()
	if p.Verdict == Unknown {
		return p, nil
	}
	if p.after, err = x.rowsNow(ctx, x.Tables); err != nil {
		return nil, err
	}
	p.scenes = p.schedule(at, x.taps[false], x.taps[true])
	return p, nil
}

// schedule is what both runs have sent, and what happened to the first before a message.
func (p *tried) schedule(moment int, first, second *tap) (all []Scene) {
	add := func(second bool, what string, m *Message, at time.Time) {
		all = append(all, Scene{nameOf(second), what, at.Sub(*p.First.Started).Seconds(), m})
	}
	for i, m := range first.messages {
		if i == moment-1 {
			add(false, isFrozen, nil, *p.First.Frozen)
			if !p.open {
				add(false, lockEnds, nil, *p.First.Frozen)
			}
			for _, m := range second.messages {
				add(true, sends, m, second.began.Add(m.at))
			}
			add(false, goesOn, nil, *p.First.Thawed)
			add(false, sends, m, *p.First.Thawed)
			continue
		}
		add(false, sends, m, first.began.Add(m.at))
	}
	return all
}

// shows judges a play. It may change while others are played: where no lock ever keeps a second
// run out, the command has none, or believes to have one all the time.
func (x *explorer) shows(p *tried) Shows {
	switch {
	case p.explored.shows != "":
		return p.explored.shows
	case p.Verdict == Unknown:
		return Unjudged
	case p.open && x.anyLock():
		return NoLock
	case p.Verdict == None:
		return ShowsNone
	}
	for _, one := range x.serial {
		if _, so := x.varies.differs(one, p.after); !so {
			return Same
		}
	}
	return ShowsStale
}

func (x *explorer) anyLock() bool {
	for _, p := range x.plays {
		if p.locked {
			return true
		}
	}
	return false
}

// stales are the moments that show a stale write, that with the fewest messages first, and of those
// the last.
func (x *explorer) stales() (all []int) {
	for at, p := range x.plays {
		if x.shows(p) == ShowsStale {
			all = append(all, at)
		}
	}
	slices.SortFunc(all, func(a, b int) int {
		return cmp.Or(cmp.Compare(len(x.plays[a].scenes), len(x.plays[b].scenes)), cmp.Compare(b, a))
	})
	return all
}

// confirm has two more runs tell what differs by itself, since values may differ rarely, such as
// a time in minutes, and plays the smallest schedule again.
func (x *explorer) confirm(ctx context.Context) error {
	if len(x.stales()) == 0 {
		return nil
	}
	if err := x.twoRuns(ctx); err != nil {
		return err
	}
	for _, at := range x.stales() {
		x.Tell(Other, fmt.Sprintf("once more before %d", at))
		again, err := x.play(ctx, at)
		if err != nil {
			return err
		}
		if x.shows(again) == ShowsStale {
			x.report.Schedule = &Schedule{at, again.scenes, again.Writes}
			return nil
		}
		again.explored.shows, again.Reason = Unjudged, "a stale write was seen once, and not again"
		x.plays[at] = again
	}
	return nil
}
