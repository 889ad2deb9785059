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
	s.batch.Batch = policy.Batch{Open: true, Answer: s.answer, About: s.answerAbout}
	s.batch.ended, s.batch.lost = false, false
	if s.q.Ready() == 0 || s.onlyExchangePending() {
		s.batch.Block = s.block()
	}
	s.answer = policy.NoAnswer
}

// noteEffects records what a message may do that is being forwarded. body is the text of
// a Query, given the name in the text of an Execute.
func (s *Session) noteEffects(m *policy.Message, a *policy.Action, body []byte, given string) {
	s.answer = policy.NoAnswer
	ends, renamed := false, false
	if m.Kind == policy.FunctionCall || s.db.interferes.Load() {
		s.doubtHold() // it may release the lock
	}
	s.tx.freshChain = s.tx.freshChain && m.Kind != policy.FunctionCall
	if a.Covers() {
		s.noteCover(a.By)
	}
	for i := range m.Statements {
		st := &m.Statements[i]
		s.noteFlags(st.Flags)
		switch {
		case st.Class == sqltext.Ends:
			// If a statement ahead of it fails, the transaction goes on, so what may have
			// changed counts up to the next boundary.
			s.tx.fencedBy = ""
		case st.Class == sqltext.Undoes:
			s.tx.fencedBy, s.tx.fenceChanged = "", s.tx.fenceChanged || s.tx.varied
		case st.Flags&(sqltext.SetsVariable|sqltext.Resets) != 0:
			changed := i > 0 || !s.facts.BeginsTransaction()
			s.tx.fenceChanged, s.tx.varied = s.tx.fenceChanged || changed, s.tx.varied || changed
		}
		if st.Flags&(sqltext.Stores|sqltext.Renames) != 0 && !renamed {
			renamed = s.noteRenames(st, body, given)
		}
		if s.pooled {
			s.tx.localSet = s.tx.localSet || st.Flags.Has(sqltext.SetsVariable|sqltext.Local)
			if st.Class == sqltext.Ends {
				s.tx.localWasSet, s.tx.localSet = s.tx.localWasSet || s.tx.localSet, false
			}
		}
		s.noteChain(st, ends)
		ends = ends || st.Class == sqltext.Ends
		if st.Flags.Has(sqltext.Imports) || st.Flags.Has(sqltext.Resets) && s.hold.by.Comment == "" {
			s.doubtHold()
		}
		if st.Flags.Has(sqltext.DropsPrepared) {
			s.check.doubt = true
			s.check.batch = [kinds]uint32{} // what this batch has prepared is dropped, too
		}
	}
	if a.By.Carries() && !s.pooled {
		s.lastCarrier, s.lastAt = a.By, s.at
	}
}

// noteCover records that the transaction goes on under a check for this carrier, or a hold.
func (s *Session) noteCover(by policy.Carrier) {
	s.tx.fenced, s.tx.fencedBy, s.tx.fenceChanged = true, by.Comment, s.tx.fenceChanged && by.Comment != ""
}

// noteChain records whether the client chains its transactions: ended says that a statement
// of the group has ended one.
func (s *Session) noteChain(st *sqltext.Statement, ended bool) {
	if st.Flags.Has(sqltext.Chains) || ended && st.Class == sqltext.Begins {
		s.chains, s.tx.freshChain = true, true
		s.doubtHold()
		return
	}
	switch st.Class {
	case sqltext.Free, sqltext.Precedes, sqltext.Lock:
	default:
		s.tx.freshChain = false
	}
}

// noteFlags records that a statement may set the session variable or release locks, now
// or by what it leaves behind.
func (s *Session) noteFlags(flags sqltext.Flags) {
	if flags.Has(sqltext.SetsVariable) {
		s.variableMayCarry, s.loginFence = true, ""
		if s.hold.by.Comment == "" {
			s.doubtHold()
		}
	}
	if flags.Has(sqltext.Unlocks) {
		s.doubtHold()
	}
	if flags.Has(sqltext.Leaves) {
		s.names.left |= flags
	}
}

