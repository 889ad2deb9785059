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

// timing holds the samples that are under way, at most one of each kind.
type timing struct {
	group, check, exchange sample
}

// sample is one that is timed.
type sample struct {
	open  bool
	count uint8 // how many there were since the last
	began time.Time
	trace *trace // of the message that waits
}

func (p *sample) begin(now time.Time) { p.open, p.began = true, now }

// due counts one that is being sent, and reports whether it is to be timed.
func (p *sample) due() bool {
	due := p.count == 0 && !p.open
	if p.count++; p.count == sampleEvery {
		p.count = 0
	}
	return due
}

// timesGroup reports whether a group that is being sent is a sample.
func (s *Session) timesGroup(under cover) bool {
	return under > underNothing && s.times(&s.timing.group)
}

// timesCheck reports whether a check that is being sent is timed: it is a sample, or its
// trace is recorded.
func (s *Session) timesCheck() bool {
	c := &s.timing.check
	timed := s.times(c)
	if !timed && !c.open && s.recorded(s.tracing) {
		c.begin(s.cfg.Clock())
		timed = true
	}
	if timed {
		c.trace = s.tracing
	}
	return timed
}

// timeExchange times an exchange that a message waits for.
func (s *Session) timeExchange() {
	s.timing.exchange.begin(s.cfg.Clock())
	s.timing.exchange.trace = s.tracing
}

func (s *Session) times(p *sample) bool {
	if !p.due() {
		return false
	}
	p.begin(s.cfg.Clock())
	return true
}

func (s *Session) groupEnds() {
	if g := &s.timing.group; g.open {
		g.open = false
		s.events.Ran(s.cfg.Clock().Sub(g.began))
	}
}

// checkEnds takes in the answer to a check, if it is the sample's.
func (s *Session) checkEnds(n *note) {
	if c := &s.timing.check; n.tested && c.open {
		c.open, n.tested = false, false
		s.waited(WaitCheck, c)
	}
}

func (s *Session) exchangeEnds() {
	if x := &s.timing.exchange; x.open {
		x.open = false
		s.waited(WaitExchange, x)
	}
}

func (s *Session) waited(by Wait, p *sample) {
	traceParent := ""
	if s.recorded(p.trace) {
		traceParent = p.trace.String()
	}
	p.trace = nil
	s.events.Waited(by, s.cfg.Clock().Sub(p.began), traceParent)
}
