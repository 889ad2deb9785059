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
	at     int
	ahead  string // the statement that went ahead of the message that was held back
	after  rowsOf
	scenes []Scene
}

// mostSwapped is how many pairs of statements are played in the other order.
const mostSwapped = 10

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
	swapped  map[int]*tried // with another connection's statement ahead
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
	x := &explorer{Exploring: o, resets: columns{}, varies: columns{}, plays: map[int]*tried{}, swapped: map[int]*tried{}, times: map[string]time.Duration{}, report: &Exploration{Windows: []Window{}, Notes: []string{}}}
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
		x.playAll, x.playSwapped, x.confirm, x.repeat(len(x.all), (*worker).noOthers),
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
			played, err := w.play(ctx, round[i], false)
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

// playSwapped plays with statements that were in flight at once on two connections, in the other order:
// the later one has passed, and the earlier one not. No moment between messages shows that.
func (x *explorer) playSwapped(ctx context.Context) error {
	all := pairs(x.messages)
	differ := slices.DeleteFunc(slices.Clone(all), x.showSame)
	some := differ[:min(len(differ), mostSwapped)]
	err := x.spread(ctx, len(some), func(ctx context.Context, w *worker, i int) error {
		played, err := w.play(ctx, some[i].one, true)
		if err != nil {
			return err
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.shows(played) != NotReached { // another connection waits for this one
			x.swapped[played.at] = played
		}
		x.Tell(Other, fmt.Sprintf("before %d, %s, with another statement ahead: %s", played.at, x.messages[played.at-1], x.shows(played)))
		return nil
	})
	if left := len(all) - len(some); left > 0 {
		x.note("%d pairs of statements that were in flight at once were not tried in the other order: moments around %d show the same, and at most %d are tried", left, len(all)-len(differ), mostSwapped)
	}
	return err
}

// showSame reports whether all moments around two statements show the same.
func (x *explorer) showSame(p pair) bool {
	all := []Shows{}
	for _, at := range slices.Sorted(maps.Keys(x.plays)) {
		if at <= p.one {
			all = nil
		}
		if at <= p.end {
			all = append(all, x.shows(x.plays[at]))
		}
	}
	return len(slices.Compact(all)) < 2
}

func (x *explorer) delayed(messages []*Message) (most time.Duration) {
	for text, at := range firstTimes(messages) {
		if undisturbed, known := x.times[text]; known {
			most = max(most, at-undisturbed)
		}
	}
	return most
}

// play plays with one moment, or with a pair of statements in the other order.
func (w *worker) play(ctx context.Context, at int, swapped bool) (*tried, error) {
	p, err := w.playWith(ctx, at, swapped, holding(w.x.messages, at, swapped))
	if err == nil && !swapped && p.explored.shows == NotReached { // what it sends differs from run to run, or came earlier yet
		p, err = w.playWith(ctx, at, swapped, hold{number: at})
	}
	return p, err
}

// holding is what holds a message back. Two statements that were in flight at once may come in either order;
// else it is found by what it is, since what other connections send may come earlier or later.
func holding(messages []*Message, at int, swapped bool) hold {
	own := messages[at-1].pattern()
	for _, pair := range pairs(messages) {
		if swapped && pair.one == at || !swapped && pair.other == at && messages[pair.one-1].pattern() != own {
			return hold{pair.one, own, true}
		}
	}
	return hold{occurrences(messages[:at], own), own, false}
}

func (w *worker) playWith(ctx context.Context, at int, swapped bool, held hold) (*tried, error) {
	if err := w.reset(ctx); err != nil {
		return nil, err
	}
	p := &tried{at: at, explored: explored{taps: w.taps, patience: 2*w.x.took + time.Second, delayed: w.x.delayed, swapped: swapped}}
	if p.delay = w.LockEndsAfter / 4; p.delay == 0 {
		p.delay = p.patience
	}
	p.endLock = func(ctx context.Context, of *play) (waiting, error) {
		return w.endsLock(ctx, *of.report.First.Frozen, true)
	}
	first := w.taps[false]
	first.begin(held)
	o := w.Options
	o.explored, o.Tell = &p.explored, nil
	var err error
	if p.Report, err = w.database.play(ctx, o); err != nil {
		return nil, err
	}
	first.hangUp()
	w.taps[true].hangUp()
	if swapped && first.ahead != nil {
		p.ahead = cmp.Or(first.ahead.Text(), first.ahead.String())
	}
	if p.Verdict == Unknown {
		return p, nil
	}
	if p.after, err = w.rowsNow(ctx, w.Tables); err != nil {
		return nil, err
	}
	p.scenes = p.schedule(first, w.taps[true])
	return p, nil
}

// schedule is what both runs have sent, and what happened to the first before a message.
func (p *tried) schedule(first, second *tap) (all []Scene) {
	add := func(second bool, what string, m *Message, at time.Time) {
		all = append(all, Scene{nameOf(second), what, at.Sub(*p.First.Started).Seconds(), m})
	}
	for _, m := range first.messages {
		if m == first.late {
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

// stales are the plays that show a stale write, that with the fewest messages first, and of those the
// last.
func (x *explorer) stales() (all []*tried) {
	for _, plays := range []map[int]*tried{x.plays, x.swapped} {
		for _, p := range plays {
			if x.shows(p) == ShowsStale {
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b *tried) int {
		return cmp.Or(cmp.Compare(len(a.scenes), len(b.scenes)), cmp.Compare(b.at, a.at), cmp.Compare(a.ahead, b.ahead))
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
	for _, p := range x.stales() {
		x.Tell(Other, fmt.Sprintf("once more before %d", p.at))
		again, err := x.all[0].play(ctx, p.at, p.swapped)
		if err != nil {
			return err
		}
		if x.shows(again) == ShowsStale {
			x.report.Schedule = &Schedule{again.at, again.ahead, again.scenes, again.Writes}
			return nil
		}
		p.explored.shows, p.Reason = Unjudged, "a stale write was seen once, and not again"
	}
	return nil
}
