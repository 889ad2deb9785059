package session

import (
	"bytes"
	"encoding/binary"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// decide calls policy.Decide until the message is to be forwarded, to be refused or to
// wait, and sends the exchanges that it asks for. body is the text of the message, nil if it
// isn't available. ok is false if the message waits, or the session ends.
func (s *Session) decide(m *policy.Message, body []byte, out *Out) (a policy.Action, ok bool) {
	for i := range m.Statements {
		if m.Statements[i].Flags.Has(sqltext.Renames) && s.mayCarry() {
			m.Statements[i].Flags |= sqltext.Resets
		}
	}
	for {
		a = policy.Decide(s.gatherFacts(), m, s.inserts)
		s.fenced = s.fenced || a.By.Carries()
		if s.unconfirmed() {
			return a, false
		}
		switch a.Do {
		case policy.Forward:
			if a.Inserts != nil {
				s.inserts = a.Inserts
			}
			return a, true
		case policy.Refuse:
			s.shadows(&a, body, m)
			return a, true
		case policy.Wait:
			s.inputWaits = true
			return a, false
		}
		s.exchangeFor(a, out)
	}
}

// shadows turns a refusal into a report where the proxy is in shadow mode, and forwards the
// message as it is. A message ahead of its Execute, which will be judged too, is reported only
// if its fence can't be read or its text isn't read.
func (s *Session) shadows(a *policy.Action, body []byte, m *policy.Message) {
	if s.cfg.Mode != Shadow {
		return
	}
	runs := m.Kind == policy.Query || m.Kind == policy.FunctionCall || m.Kind == policy.Execute
	if runs || a.Refusal.Reason == policy.TooLarge || a.Refusal.State == fence.MalformedToken {
		s.reportShadow(s.refusal(*a, body, m))
	}
	*a = policy.Action{By: a.By}
}

// effects are the flags that count where a prepared statement is executed.
const effects = sqltext.Sets | sqltext.Unlocks | sqltext.Locks

// inherit adds the effects of all that was prepared to each EXECUTE.
func (n *names) inherit(statements []sqltext.Statement) {
	for i := range statements {
		st := &statements[i]
		switch {
		case st.Flags.Has(sqltext.Stores):
			n.stored, n.prepares = n.stored|st.Flags&effects, true
		case st.Flags.Has(sqltext.Runs):
			st.Flags |= n.stored | n.parsed
		}
	}
}

// query handles a whole Query (documentation, "Message Flow", Simple Query).
func (s *Session) query(msg []byte, at int, out *Out) int {
	body, ok := text(msg[wire.HeaderSize:])
	if !ok || s.canForwardUnread(body) || s.walsender && replicationCommand(body) {
		s.check.doubt = true // the text may be a DISCARD ALL
		s.tracing = nil
		s.pushQuery(underNothing)
		return s.pass(len(msg), len(msg), at, out)
	}
	s.tracing = s.traceOf(body)
	result, st := s.scan(body)
	if len(result.Statements) == 1 && result.FenceErr == nil && !result.BySettings {
		if under, ok := s.covered(&st); ok {
			s.noteCovered(under)
			s.pushQuery(under)
			return s.pass(len(msg), len(msg), at, out)
		}
	}
	s.names.inherit(result.Statements)
	m := policy.Message{Kind: policy.Query, Statements: result.Statements, Fence: result.Fence, FenceErr: result.FenceErr, BySettings: result.BySettings}
	a, ok := s.decide(&m, body, out)
	if !ok {
		return 0
	}
	if s.swells(&a) {
		a = policy.Action{Do: policy.Refuse, By: a.By, Refusal: policy.Refusal{State: fence.CannotBeFenced, Reason: policy.TooLarge}}
	}
	if a.Do == policy.Refuse {
		s.refuse(&a, body, &m, out)
		return len(msg)
	}
	reset := s.variable.reset
	s.noteEffects(&m, &a)
	if len(a.Inserts) > 0 {
		w := s.weave(body, &m, &a, out)
		n := s.pushQuery(coverOf(&a))
		n.woven, n.takesHold, n.checkSample, n.behindReset = w, a.Inserts[0].Holds, a.Checks() && s.timesCheck(), reset
		return len(msg)
	}
	n := s.pushQuery(coverOf(&a))
	if name := deallocated(body, m.Statements); name != "" {
		n.drops, n.name = &s.names.prepared, name
	}
	return s.pass(len(msg), len(msg), at, out)
}

// maxSwelling is how many times MaxStatement a text may have in bytes with its checks: a fence
// may be much longer than a COMMIT, and each has its own check.
const maxSwelling = 8

// swells reports whether the checks make a text too large.
func (s *Session) swells(a *policy.Action) bool {
	const room = 256 // of a check without its fence
	return len(a.Inserts) > 1 && len(a.Inserts)*(len(a.By.Comment)+len(a.By.Stamp)+len(s.guarded.by)+room) > maxSwelling*s.cfg.MaxStatement
}

// pushQuery records a Query that is being sent.
func (s *Session) pushQuery(under cover) *note {
	s.batch.Open = false
	s.tally[under]++
	n := &s.q.Push(ledger.Query).Note
	n.groupSample, n.trace = s.timesGroup(under), s.tracing
	return n
}

// setConfigOID is pg_catalog.set_config(text, text, boolean) in every version.
const setConfigOID = 2078

// functionCall handles a FunctionCall (documentation, "Message Flow", Function Call). It
// can't share a message with a check: a hold covers it, or an earlier check of its transaction.
func (s *Session) functionCall(in []byte, size, at int, out *Out) int {
	if len(in) < min(size, maxSmall) {
		return 0
	}
	s.tracing, s.callsFunctions = nil, true
	call := statement{text: sqltext.Statement{Class: sqltext.Alone, Flags: sqltext.ParameterFlags(in[:min(size, len(in))])}}
	if size >= wire.HeaderSize+4 && binary.BigEndian.Uint32(in[wire.HeaderSize:]) == setConfigOID {
		call.text.Flags |= sqltext.CallsSetter
	}
	m := policy.Message{Kind: policy.FunctionCall, Statements: s.asStatements(&call)}
	a, ok := s.decide(&m, nil, out)
	if !ok {
		return 0
	}
	if a.Do == policy.Refuse {
		return s.refuseUnread(&a, &m, size, len(in), out)
	}
	s.batch.Open = false
	s.noteEffects(&m, &a)
	under := coverOf(&a)
	s.tally[under]++
	s.q.Push(ledger.FunctionCall).Note.groupSample = s.timesGroup(under)
	return s.passReading(nil, nil, in[:min(size, len(in))], size, at, out)
}

// canForwardUnread reports whether a text needs no lexing: the session carries no fence,
// and the text has no word that could carry or set one.
func (s *Session) canForwardUnread(body []byte) bool {
	s.forgetIdle()
	return s.unfenced() && !sqltext.Mentions(body) && !s.cfg.FollowsLocks
}

// forgetIdle forgets the last group's fence once the session doesn't count as busy with it.
func (s *Session) forgetIdle() {
	if s.lastCarrier != (policy.Carrier{}) && s.hold.state == policy.NoHold && s.at.Sub(s.lastAt) >= s.busyFor() {
		s.lastCarrier = policy.Carrier{}
	}
}

// replicationCommand reports whether a text is one of the commands that only a
// walsender knows (documentation, "Streaming Replication Protocol").
func replicationCommand(text []byte) bool {
	word, _, _ := bytes.Cut(bytes.TrimLeft(text, " \t\r\n"), []byte(" "))
	switch string(bytes.ToUpper(bytes.TrimRight(word, "; \t\r\n"))) {
	case "IDENTIFY_SYSTEM", "TIMELINE_HISTORY", "CREATE_REPLICATION_SLOT", "DROP_REPLICATION_SLOT",
		"ALTER_REPLICATION_SLOT", "READ_REPLICATION_SLOT", "START_REPLICATION", "BASE_BACKUP", "UPLOAD_MANIFEST":
		return true
	}
	return false
}
