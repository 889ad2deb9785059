package session

import (
	"bytes"

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
		return s.namesUnread(msg, len(msg), at, out)
	}
	s.tracing = s.traceOf(body)
	s.forgetIdle()
	result, st := s.scan(body)
	bySettings := result.BySettings && sqltext.Mentions(body)
	if _, ok := s.covered(&st); ok && result.FenceErr == nil && !bySettings {
		s.openBatch()
		s.noteParse(name, st)
		return s.pass(len(msg), len(msg), at, out)
	}
	m := policy.Message{Kind: policy.Parse, Statements: result.Statements, Fence: result.Fence, FenceErr: result.FenceErr, BySettings: bySettings}
	if _, used, goesOn := s.decideInBatch(&m, body, len(msg), len(msg), out); !goesOn {
		return used
	}
	s.noteParse(name, st)
	return s.pass(len(msg), len(msg), at, out)
}

// bind handles a Bind. To decide, it needs only the names; the parameters, which may be large,
// are searched as they come.
func (s *Session) bind(in []byte, size, at int, out *Out) int {
	have := in[wire.HeaderSize:min(size, len(in))]
	portal, rest, ok := wire.CString(have)
	name, values, ok2 := wire.CString(rest)
	if !ok || !ok2 {
		return s.namesUnread(in, size, at, out)
	}
	st, ok := s.statementOf(&s.names.prepared, name)
	if !ok {
		return s.wait()
	}
	if used, goesOn := s.decideByName(policy.Bind, &st, size, len(in), out); !goesOn {
		return used
	}
	st.text.Flags |= sqltext.ParameterFlags(values)
	s.noteBind(portal, st, len(in) < size)
	return s.passReading(&s.names.portals, portal, in[:min(size, len(in))], size, at, out)
}

// statementOf returns what a name stands for. It returns false if the server must answer first,
// which decides that.
func (o *outstanding) statementOf(names *ledger.Names[statement], name []byte) (st statement, ok bool) {
	st, found, sure := names.Find(name, o.batch.id)
	switch {
	case !sure && o.q.Ready() > 0 && !o.q.CopyIn():
		return st, false
	case !found:
		st = unseen
		st.text.Flags = o.names.stored
	case o.names.prepares && len(name) > 0 && st.text.Class == sqltext.Free && !bytes.HasPrefix(name, []byte(ownPrefix)): // of another proxy
		st.text.Class = sqltext.Ordinary
	}
	return st, true
}

// isUnseen reports whether the meaning of a name is that of one which no message has given,
// so that it need not be remembered.
func (st *statement) isUnseen() bool {
	return *st == unseen
}

// decideByName decides on a message about the statement that a name stands for.
func (s *Session) decideByName(kind policy.Kind, st *statement, size, have int, out *Out) (used int, goesOn bool) {
	if _, ok := s.covered(st); ok {
		s.openBatch()
		return 0, true
	}
	m := s.messageAbout(kind, st)
	_, used, goesOn = s.decideInBatch(&m, nil, size, have, out)
	return used, goesOn
}

// messageAbout returns a message about a statement that was parsed before.
func (s *Session) messageAbout(kind policy.Kind, st *statement) policy.Message {
	s.tracing = st.trace
	m := policy.Message{Kind: kind, Fence: st.fence}
	if !st.empty {
		m.Statements = s.asStatements(st)
	}
	return m
}

// decideInBatch decides on a message of the extended protocol, opens the batch that it may
// be the first of, and inserts the checks ahead of it. The message goes on to the server, or
// its used bytes are done with; 0 if it waits. body is the text of a Parse.
func (s *Session) decideInBatch(m *policy.Message, body []byte, size, have int, out *Out) (a policy.Action, used int, goesOn bool) {
	a, ok := s.decide(m, body, out)
	if !ok {
		return a, 0, false
	}
	s.openBatch()
	if a.Do == policy.Refuse {
		s.refuse(&a, body, m, out)
		return a, s.drop(size, have), false
	}
	s.putChecks(&a, 0, out)
	return a, 0, true
}

// execute handles a whole Execute.
func (s *Session) execute(msg []byte, at int, out *Out) int {
	name, _, ok := wire.CString(msg[wire.HeaderSize:])
	if !ok {
		return s.namesUnread(msg, len(msg), at, out)
	}
	st, ok := s.statementOf(&s.names.portals, name)
	if !ok {
		return s.wait()
	}
	if under, ok := s.covered(&st); ok && s.batch.Open {
		s.noteCovered(under)
		s.pushExecute(&st, under)
		return s.pass(len(msg), len(msg), at, out)
	}
	m := s.messageAbout(policy.Execute, &st)
	s.names.inherit(m.Statements)
	a, used, goesOn := s.decideInBatch(&m, nil, len(msg), len(msg), out)
	if !goesOn {
		return used
	}
	s.noteEffects(&m, &a)
	s.pushExecute(&st, coverOf(&a))
	used = s.pass(len(msg), len(msg), at, out)
	s.putChecks(&a, 1, out)
	return used
}

// pushExecute records an Execute that is being sent.
func (s *Session) pushExecute(st *statement, under cover) {
	b := &s.batch
	b.Ran, b.under = true, max(b.under, under)
	b.timed = b.timed || s.timesGroup(b.under)
	s.q.Push(ledger.Execute).Note.trace = st.trace
}

// describe handles a whole Describe, which counts as a Bind of the statement: if the
// server has dropped the statement's plan, it analyses the text again, and evaluates its
// constants and the checks of their domains.
func (s *Session) describe(msg []byte, at int, out *Out) int {
	name, _, ok := wire.CString(msg[min(wire.HeaderSize+1, len(msg)):])
	if !ok {
		return s.namesUnread(msg, len(msg), at, out)
	}
	st, ok := s.statementOf(s.namesOf(msg[wire.HeaderSize]), name)
	if !ok {
		return s.wait()
	}
	if used, goesOn := s.decideByName(policy.Describe, &st, len(msg), len(msg), out); !goesOn {
		return used
	}
	s.q.Push(ledger.Describe)
	return s.pass(len(msg), len(msg), at, out)
}

// closeName handles a whole Close. Its name keeps its meaning until the server has
// confirmed the Close: after an error it still exists.
func (s *Session) closeName(msg []byte, at int, out *Out) int {
	if used, goesOn := s.decideByName(policy.OtherFirst, &statement{empty: true}, len(msg), len(msg), out); !goesOn {
		return used
	}
	n := &s.q.Push(ledger.Close).Note
	if body := msg[wire.HeaderSize:]; len(body) > 1 {
		n.drops, n.name = s.namesOf(body[0]), string(bytes.TrimRight(body[1:], "\x00"))
	}
	return s.pass(len(msg), len(msg), at, out)
}

// namesOf returns the names of statements ('S') or portals ('P').
func (o *outstanding) namesOf(what byte) *ledger.Names[statement] {
	if what == 'P' {
		return &o.names.portals
	}
	return &o.names.prepared
}
