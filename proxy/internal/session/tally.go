package session

import (
	"time"

	"github.com/wirefence/wirefence/proxy/internal/policy"
)

// cover is the protection under which a group of messages runs.
type cover uint8

const (
	uncounted cover = iota // the group runs nothing that could be fenced
	underNothing
	underHold
	underCheck
	covers
)

// Tally counts groups of messages, each ending in a Query, a FunctionCall or a Sync, by
// their cover. It leaves out groups that run nothing, that the proxy refuses, or that need
// no check in a fenced session, such as BEGIN and COMMIT.
type Tally [covers]uint64

// Unfenced returns the number of groups without a fence.
func (t *Tally) Unfenced() uint64 { return t[underNothing] }

// Held returns the number of groups under a hold.
func (t *Tally) Held() uint64 { return t[underHold] }

// Checked returns the number of groups with a check, also a check that asks for the hold,
// or that makes a group without a fence READ ONLY.
func (t *Tally) Checked() uint64 { return t[underCheck] }

// Add adds another tally.
func (t *Tally) Add(other Tally) {
	for i, n := range other {
		t[i] += n
	}
}

// Tally returns the session's tally.
func (s *Session) Tally() Tally { return s.tally }

func coverOf(a *policy.Action) cover {
	switch {
	case a.Checks():
		return underCheck
	case a.Held:
		return underHold
	case a.By.Carries():
		return uncounted
	}
	return underNothing
}

// Wait is a kind of wait of a client's message.
type Wait uint8

// The kinds of waits: for a check that travels with the message, a round trip included,
// or for an exchange of the proxy's own ahead of it.
const (
	WaitCheck Wait = iota
	WaitExchange
)

// One in sampleEvery groups and one in sampleEvery checks of a session is timed, the first
// one included.
const sampleEvery = 16

// timing holds the samples that are under way, at most one of each kind.
type timing struct {
	group, check, exchange sample
}

// sample is a group, check or exchange that is timed.
type sample struct {
	open  bool
	count uint8 // how many there were since the last sample
	began time.Time
	trace *trace // of the message that waits
}

func (p *sample) begin(now time.Time) { p.open, p.began = true, now }

// timesGroup reports whether a group that is being sent is timed.
func (s *Session) timesGroup(under cover) bool {
	return under > underNothing && s.startSample(&s.timing.group)
}

// timesCheck reports whether a check that is being sent is timed: it is a sample, or its
// trace is recorded.
func (s *Session) timesCheck() bool {
	c := &s.timing.check
	timed := s.startSample(c)
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

// startSample counts a group or check that is being sent, and reports whether it is timed.
func (s *Session) startSample(p *sample) bool {
	timed := p.count == 0 && !p.open
	p.count = (p.count + 1) % sampleEvery
	if timed {
		p.begin(s.cfg.Clock())
	}
	return timed
}

func (s *Session) finishGroupSample() {
	if g := &s.timing.group; g.open {
		g.open = false
		s.events.Ran(s.cfg.Clock().Sub(g.began))
	}
}

// finishCheckSample handles the answer to a check, if the check is timed.
func (s *Session) finishCheckSample(n *note) {
	if c := &s.timing.check; n.checkSample && c.open {
		c.open, n.checkSample = false, false
		s.noteRoundTrip(c.began)
		s.reportWait(WaitCheck, c)
	}
}

func (s *Session) finishExchangeSample() {
	if x := &s.timing.exchange; x.open {
		x.open = false
		s.reportWait(WaitExchange, x)
	}
}

func (s *Session) reportWait(by Wait, p *sample) {
	traceParent := ""
	if s.recorded(p.trace) {
		traceParent = p.trace.String()
	}
	p.trace = nil
	s.events.Waited(by, s.cfg.Clock().Sub(p.began), traceParent)
}
