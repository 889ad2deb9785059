package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Kind is the kind of a step: what the models call a step of a taker or a session, as far as a
// run can tell it.
type Kind string

// The kinds. Of a taker: it has announced itself and queues for the lock, it has recorded its
// token or was refused, its acquire has returned. Of a session: a check passes, a check's lock is
// gone before its transaction's end, a hold is taken and given back, a statement runs under a
// fence, a transaction commits what it wrote under one, a transaction ends, the backend ends.
// A promotion is one step for each resource, with the token and the position that the standby had.
const (
	Wanted   Kind = "wanted"
	Sealed   Kind = "sealed"
	Refused  Kind = "refused"
	Granted  Kind = "granted"
	Checked  Kind = "checked"
	Undone   Kind = "undone"
	Held     Kind = "held"
	Unheld   Kind = "unheld"
	Ran      Kind = "ran"
	Commits  Kind = "commits"
	Ended    Kind = "ended"
	Gone     Kind = "gone"
	Promoted Kind = "promoted"
)

// Kinds are all kinds.
var Kinds = []Kind{Wanted, Sealed, Refused, Granted, Checked, Undone, Held, Unheld, Ran, Commits, Ended, Gone, Promoted}

// Step is one step of a run. Its line has the fields in this order, with - for what it has not.
type Step struct {
	Kind     Kind
	Actor    string // a taker or a session
	Resource string
	Token    int64
	Position uint64 // of a commit or a promotion, in the write-ahead log
}

func (s Step) String() string {
	name := func(text string) string {
		if text == "" {
			return "-"
		}
		return text
	}
	return fmt.Sprintf("%s %s %s %d %X", s.Kind, name(s.Actor), name(s.Resource), s.Token, s.Position)
}

// ParseStep reads a line.
func ParseStep(line string) (s Step, err error) {
	fields := strings.Fields(line)
	if len(fields) != 5 {
		return s, fmt.Errorf("%q has %d fields, want 5", line, len(fields))
	}
	s = Step{Kind: Kind(fields[0]), Actor: fields[1], Resource: fields[2]}
	if s.Token, err = strconv.ParseInt(fields[3], 10, 64); err != nil {
		return s, err
	}
	s.Position, err = strconv.ParseUint(fields[4], 16, 64)
	return s, err
}

// Walk takes the steps of a run in their order, and tells the first one that can't be in the
// models. The zero value is the state before the first step.
//
// It has the state of fence.pml and hold.pml: the last token of each resource, who has its lock
// by a check or a hold and for which token, and what was granted.
type Walk struct {
	// Quiet says that the run can't tell when a lock is released: a seal shows that it was. A
	// session's name is ahead of a slash, its transaction's behind; and what isn't held by name is
	// all that a session holds.
	Quiet     bool
	resources map[string]*resource
	position  uint64
	counts    map[Kind]int
}

type resource struct {
	last     int64
	promoted bool             // since the last seal
	wanted   map[string]int64 // by taker
	sealed   map[int64]string // the taker of each token
	granted  map[int64]bool
	checks   map[string]map[int64]bool // by session
	holds    map[string]map[int64]bool
}

// jump is what the first token behind a promotion is above the standby's last one, at least.
const jump = 1 << 32

// Step takes a step. Behind an error the walk is over.
func (w *Walk) Step(s Step) error {
	if err := w.take(s); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	if w.counts == nil {
		w.counts = map[Kind]int{}
	}
	w.counts[s.Kind]++
	return nil
}

// Missing returns those of the kinds of which there was no step.
func (w *Walk) Missing(kinds ...Kind) []Kind {
	return slices.DeleteFunc(kinds, func(k Kind) bool { return w.counts[k] > 0 })
}

// Counts returns how many steps there were of each kind.
func (w *Walk) Counts() map[Kind]int { return maps.Clone(w.counts) }

func (w *Walk) find(name string) *resource {
	r := w.resources[name]
	if r == nil {
		if w.resources == nil {
			w.resources = map[string]*resource{}
		}
		r = &resource{
			wanted: map[string]int64{}, sealed: map[int64]string{}, granted: map[int64]bool{},
			checks: map[string]map[int64]bool{}, holds: map[string]map[int64]bool{},
		}
		w.resources[name] = r
	}
	return r
}

