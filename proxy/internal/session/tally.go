package session

import (
	"time"

	"github.com/wirefence/wirefence/proxy/internal/policy"
)

// cover is what a group of messages runs under.
type cover uint8

const (
	uncounted cover = iota // it runs nothing that could be fenced
	underNothing
	underHold
	underCheck
	covers
)

// Tally counts groups of messages, each of which ends in a Query, a FunctionCall or a
// Sync, by what they ran under. A group that runs nothing isn't counted, nor one that is
// refused by the proxy, nor one in a fenced session that only begins or ends a transaction
// or does something else that needs no check.
type Tally [covers]uint64

// Unfenced are groups without a fence.
func (t *Tally) Unfenced() uint64 { return t[underNothing] }

// Held are groups under a hold.
func (t *Tally) Held() uint64 { return t[underHold] }

// Checked are groups with a check, also one that asks for the hold, and one that keeps a
// group without a fence from writing.
func (t *Tally) Checked() uint64 { return t[underCheck] }

// Add adds what another has counted.
func (t *Tally) Add(other Tally) {
	for i, n := range other {
		t[i] += n
	}
}

// Tally returns what the session has counted.
func (s *Session) Tally() Tally { return s.tally }

func coverOf(a *policy.Action) cover {
	switch {
	case len(a.Checks) > 0:
		return underCheck
	case a.Covers:
		return underHold
	case a.By.Carries():
		return uncounted
	}
	return underNothing
}

// Wait is what a client's message waited for.
type Wait uint8

// The kinds of waits: for a check that travels with the message, a round trip included,
// or for an exchange of the proxy's own ahead of it.
const (
	WaitCheck Wait = iota
	WaitExchange
)

// sampleEvery is of how many groups, and of how many checks, one is timed. The first of a
// session is.
const sampleEvery = 16

// timing holds the samples that are under way, at most one of each kind, by the time at
// which they began; a zero time is none.
type timing struct {
	group, check, exchange time.Time
	groups, checks         uint8 // how many there were since the last sample
}

// timesGroup reports whether a group that is being sent is a sample.
func (s *Session) timesGroup(under cover) bool {
	return under > underNothing && s.samples(&s.timing.groups, &s.timing.group)
}

// timesCheck reports whether a check that is being sent is a sample.
func (s *Session) timesCheck() bool { return s.samples(&s.timing.checks, &s.timing.check) }

func (s *Session) samples(count *uint8, began *time.Time) bool {
	sample := *count == 0 && began.IsZero()
	if *count++; *count == sampleEvery {
		*count = 0
	}
	if sample {
		*began = s.cfg.Clock()
	}
	return sample
}

func (s *Session) groupEnds() {
	if t := &s.timing; !t.group.IsZero() {
		s.events.Ran(s.cfg.Clock().Sub(t.group))
		t.group = time.Time{}
	}
}

// checkEnds takes in the answer to a check, if it is the sample's.
func (s *Session) checkEnds(n *note) {
	if t := &s.timing; n.tested && !t.check.IsZero() {
		s.events.Waited(WaitCheck, s.cfg.Clock().Sub(t.check))
		t.check, n.tested = time.Time{}, false
	}
}

func (s *Session) exchangeEnds() {
	if t := &s.timing; !t.exchange.IsZero() {
		s.events.Waited(WaitExchange, s.cfg.Clock().Sub(t.exchange))
		t.exchange = time.Time{}
	}
}
