package session

import (
	"bytes"
	"encoding/binary"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// decide calls policy.Decide until the message is to be forwarded, to be refused or to
// wait, and sends the exchanges that it asks for. ok is false if the message waits.
func (s *Session) decide(m *policy.Message, out *Out) (a policy.Action, ok bool) {
	for {
		a = policy.Decide(s.gatherFacts(m), m, s.checks)
		switch a.Do {
		case policy.Forward, policy.Refuse:
			if m.Kind != policy.FunctionCall && !a.TakesHold && a.Checks != nil {
				s.checks = a.Checks
			}
			return a, true
		case policy.Wait:
			s.inputWaits = true
			return a, false
		}
		s.exchangeFor(a, out)
	}
}

// inherit adds the flags of prepared statements to a statement that may run one, also
// those prepared by the same text.
func (s *Session) inherit(statements []sqltext.Statement) {
	flags := s.parsedFlags | s.storedFlags
	for i := range statements {
		st := &statements[i]
		if st.Flags.Has(sqltext.Stores) {
			flags |= st.Flags
		}
		if st.Flags.Has(sqltext.Executes) {
			st.Flags |= flags & (sqltext.SetsVariable | sqltext.Unlocks)
		}
	}
}

// query handles a whole Query (documentation, "Message Flow", Simple Query).
func (s *Session) query(msg []byte, at int, out *Out) int {
	body, ok := text(msg[wire.HeaderSize:])
	if !ok || s.canForwardUnread(body) || s.walsender && replicationCommand(body) {
		s.check.doubt = true // the text may be a DISCARD ALL
		s.batch.Open = false
		s.tally[underNothing]++
		s.q.Push(ledger.Query)
		return s.pass(len(msg), len(msg), at, out)
	}
	result := s.scanner.Scan(body, s.options)
	s.inherit(result.Statements)
	s.tracing = s.traceOf(body)
	m := policy.Message{Kind: policy.Query, Statements: result.Statements, Fence: result.Fence, FenceErr: result.FenceErr, BySettings: result.BySettings, DropsUnnamed: true}
	a, ok := s.decide(&m, out)
	if !ok {
		return 0
	}
	if a.Do == policy.Refuse {
		if e := s.refusal(a, body, &m); !s.reportShadowed(e) {
			s.batch.Open = false
			s.refuseQuery(e, out)
			return len(msg)
		}
		a = policy.Action{By: a.By}
	}
	var has *string
	if a.TakesHold {
		has = s.beginTake(a.By)
	}
	s.noteEffects(&m, &a, body)
	s.batch.Open = false
	under := coverOf(&a)
	s.tally[under]++
	timed := s.timesGroup(under)
	if len(a.Checks) == 0 && !a.Guards {
		n := &s.q.Push(ledger.Query).Note
		n.groupSample, n.trace = timed, s.tracing
		return s.pass(len(msg), len(msg), at, out)
	}
	s.weave(body, &m, &a, has, out).groupSample = timed
	return len(msg)
}

// setConfigOID is pg_catalog.set_config(text, text, boolean) in every version. Other
// functions that set the variable are stored in the database.
const setConfigOID = 2078

// setterCall is the statement of a FunctionCall of set_config.
var setterCall = statement{text: sqltext.Statement{Class: sqltext.Ordinary, Flags: sqltext.SetsVariable}}

// functionCall handles a FunctionCall (documentation, "Message Flow", Function Call). It
// can't share a message with a check. In a transaction block an exchange checks ahead of
// it; outside of one it runs under a hold.
func (s *Session) functionCall(in []byte, size, at int, out *Out) int {
	const head = wire.HeaderSize + 4
	if len(in) < min(head, size) {
		return 0
	}
	s.tracing = nil
	m := policy.Message{Kind: policy.FunctionCall}
	if size < head || binary.BigEndian.Uint32(in[wire.HeaderSize:]) == setConfigOID {
		m.Statements = s.asStatements(&setterCall)
	}
	a, ok := s.decide(&m, out)
	if !ok {
		return 0
	}
	s.batch.Open = false
	if a.Do == policy.Refuse {
		if e := s.refusal(a, nil, &m); !s.reportShadowed(e) {
			s.refuseQuery(e, out)
			n := min(size, len(in))
			s.dropLeft = size - n
			return n
		}
		a = policy.Action{By: a.By}
	}
	if len(a.Checks) > 0 {
		mark := len(out.own)
		out.own = s.appendExchange(out.own, string(s.cfg.call.appendCheck(nil, s.checkFor(&a.By), &a.By)), beforeCall)
		out.put(mark)
		s.timeExchange()
		s.events.Checked()
	}
	s.noteEffects(&m, &a, nil)
	under := coverOf(&a)
	s.tally[under]++
	n := &s.q.Push(ledger.FunctionCall).Note
	n.checked, n.groupSample = len(a.Checks) > 0, s.timesGroup(under)
	return s.pass(size, len(in), at, out)
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