func (w *Walk) take(s Step) error {
	switch {
	case w.Quiet && s.Kind == Unheld:
		for _, r := range w.resources {
			delete(r.holds, s.Actor)
		}
		return nil
	case w.Quiet && s.Kind == Sealed:
		r := w.find(s.Resource)
		clear(r.checks)
		clear(r.holds)
	}
	switch s.Kind {
	case Ended, Gone:
		for _, r := range w.resources {
			delete(r.checks, s.Actor)
			if s.Kind == Gone {
				delete(r.holds, s.Actor)
			}
		}
		return nil
	}
	r := w.find(s.Resource)
	switch s.Kind {
	case Promoted:
		r.last, r.promoted, w.position = s.Token, true, s.Position
		clear(r.wanted)
		clear(r.checks)
		clear(r.holds)
	case Wanted:
		r.wanted[s.Actor] = s.Token
	case Refused:
		delete(r.wanted, s.Actor)
	case Sealed:
		return r.seal(s)
	case Granted:
		if r.sealed[s.Token] != s.Actor {
			return fmt.Errorf("%s has not sealed it", s.Actor)
		}
		if r.granted[s.Token] {
			return fmt.Errorf("it is granted twice (I3)")
		}
		r.granted[s.Token] = true
	case Checked:
		return r.lock(r.checks, s)
	case Held:
		return r.lock(r.holds, s)
	case Undone:
		return unlock(r.checks, s)
	case Unheld:
		return unlock(r.holds, s)
	case Ran:
		return r.covers(s)
	case Commits:
		if s.Position < w.position {
			return fmt.Errorf("the commit before it is at %X", w.position)
		}
		w.position = s.Position
		if err := r.current(s); err != nil {
			return err
		}
		return r.covers(s)
	default:
		return fmt.Errorf("no such kind of step")
	}
	return nil
}

// seal records a token: whoever has the lock of an older one keeps it out.
func (r *resource) seal(s Step) error {
	if token, queues := r.wanted[s.Actor]; !queues || token != s.Token {
		return fmt.Errorf("%s has not announced it", s.Actor)
	}
	least := r.last + 1
	if r.promoted {
		least = r.last + jump
	}
	if taker := r.sealed[s.Token]; taker != "" {
		return fmt.Errorf("%s has sealed it before (I3, I9)", taker)
	}
	if s.Token < least {
		return fmt.Errorf("the last token is %d, so it must be %d at least (I3, I9)", r.last, least)
	}
	for _, locks := range []map[string]map[int64]bool{r.checks, r.holds} {
		for session, tokens := range locks {
			if session != s.Actor {
				return fmt.Errorf("%s has the lock, for %v (I2)", session, slices.Sorted(maps.Keys(tokens)))
			}
		}
	}
	delete(r.wanted, s.Actor)
	r.last, r.promoted, r.sealed[s.Token] = s.Token, false, s.Actor
	return nil
}

// current reports whether a token is the last one.
func (r *resource) current(s Step) error {
	switch {
	case r.promoted:
		return fmt.Errorf("it was sealed before a promotion (I9)")
	case s.Token != r.last:
		return fmt.Errorf("the last token is %d (I1, I2)", r.last)
	}
	return nil
}

// covers reports whether a session has the lock for a token.
func (r *resource) covers(s Step) error {
	session, _, _ := strings.Cut(s.Actor, "/")
	if !r.checks[s.Actor][s.Token] && !r.holds[session][s.Token] {
		return fmt.Errorf("no check and no hold of %s covers it (I5)", s.Actor)
	}
	return nil
}

func (r *resource) lock(locks map[string]map[int64]bool, s Step) error {
	if err := r.current(s); err != nil {
		return err
	}
	if locks[s.Actor] == nil {
		locks[s.Actor] = map[int64]bool{}
	}
	locks[s.Actor][s.Token] = true
	return nil
}

func unlock(locks map[string]map[int64]bool, s Step) error {
	if !locks[s.Actor][s.Token] {
		return fmt.Errorf("%s doesn't have it", s.Actor)
	}
	delete(locks[s.Actor], s.Token)
	if len(locks[s.Actor]) == 0 {
		delete(locks, s.Actor)
	}
	return nil
}
