package session

import (
	"bytes"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// This file has the changes of the session's state by a forwarded message, and inserts its
// checks.

// asStatements returns a statement of the extended protocol as a message's statements.
func (s *Session) asStatements(st *statement) []sqltext.Statement {
	s.single[0] = st.text
	return s.single[:]
}

// openBatch begins a batch with its first message.
func (s *Session) openBatch() {
	if s.batch.Open {
		return
	}
	s.batch.Batch = policy.Batch{Open: true}
	if s.q.Ready() == 0 || s.onlyExchangePending() {
		s.batch.Block = s.block()
	}
}

// noteEffects records what a message may do that is being forwarded.
func (s *Session) noteEffects(m *policy.Message, a *policy.Action) {
	if a.Covers() {
		s.tx.Cover(a.By)
		s.tx.Judged = s.tx.Judged || a.Held || a.By.Comment != ""
	}
	outside, inserts := s.facts.BeginsTransaction(), a.Inserts
	cleans := outside && len(m.Statements) > 0
	for i := range m.Statements {
		st := &m.Statements[i]
		for ; len(inserts) > 0 && inserts[0].Before <= i; inserts = inserts[1:] {
			s.tx.Insert(&inserts[0])
		}
		s.tx.Pass(st, i == 0 && outside)
		if m.Kind == policy.Execute {
			s.batch.Pass(st)
		}
		s.noteFlags(st.Flags)
		cleans = cleans && st.Flags.Has(sqltext.Cleans)
		if s.pooled {
			s.tx.localSet = s.tx.localSet || st.Flags.Has(sqltext.Sets|sqltext.Local)
			if st.Class == sqltext.Ends {
				s.tx.localWasSet, s.tx.localSet = s.tx.localWasSet || s.tx.localSet, false
			}
		}
		if st.Flags.Has(sqltext.Imports) || st.Flags.Has(sqltext.Resets) && s.hold.by.Comment == "" {
			s.doubtHold()
		}
		if st.Flags.Has(sqltext.Resets) {
			s.variable.reset = false // until its own transaction is over, a ROLLBACK takes it back
		}
		if st.Flags.Has(sqltext.DropsPrepared) {
			s.check.doubt = true
			s.check.batch = [kinds]uint32{} // what this batch has prepared is dropped, too
		}
	}
	for i := range inserts {
		s.tx.Insert(&inserts[i])
	}
	s.tx.Guarded = s.tx.Guarded && (m.Kind != policy.Query || s.facts.BlockBehind(m) == policy.InBlock)
	s.variable.resets = s.variable.resets || cleans
	if a.By.Carries() && !s.pooled {
		s.lastCarrier, s.lastAt = a.By, s.at
	}
}

// noteFlags records that a statement may set the session variable or release locks.
func (s *Session) noteFlags(flags sqltext.Flags) {
	if flags.Has(sqltext.SetsVariable) {
		s.exchange.awaited = false // its answer was about the variable's earlier value
		s.variable.name(flags)
		if s.hold.by.Comment == "" {
			s.doubtHold()
		}
	}
	if flags.Has(sqltext.Unlocks) {
		s.doubtHold()
	}
	if flags&(sqltext.Locks|sqltext.Unlocks) != 0 && s.cfg.FollowsLocks && s.OwnsServer() {
		s.locks.named = true
	}
}

// name records that the client has named the session variable.
func (v *variable) name(flags sqltext.Flags) {
	*v = variable{set: v.set || flags.Has(sqltext.Sets), named: true}
}

// deallocated returns the name in a text that is one DEALLOCATE, "" for other texts.
func deallocated(body []byte, statements []sqltext.Statement) string {
	if len(statements) != 1 || statements[0].NameEnd == 0 {
		return ""
	}
	return string(bytes.ToLower(body[statements[0].NameStart:statements[0].NameEnd]))
}

// noteParse records the entry of a Parse in the queue, and what its name stands for.
func (s *Session) noteParse(name []byte, st statement) {
	e := s.q.Push(ledger.Parse)
	s.names.parsed |= st.text.Flags & effects
	if len(name) == 0 || !st.isUnseen() || s.names.prepared.Knows(name) {
		s.names.prepared.Sent(name, s.batch.id, st)
		e.Note.gives, e.Note.name = &s.names.prepared, string(name)
	}
}

// noteBind records the entry of a Bind in the queue, and what its portal stands for. incomplete
// says that its parameters are still to be searched.
func (s *Session) noteBind(portal []byte, st statement, incomplete bool) {
	e := s.q.Push(ledger.Bind)
	if len(portal) == 0 || incomplete || !st.isUnseen() || s.names.portals.Knows(portal) {
		s.names.portals.Sent(portal, s.batch.id, st)
		e.Note.gives, e.Note.name = &s.names.portals, string(portal)
	}
}

// weave puts a Query with its checks inserted into out.
func (s *Session) weave(body []byte, m *policy.Message, a *policy.Action, out *Out) *ledger.Woven {
	w := s.newWoven()
	mark := len(out.own)
	dst, head := wire.BeginQuery(out.own)
	from, chars := 0, 0
	for i := range a.Inserts {
		in := &a.Inserts[i]
		behind := in.Before == len(m.Statements)
		var to int
		if behind {
			to = int(m.Statements[in.Before-1].End)
		} else {
			to = int(m.Statements[in.Before].Start)
		}
		chars += sqltext.CountChars(body[from:to], s.options.Encoding)
		dst, from = append(dst, body[from:to]...), to
		start := len(dst)
		if behind {
			dst = append(dst, ';')
		}
		switch {
		case in.Guarded:
			dst = append(dst, "SET LOCAL wirefence.lease = "+literal(s.guarded.by)...)
		case in.Holds:
			has := literalOrNull(s.beginTake(in.By))
			dst = s.cfg.call.appendProxyHold(dst, s.hold.number, &in.By, has, grouped)
		default:
			dst = s.cfg.call.appendCheck(dst, s.checkFor(&in.By), &in.By)
			s.events.Checked()
		}
		dst = append(dst, ';')
		w.Put(in.Before, chars, len(dst)-start)
	}
	dst = append(dst, body[from:]...)
	out.own = wire.EndQuery(dst, head)
	out.put(mark)
	return w
}

// preparedCheck is the state of the prepared checks on the server.
type preparedCheck struct {
	ready [kinds]bool   // the server has confirmed it
	batch [kinds]uint32 // the batch in which it was last sent
	sent  [kinds]int    // Parses that are not answered
	doubt bool          // an unanswered message may have dropped them
}

// checkFor returns the kind of check that a carrier needs.
func (s *Session) checkFor(by *policy.Carrier) checkKind {
	switch {
	case s.hasSchema() && (by.Carries() || !s.pooled || s.cfg.Mode == Shadow):
		return fullCheck
	case by.Variable:
		return missingCheck
	}
	return readOnlyCheck
}

// putChecks inserts those checks of an extended-protocol message that stand ahead of the
// statement with this index, which is 1 for those behind it.
func (s *Session) putChecks(a *policy.Action, before int, out *Out) {
	for i := range a.Inserts {
		in := &a.Inserts[i]
		if in.Before != before {
			continue
		}
		if in.Guarded {
			s.putGuarded(out)
			continue
		}
		switch {
		case in.Holds:
			s.putCheck(in.By, holdingCheck, s.beginTake(in.By), out)
			s.batch.Taken, s.batch.TakenHere, s.batch.By = true, true, in.By
		default:
			s.putCheck(in.By, s.checkFor(&in.By), nil, out)
			s.batch.Taken = s.batch.Taken && s.batch.By == in.By
			s.batch.Checked, s.batch.By = true, in.By
			s.tx.Check(in.By)
		}
		s.tx.Cover(in.By)
	}
}

// putCheck inserts Bind and Execute of a prepared check into the batch. They use a named
// portal, since the client may have bound the unnamed one.
func (s *Session) putCheck(by policy.Carrier, kind checkKind, has *string, out *Out) {
	mark := len(out.own)
	name := s.ownName + checkNames[kind]
	sent := s.check.batch[kind] == s.batch.id+1
	if s.pooled || !sent && (!s.check.ready[kind] || s.check.doubt) {
		// Behind a pooler the prepared check may be on another server connection.
		out.own = wire.AppendClose(out.own, 'S', name)
		s.push(ledger.Close, ours)
		out.own = wire.AppendParse(out.own, name, s.cfg.prepared[kind])
		s.push(ledger.Parse, oursFull+role(kind))
		s.check.batch[kind] = s.batch.id + 1
		s.check.ready[kind] = false // the Close may succeed where the Parse is skipped
		s.check.sent[kind]++
	}
	number := s.ownName[len(ownPrefix):]
	params, count := s.cfg.call.parameters(kind, &by, &number, has)
	out.own = wire.AppendBind(out.own, s.ownName, name, params[:count]...)
	s.push(ledger.Bind, ours)
	out.own = wire.AppendExecute(out.own, s.ownName)
	n := s.push(ledger.Execute, oursCheck)
	n.takesHold, n.checkSample, n.trace = kind == holdingCheck, s.timesCheck(), s.tracing
	n.behindReset = s.variable.reset
	out.own = wire.AppendClose(out.own, 'P', s.ownName)
	s.push(ledger.Close, ours)
	out.put(mark)
	if kind != holdingCheck {
		s.events.Checked()
	}
}