// noteRenames records that a statement may give a name to another statement: a PREPARE or
// DECLARE the one that it tells, any other text any name. It reports whether any.
func (s *Session) noteRenames(st *sqltext.Statement, body []byte, given string) (anyName bool) {
	var name []byte
	switch {
	case st.Flags.Has(sqltext.Renames):
	case body != nil && st.NameEnd > 0:
		name = nameIn(body, st)
	case given != "":
		name = []byte(given)
	}
	ambiguous := func(known *statement) { known.ambiguous = true }
	s.names.prepared.Change(name, ambiguous)
	s.names.portals.Change(name, ambiguous)
	return name == nil
}

// nameIn returns the name of a prepared statement in a PREPARE, DECLARE or DEALLOCATE.
func nameIn(body []byte, st *sqltext.Statement) []byte {
	name := body[st.NameStart:st.NameEnd]
	if st.NameQuoted {
		return name
	}
	return bytes.ToLower(name)
}

// givenName returns the name that a text of one PREPARE or DECLARE gives, or one DEALLOCATE
// drops, "" for other texts.
func givenName(body []byte, statements []sqltext.Statement) string {
	if len(statements) != 1 || statements[0].NameEnd == 0 {
		return ""
	}
	return string(nameIn(body, &statements[0]))
}

// noteParse records the effects of a Parse, and its entry in the queue.
func (s *Session) noteParse(name []byte, st statement) {
	s.noteFlagsOfNamed(name, &st)
	e := s.q.Push(ledger.Parse)
	if len(name) == 0 || !st.isUnseen() || s.names.prepared.Knows(name) {
		s.names.prepared.Sent(name, s.batch.id, st)
		e.Note.givesName, e.Note.name = true, string(name)
	}
}

// noteBind records the effects of a Bind, and its entry in the queue.
func (s *Session) noteBind(portal []byte, st statement) {
	s.noteFlagsOfNamed(portal, &st)
	e := s.q.Push(ledger.Bind)
	if len(portal) == 0 || !st.isUnseen() || s.names.portals.Knows(portal) {
		s.names.portals.Sent(portal, s.batch.id, st)
		e.Note.givesName, e.Note.name = true, string(portal)
	}
}

// noteFlagsOfNamed records what a text may run that names a statement or a portal.
func (s *Session) noteFlagsOfNamed(name []byte, st *statement) {
	if len(name) > 0 {
		s.names.parsed |= st.text.Flags & (sqltext.SetsVariable | sqltext.Unlocks)
		s.names.fenced = s.names.fenced || st.fence != ""
	}
	if st.text.Flags.Has(sqltext.Leaves) {
		s.names.left |= st.text.Flags
	}
}

// noteExecute records what an Execute does to its batch and transaction.
func (s *Session) noteExecute(m *policy.Message, a *policy.Action) {
	b := &s.batch
	b.Ran = true
	b.under = max(b.under, coverOf(a))
	b.timed = b.timed || s.timesGroup(b.under)
	for i := range m.Statements {
		st := &m.Statements[i]
		if st.Class.Controls() || st.Flags.Has(sqltext.NamesReadOnly) || st.Flags&(sqltext.SetsVariable|sqltext.Resets) != 0 && b.By.Comment == "" {
			b.Checked, b.Taken = false, false
		}
		if st.Flags&(sqltext.Unlocks|sqltext.Imports) != 0 {
			b.Taken = false
		}
		if st.Flags.Has(sqltext.SetsVariable) || s.db.interferes.Load() {
			b.Answer = policy.NoAnswer // the answer was about the variable's earlier value
		}
		switch {
		case st.Class == sqltext.Begins:
			b.Block = policy.InBlock
			s.noteChain(st, b.ended)
		case st.Class == sqltext.Ends:
			// If it fails, the server skips the rest of the batch.
			b.Block, b.ended = policy.NoBlock, true
			if st.Flags.Has(sqltext.Chains) {
				b.Block = policy.InBlock
			}
		case st.Class == sqltext.Undoes:
			b.Block = policy.InBlock
		case st.Class == sqltext.PreparesTransaction:
			b.Block, b.ended = policy.NoBlock, true
		}
	}
	if m.Ambiguous {
		b.lost, b.Block, b.Checked, b.Taken = true, policy.BlockUnknown, false, false
	}
}

