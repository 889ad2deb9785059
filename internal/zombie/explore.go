package zombie

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
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
	all      []*worker
	free     chan *worker // those that do nothing
	ends     []func(context.Context) error
	mu       sync.Mutex // of all below, while workers are at work
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
func Explore(ctx context.Context, cfg *pgx.ConnConfig, o Exploring) (_ *Exploration, err error) {
	tell, telling := o.Tell, sync.Mutex{}
	o.Tell = func(step Step, line string) {
		if tell != nil {
			telling.Lock()
			defer telling.Unlock()
			tell(step, line)
		}
	}
	o.explored = &explored{}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	x := &explorer{Exploring: o, resets: columns{}, varies: columns{}, plays: map[int]*tried{}, times: map[string]time.Duration{}, report: &Exploration{Windows: []Window{}, Notes: []string{}}}
	defer func() { err = errors.Join(err, x.close(ctx)) }()
	if err := x.open(ctx, cfg); err != nil {
		return nil, err
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
	for _, step := range []func(context.Context) error{
		x.repeat(len(x.all), (*worker).noOthers), x.repeat(1, (*worker).tryReset), x.repeat(max(2, len(x.all)), (*worker).twoRuns),
		x.playAll, x.confirm, x.repeat(len(x.all), (*worker).noOthers),
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return x.conclude()
}

// playAll plays the moments before statements that differ, and then those between two that show
// different things.
func (x *explorer) playAll(ctx context.Context) error {
	began := time.Now()
	for round, _ := x.next(); len(round) > 0; round, _ = x.next() {
		if err := x.spread(ctx, len(round), func(ctx context.Context, w *worker, i int) error {
			played, err := w.play(ctx, round[i])
			if err != nil {
				return err
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.plays[round[i]] = played
			_, left := x.next()
			each := time.Since(began) / time.Duration(len(x.plays))
			x.Tell(Other, fmt.Sprintf("before %d, %s: %s; %d of %d moments tried, about %d to try, %v", round[i], x.messages[round[i]-1], x.shows(played),
				len(x.plays), len(x.messages), left, (each*time.Duration(left)).Round(time.Second)))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// next are moments to play, in any order, with an estimate of how many there are to play in all.
func (x *explorer) next() (round []int, left int) {
	for _, seed := range seeds(x.messages) {
		if x.plays[seed] == nil {
			round = append(round, seed)
		}
	}
	left = len(round)
	var middles []int
	tried := slices.Sorted(maps.Keys(x.plays))
	for i := 1; i < len(tried); i++ {
		from, to := tried[i-1], tried[i]
		if to-from > 1 && x.shows(x.plays[from]) != x.shows(x.plays[to]) {
			middles = append(middles, (from+to)/2)
			left += bits.Len(uint(to - from - 1))
		}
	}
	if len(round) == 0 {
		round = middles
	}
	return round, left
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
func (w *worker) play(ctx context.Context, at int) (*tried, error) {
	if err := w.reset(ctx); err != nil {
		return nil, err
	}
	p := &tried{explored: explored{taps: w.taps, patience: 2*w.x.took + time.Second, delayed: w.x.delayed}}
	if p.delay = w.LockEndsAfter / 4; p.delay == 0 {
		p.delay = p.patience
	}
	p.endLock = func(ctx context.Context, of *play) error { return w.endsLock(ctx, *of.report.First.Frozen) }
	w.taps[false].begin(at)
	o := w.Options
	o.explored, o.Tell = &p.explored, nil
	var err error
	if p.Report, err = w.database.play(ctx, o); err != nil {
		return nil, err
	}
	w.taps[false].hangUp()
	w.taps[true].hangUp()
	if p.Verdict == Unknown {
		return p, nil
	}
	if p.after, err = w.rowsNow(ctx, w.Tables); err != nil {
		return nil, err
	}
	p.scenes = p.schedule(at, w.taps[false], w.taps[true])
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
	if err := x.repeat(1, (*worker).twoRuns)(ctx); err != nil {
		return err
	}
	for _, at := range x.stales() {
		x.Tell(Other, fmt.Sprintf("once more before %d", at))
		again, err := x.all[0].play(ctx, at)
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
