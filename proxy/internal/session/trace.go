package session

import (
	"bytes"

	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// trace is the traceparent in a comment of a message. It links a refusal to the trace of
// the application. The proxy looks for it only in texts that it reads anyway, and keeps it
// until the answer has come.
type trace [sqltext.TraceParentSize]byte

func (t *trace) String() string {
	if t == nil {
		return ""
	}
	return string(t[:])
}

// recorded reports whether to report the waits of a message with this trace: it has the
// flag "sampled" (W3C Trace Context, section 3.2.2.5).
func (s *Session) recorded(t *trace) bool {
	return s.cfg.Traces && t != nil && bytes.IndexByte([]byte("13579bdf"), t[len(t)-1]) >= 0
}

// traceOf returns the trace of a text, nil without one.
func (s *Session) traceOf(text []byte) *trace {
	found := sqltext.TraceParent(text)
	if found == nil {
		return nil
	}
	t := s.spareTrace
	if s.spareTrace = nil; t == nil {
		t = new(trace)
	}
	copy(t[:], found)
	return t
}

// answeredTrace returns the trace of the message that is being answered.
func (o *outstanding) answeredTrace() *trace {
	if front := o.q.Front(); front != nil {
		return front.Note.trace
	}
	return nil
}

// reportRefusal passes the refusal of a message with this trace to Events.
func (s *Session) reportRefusal(r Refusal, t *trace) {
	r.TraceParent = t.String()
	s.events.Refused(r)
}