// weave puts a Query with its checks inserted into out.
func (s *Session) weave(body []byte, m *policy.Message, a *policy.Action, out *Out) *ledger.Woven {
	w := s.newWoven()
	mark := len(out.own)
	dst, head := wire.BeginQuery(out.own)
	from, chars := 0, 0
	take := func(to int) {
		chars += s.countChars(body[from:to])
		dst, from = append(dst, body[from:to]...), to
	}
	inserts := a.Inserts
	for i := range m.Statements {
		st := &m.Statements[i]
		take(int(st.Start))
		for ; len(inserts) > 0 && inserts[0].Before == i; inserts = inserts[1:] {
			dst = s.weaveCheck(dst, len(dst), w, chars, &inserts[0])
		}
		take(int(st.End))
		w.Ends(chars)
	}
	for i := range inserts {
		dst = s.weaveCheck(append(dst, ';'), len(dst), w, chars, &inserts[i])
	}
	dst = append(dst, body[from:]...)
	out.own = wire.EndQuery(dst, head)
	out.put(mark)
	return w
}

// weaveCheck appends a check to a text, at chars characters of the client's text. What is
// inserted there begins at start.
func (s *Session) weaveCheck(dst []byte, start int, w *ledger.Woven, chars int, in *policy.Insert) []byte {
	switch {
	case in.Holds:
		has := literalOrNull(s.beginTake(in.By))
		dst = s.cfg.call.appendProxyHold(dst, s.hold.number, &in.By, has, grouped)
	case in.GivesBack:
		dst = appendUnhold(dst, s.hold.number, nil)
	default:
		dst = s.cfg.call.appendCheck(dst, s.checkFor(&in.By), &in.By)
		s.events.Checked()
	}
	dst = append(dst, ';')
	w.Put(in.Before, chars, len(dst)-start)
	return dst
}

func (s *Session) countChars(b []byte) int { return sqltext.CountChars(b, s.options.Encoding) }

// preparedCheck is the state of the prepared checks on the server.
type preparedCheck struct {
	ready [kinds]bool   // the server has confirmed it
	batch [kinds]uint32 // the batch in which it was last sent
	sent  [kinds]int    // Parses that are not answered
	doubt bool          // an unanswered message may have dropped them
}

// prepared reports whether the server may have a prepared check that the proxy would use.
func (c *preparedCheck) prepared() bool {
	for kind := range c.ready {
		if c.ready[kind] || c.sent[kind] > 0 {
			return true
		}
	}
	return false
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
		switch {
		case in.Holds:
			s.putCheck(in.By, holdingCheck, s.beginTake(in.By), out)
			s.batch.Taken, s.batch.TakenHere, s.batch.By = true, true, in.By
		case in.GivesBack:
			mark := len(out.own)
			out.own = s.appendRun(s.appendCloses(out.own), oursCheck, string(appendUnhold(nil, s.hold.number, nil)))
			s.q.Back().Note.givesBack = true
			out.own = s.appendCloses(out.own)
			out.put(mark)
		default:
			s.putCheck(in.By, s.checkFor(&in.By), nil, out)
			s.batch.Taken = s.batch.Taken && s.batch.By == in.By
			s.batch.Checked, s.batch.By = true, in.By
		}
		s.noteCover(in.By)
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
	out.own = wire.AppendClose(out.own, 'P', s.ownName)
	s.push(ledger.Close, ours)
	out.put(mark)
	if kind != holdingCheck {
		s.events.Checked()
	}
}
