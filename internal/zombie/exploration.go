package zombie

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Exploring are the options of Explore. Of those of a play it has no moment to freeze.
type Exploring struct {
	Options
	// Env is the environment of the command. Required.
	Env []string
	// Reset is a command for sh that puts the data back. Required.
	Reset string
	// EndLock is a command for sh that ends the first run's lock; with none it ends by itself
	// within LockEndsAfter.
	EndLock string
	// LockKeys are keys in Redis. Commands that name one are moments, too.
	LockKeys []string
	// Jobs is how many moments are played at once; up to 1, they are played in the database itself. With
	// more, each is played in a copy, to which the commands are led that name the database: what they
	// lock elsewhere is one lock for all.
	Jobs int
}

// Validate reports what is missing or contradictory.
func (o Exploring) Validate() error {
	if o.Reset == "" {
		return errors.New("no command puts the data back")
	}
	if o.EndLock == "" && o.LockEndsAfter <= 0 {
		return errors.New("neither a command nor a time says when the lock ends")
	}
	return o.Options.Validate()
}

// Shows is what a play with one moment has shown.
type Shows string

// What a play with one moment can show.
const (
	ShowsStale Shows = "stale"       // the first run overwrote, by which something was lost
	ShowsNone  Shows = "none"        // it wrote nothing behind the second's turn
	Same       Shows = "same"        // it wrote, and the tables are as after one run behind the other
	NoLock     Shows = "no lock"     // a second run came through before the lock's end: the first had none yet, or no longer
	Held       Shows = "held"        // locks of the database's own kept the second run out
	Idle       Shows = "idle"        // the second run had nothing to do
	NotReached Shows = "not reached" // the first run ended before it sent this message
	Unjudged   Shows = "unknown"
)

// Exploration is what all moments have shown.
type Exploration struct {
	Verdict  Verdict   `json:"verdict" says:"stale, none, or unknown: it couldn't judge some moments, and no other is stale"`
	Reason   string    `json:"reason,omitempty" says:"why it is unknown; the text may change"`
	Messages int       `json:"messages" says:"how many messages a run sends; before each is a moment"`
	Tried    int       `json:"tried" says:"how many moments between messages were tried; each other is between two that show the same. Those with another statement ahead are not counted"`
	Windows  []Window  `json:"windows" says:"neighbouring moments that show the same, in their order; behind them, those with another statement ahead"`
	Schedule *Schedule `json:"schedule" says:"the smallest that ends in a stale write; null if there is none"`
	Notes    []string  `json:"notes" says:"what limits the verdict; the texts may change"`
}

// Window is neighbouring moments that show the same.
type Window struct {
	Shows  Shows   `json:"shows" says:"stale: what the first run wrote has undone the second's; none: it wrote nothing; same: it wrote, and the tables are as after one run behind the other; no lock: it had no lock yet or no longer; held: locks of the database kept the second run out, or --end-lock; idle: the second run had nothing to do; not reached; unknown"`
	Reason string  `json:"reason,omitempty" says:"why; the text may change"`
	From   int     `json:"from" says:"the number of the message before which the first moment is"`
	To     int     `json:"to" says:"and the last"`
	Tried  int     `json:"tried" says:"how many of them were tried"`
	Behind string  `json:"behind" says:"the last statement before the first moment; empty if there is none"`
	Before string  `json:"before" says:"the message before which the last moment is; with another statement ahead of it, if so"`
	Ahead  string  `json:"ahead,omitempty" says:"a statement of another connection that was sent at once with that message, and came through ahead of it; absent of moments between messages"`
	Writes []Write `json:"writes" says:"what the first run wrote behind the second's turn, in the last moment tried"`
}

// Schedule is two runs, message by message.
type Schedule struct {
	Moment int     `json:"moment" says:"the number of the message that was held back"`
	Ahead  string  `json:"ahead,omitempty" says:"a statement of another connection that came through ahead of it; absent of a moment between messages"`
	Steps  []Scene `json:"steps" says:"what happened, in order"`
	Writes []Write `json:"writes" says:"what the first run wrote behind the second's turn"`
}

// What happens in a schedule.
const (
	sends    = "sends"
	isFrozen = "frozen"
	lockEnds = "lock ends"
	goesOn   = "goes on"
)

// Scene is a step of a schedule.
type Scene struct {
	Run     string   `json:"run" says:"first or second"`
	What    string   `json:"what" says:"sends, frozen, lock ends, or goes on"`
	At      float64  `json:"at" says:"when, in seconds since the first run was started"`
	Message *Message `json:"message" says:"what it sends; null of other steps"`
}

// conclude groups the moments into windows.
func (x *explorer) conclude() error {
	x.report.Tried = len(x.plays)
	had := false
	for _, at := range slices.Sorted(maps.Keys(x.plays)) {
		p, message := x.plays[at], x.messages[at-1].String()
		shows := x.shows(p)
		had = had || p.Verdict != Unknown
		if n := len(x.report.Windows); n == 0 || x.report.Windows[n-1].Shows != shows {
			x.report.Windows = append(x.report.Windows, Window{Shows: shows, From: at, Behind: x.statement(at)})
		}
		w := &x.report.Windows[len(x.report.Windows)-1]
		w.To, w.Before, w.Reason, w.Writes = at, message, x.reason(p, shows), append([]Write{}, p.Writes...)
		w.Tried++
	}
	for _, at := range slices.Sorted(maps.Keys(x.swapped)) {
		p := x.swapped[at]
		shows, before := x.shows(p), fmt.Sprintf("%s, with %s ahead of it", x.messages[at-1], p.ahead)
		x.report.Windows = append(x.report.Windows, Window{
			Shows: shows, Reason: x.reason(p, shows), From: at, To: at, Tried: 1,
			Behind: x.statement(at), Before: before, Ahead: p.ahead, Writes: append([]Write{}, p.Writes...),
		})
	}
	if names := x.varies.names(); len(names) > 0 {
		x.note("not compared, since they differ from run to run: %s", strings.Join(names, ", "))
	}
	if !x.anyLock() {
		x.note("no lock kept a second run out at any moment: the command is judged as if it had one all the time")
	}
	unjudged := slices.IndexFunc(x.report.Windows, func(w Window) bool { return w.Shows == Unjudged })
	switch {
	case x.report.Schedule != nil:
		x.report.Verdict = Stale
	case unjudged >= 0:
		w := x.report.Windows[unjudged]
		return unknown("before %s: %s", w.Before, w.Reason)
	case !had:
		return unknown("at no moment a second run had the turn")
	default:
		x.report.Verdict = None
	}
	return nil
}

// statement is the last before a moment. A Bind counts, since it takes the snapshot.
func (x *explorer) statement(at int) string {
	for _, m := range slices.Backward(x.messages[:at-1]) {
		if m.Kind == queries || m.Kind == binds || m.Kind == commands {
			return m.Text()
		}
	}
	return ""
}

func (x *explorer) note(format string, args ...any) {
	x.report.Notes = append(x.report.Notes, fmt.Sprintf(format, args...))
}

func (x *explorer) reason(p *tried, shows Shows) string {
	_, lost := x.varies.differs(x.serial[0], p.after)
	_, changes := x.varies.differs(x.serial[0], x.single)
	switch {
	case shows == Same && changes:
		return "it wrote, and the tables are as after two runs, one behind the other"
	case shows == Same:
		return "it wrote the same values as the second run"
	case shows == NoLock && p.Verdict == Stale && lost:
		return "a second run came through before the lock's end; then the tables are not as after one run behind the other"
	case shows == NoLock:
		return "a second run came through before the lock's end"
	}
	return p.Reason
}
