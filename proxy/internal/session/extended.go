package session

import (
	"bytes"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// parse handles a whole Parse.
func (s *Session) parse(msg []byte, at int, out *Out) int {
	name, rest, ok := wire.CString(msg[wire.HeaderSize:])
	body, _, ok2 := wire.CString(rest)
	if !ok || !ok2 {
		s.q.Push(ledger.Parse)
		return s.pass(len(msg), len(msg), at, out)
	}
	bySettings := s.readsDifferently(body)
	result := s.scanner.Scan(body, s.options)
	s.inherit(result.Statements)
	s.tracing = s.traceOf(body)
	st := statement{fence: result.Fence, empty: len(result.Statements) == 0, trace: s.tracing}
	if !st.empty {
		st.text = result.Statements[0]
	}
	m := policy.Message{Kind: policy.Parse, Statements: result.Statements, Fence: result.Fence, FenceErr: result.FenceErr, BySettings: bySettings, DropsUnnamed: len(name) == 0}
	a, ok := s.decide(&m, out)
	if !ok {
		return 0
	}
	e := (*wire.Error)(nil)
	if a.Do == policy.Refuse {
		e = s.refusal(a, body, &m)
	} else if hasNonASCII(name) && st.fence != "" {
		e = s.refusal(policy.Action{Refusal: policy.Refusal{State: fence.CannotBeFenced, Reason: policy.HiddenFence}}, body, &m)
	}
	s.openBatch()
	if e != nil && !s.reportShadowedEarly(e) {
		s.refuseBatch(e, out)
		return len(msg)
	}
	s.putChecks(&a, out)
	s.noteParse(name, &st)
	s.prepared.Sent(name, s.batch.id, st)
	s.pushGiven(ledger.Parse, name)
	return s.pass(len(msg), len(msg), at, out)
}

// readsDifferently reports whether the fence or the class of a Parse's text depends on
// standard_conforming_strings, which an unanswered message may change.
func (s *Session) readsDifferently(body []byte) bool {
	if s.quiet() || bytes.IndexByte(body, '\\') < 0 || !sqltext.MayCarry(body) {
		return false
	}
	type reading struct {
		fence  string
		failed bool
		text   sqltext.Statement
		n      int
	}
	var readings [2]reading
	opt := s.options
	for i := range readings {
		r := s.scanner.Scan(body, opt)
		readings[i] = reading{fence: r.Fence, failed: r.FenceErr != nil, n: len(r.Statements)}
		if len(r.Statements) > 0 {
			readings[i].text = sqltext.Statement{Class: r.Statements[0].Class, Flags: r.Statements[0].Flags}
		}
		opt.EscapeStrings = !opt.EscapeStrings
	}
	return readings[0] != readings[1]
}

// bind handles a Bind. It needs only the names, not the parameters, which may be large.
func (s *Session) bind(in []byte, size, at int, out *Out) int {
	have := in[wire.HeaderSize:min(size, len(in))]
	portal, rest, ok := wire.CString(have)
	name, _, ok2 := wire.CString(rest)
	if !ok || !ok2 {
		if len(in) < size && len(have) <= s.cfg.MaxStatement {
			return 0
		}
		return s.bindUnread(in, size, at, out)
	}
	st, ok := s.statementOf(&s.prepared, name)
	if !ok {
		return s.wait()
	}
	if hasNonASCII(portal) {
		st = ambiguousName
	}
	if taken := s.decideAndOpen(policy.Bind, &st, size, in, out); taken >= 0 {
		return taken
	}
	if len(portal) > 0 && st.fence != "" {
		s.namedFence = true
	}
	s.portals.Sent(portal, s.batch.id, st)
	s.pushGiven(ledger.Bind, portal)
	return s.pass(size, len(in), at, out)
}

// statementOf returns the statement that a name stands for. It returns false if the
// server must answer first, which decides on the name.
func (s *Session) statementOf(names *ledger.Names[statement], name []byte) (st statement, ok bool) {
	st, found, sure := names.Find(name, s.batch.id)
	switch {
	case !sure && s.q.Ready() > 0 && !s.q.CopyIn():
		return st, false
	case hasNonASCII(name):
		st = ambiguousName
	case !found:
		st = s.unseen()
	}
	return st, true
}

// carriesNothing reports whether policy need not decide on a message of the extended
// protocol: neither the session nor the statement carries a fence, and the statement has
// no effect to record. st is nil for none.
func (s *Session) carriesNothing(st *statement) bool {
	if st != nil && (st.doubt || st.fence != "" || st.text.Flags != 0 || st.text.Class.Controls()) {
		return false
	}
	return !s.mayCarry() && !s.cfg.required() && !s.fenced && s.hold.state == policy.NoHold && s.lastCarrier == (policy.Carrier{})
}

// bindUnread handles a Bind whose names can't be read: they are too long, or the message is
// malformed, which PostgreSQL refuses.
func (s *Session) bindUnread(in []byte, size, at int, out *Out) int {
	if len(in) >= size { // malformed
		s.openBatch()
		s.q.Push(ledger.Bind)
		return s.pass(size, len(in), at, out)
	}
	st := ambiguousName
	if taken := s.decideAndOpen(policy.Bind, &st, size, in, out); taken >= 0 {
		return taken
	}
	if refusal := s.longName(); size > s.cfg.MaxStatement && !s.reportShadowed(refusal) {
		s.refuseBatch(refusal, out)
		n := min(size, len(in))
		s.dropLeft = size - n
		return n
	}
	s.portals.Sent(nil, s.batch.id, st)
	s.pushGiven(ledger.Bind, nil)
	return s.pass(size, len(in), at, out)
}

// decideAndOpen decides on a message that may be the first of its batch, and opens the
// batch. It returns -1 if the caller is to forward the message, otherwise the bytes used.
func (s *Session) decideAndOpen(kind policy.Kind, st *statement, size int, in []byte, out *Out) int {
	if s.carriesNothing(st) {
		s.openBatch()
		return -1
	}
	m := policy.Message{Kind: kind}
	s.tracing = nil
	if st != nil {
		s.tracing = st.trace
		m.Fence, m.Doubtful = st.fence, st.doubt
		if !st.empty {
			m.Statements = s.asStatements(st)
		}
	}
	a, ok := s.decide(&m, out)
	if !ok {
		return 0
	}
	s.openBatch()
	if a.Do != policy.Refuse {
		s.putChecks(&a, out)
		return -1
	}
	if e := s.refusal(a, nil, &m); s.reportShadowedEarly(e) {
		return -1
	} else {
		s.refuseBatch(e, out)
	}
	n := min(size, len(in))
	s.dropLeft = size - n
	return n
}

// execute handles a whole Execute.
func (s *Session) execute(msg []byte, at int, out *Out) int {
	name, _, ok := wire.CString(msg[wire.HeaderSize:])
	if !ok {
		s.q.Push(ledger.Execute)
		return s.pass(len(msg), len(msg), at, out)
	}
	st, ok := s.statementOf(&s.portals, name)
	if !ok {
		return s.wait()
	}
	if s.batch.Open && s.carriesNothing(&st) {
		s.batch.Ran, s.batch.under = true, max(s.batch.under, underNothing)
		s.q.Push(ledger.Execute)
		return s.pass(len(msg), len(msg), at, out)
	}
	s.tracing = st.trace
	m := policy.Message{Kind: policy.Execute, Fence: st.fence, Doubtful: st.doubt}
	if !st.empty {
		m.Statements = s.asStatements(&st)
	}
	s.inherit(m.Statements)
	a, ok := s.decide(&m, out)
	if !ok {
		return 0
	}
	s.openBatch()
	if a.Do == policy.Refuse {
		if e := s.refusal(a, nil, &m); !s.reportShadowed(e) {
			s.refuseBatch(e, out)
			return len(msg)
		}
		a = policy.Action{By: a.By}
	}
	s.putChecks(&a, out)
	s.noteEffects(&m, &a, nil)
	s.noteExecute(&m, &a)
	s.q.Push(ledger.Execute).Note.trace = st.trace
	return s.pass(len(msg), len(msg), at, out)
}

// pushGiven pushes the entry of a message whose meaning of a name was passed to
// ledger.Names.
func (s *Session) pushGiven(kind ledger.Kind, name []byte) *ledger.Entry[note] {
	e := s.q.Push(kind)
	e.Note.givesName, e.Note.name = true, string(name)
	return e
}

// describe handles a whole Describe, which counts as a Bind of the statement: if the
// server has dropped the statement's plan, it analyses the text again, and evaluates its
// constants and the checks of their domains.
func (s *Session) describe(msg []byte, at int, out *Out) int {
	names := &s.prepared
	if bytes.HasPrefix(msg[wire.HeaderSize:], []byte("P")) {
		names = &s.portals
	}
	name, _, ok := wire.CString(msg[min(wire.HeaderSize+1, len(msg)):])
	if !ok { // malformed
		s.openBatch()
		s.q.Push(ledger.Describe)
		return s.pass(len(msg), len(msg), at, out)
	}
	st, ok := s.statementOf(names, name)
	if !ok {
		return s.wait()
	}
	if taken := s.decideAndOpen(policy.Describe, &st, len(msg), msg, out); taken >= 0 {
		return taken
	}
	s.q.Push(ledger.Describe)
	return s.pass(len(msg), len(msg), at, out)
}

// closeName handles a whole Close. Its name keeps its meaning until the server has
// confirmed the Close: after an error it still exists.
func (s *Session) closeName(msg []byte, at int, out *Out) int {
	if taken := s.decideAndOpen(policy.OtherFirst, nil, len(msg), msg, out); taken >= 0 {
		return taken
	}
	e := s.q.Push(ledger.Close)
	if body := msg[wire.HeaderSize:]; len(body) > 1 {
		e.Note.closeKind = body[0]
		e.Note.name = string(bytes.TrimRight(body[1:], "\x00"))
		s.noteNameUse(body[1:])
	}
	return s.pass(len(msg), len(msg), at, out)
}
