package session

import (
	"bytes"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// This file has all changes of the session's state by a forwarded message.

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
	s.batch.Batch, s.batch.ended = policy.Batch{Open: true, Answer: s.answer, About: s.answerAbout}, false
	if s.q.Ready() == 0 || s.onlyExchangePending() {
		s.batch.Block = s.block()
	}
	s.answer = policy.NoAnswer
}

// noteEffects records what a message may do that is being forwarded. body is the text of
// a Query.
func (s *Session) noteEffects(m *policy.Message, a *policy.Action, body []byte) {
	s.answer, s.hold.retried = policy.NoAnswer, false
	ends := false
	s.freshChain = s.freshChain && m.Kind != policy.FunctionCall
	if s.db.interferes.Load() {
		s.doubtHold()
	}
	for i := range m.Statements {
		st := &m.Statements[i]
		s.noteFlags(st.Flags)
		s.localSet = s.localSet || s.pooled && st.Flags.Has(sqltext.SetsVariable|sqltext.Local)
		if st.Flags.Has(sqltext.Stores) {
			s.storedFlags |= st.Flags
		}
		if st.Flags&(sqltext.Stores|sqltext.Renames) != 0 {
			s.noteRenames(st, body)
		}
		s.freshChain = s.freshChain && (st.Class == sqltext.Free || st.Class == sqltext.Precedes)
		if st.Flags.Has(sqltext.Chains) || ends && st.Class == sqltext.Begins {
			s.chainsTransactions, s.freshChain = true, true
			s.doubtHold()
		}
		ends = ends || st.Class == sqltext.Ends
		if st.Flags.Has(sqltext.Imports) || st.Flags.Has(sqltext.Resets) && s.hold.by.Comment == "" {
			s.doubtHold()
		}
		if st.Flags.Has(sqltext.DropsPrepared) {
			s.check.doubt = true
			s.check.batch = [kinds]uint32{} // what this batch has prepared is dropped, too
		}
		if st.Flags.Has(sqltext.Defines) && st.Flags&(sqltext.SetsVariable|sqltext.Unlocks) != 0 {
			s.db.suspect()
		}
	}
	if m.Kind == policy.FunctionCall {
		s.doubtHold() // it may release the lock
	}
	s.fenced = s.fenced || a.Covers
	if a.By.Carries() && !s.pooled {
		s.lastCarrier, s.lastAt = a.By, s.cfg.Clock()
	}
}

// noteRenames records that a PREPARE or DECLARE in SQL may replace the statement of a
// name, or of any name if st doesn't tell it.
func (s *Session) noteRenames(st *sqltext.Statement, body []byte) {
	doubt := func(known *statement) {
		fence := known.fence
		*known = ambiguousName
		known.fence = fence
	}
	if body == nil || st.NameEnd == 0 {
		s.check.shared = true // the name may be one of the proxy's own
		s.prepared.Change(nil, doubt)
		s.portals.Change(nil, doubt)
		return
	}
	name := bytes.ToLower(body[st.NameStart:st.NameEnd])
	s.noteNameUse(name)
	s.prepared.Change(name, doubt)
	s.portals.Change(name, doubt)
}

// noteFlags records that a statement may set the session variable or release locks.
func (s *Session) noteFlags(flags sqltext.Flags) {
	if flags.Has(sqltext.SetsVariable) {
		s.variableMayCarry, s.startupFence = true, ""
		if s.hold.by.Comment == "" {
			s.doubtHold()
		}
	}
	if flags.Has(sqltext.Unlocks) {
		s.doubtHold()
	}
}

// noteParse records the effects of a Parse.
func (s *Session) noteParse(name []byte, st *statement) {
	if hasNonASCII(name) {
		*st = ambiguousName
	}
	s.parsedFlags |= st.text.Flags & (sqltext.SetsVariable | sqltext.Unlocks)
	s.namedFence = s.namedFence || len(name) > 0 && st.fence != ""
	if st.text.Flags.Has(sqltext.Stores) {
		s.storedFlags |= st.text.Flags
	}
	s.noteNameUse(name)
}

// noteExecute records what an Execute does to its batch and transaction.
func (s *Session) noteExecute(m *policy.Message, a *policy.Action) {
	b := &s.batch
	b.Ran = true
	b.under = max(b.under, coverOf(a))
	b.timed = b.timed || s.timesGroup(b.under)
	for _, st := range m.Statements {
		if st.Class.Controls() || m.Doubtful || st.Flags&(sqltext.SetsVariable|sqltext.Resets) != 0 && b.By.Comment == "" {
			b.Checked, b.Taken = false, false
		}
		if st.Class == sqltext.Discards || st.Flags&(sqltext.Unlocks|sqltext.Imports) != 0 {
			b.Taken = false
		}
		if st.Flags.Has(sqltext.SetsVariable) || s.db.interferes.Load() {
			b.Answer = policy.NoAnswer // the answer was about the variable's earlier value
		}
		switch {
		case st.Class == sqltext.Begins:
			b.Block = policy.InBlock
			if s.batch.ended {
				s.chainsTransactions, s.freshChain = true, true
				s.doubtHold()
			}
		case st.Class == sqltext.Ends:
			// If it fails, the server skips the rest of the batch.
			b.Block, s.batch.ended = policy.NoBlock, true
			if st.Flags.Has(sqltext.Chains) {
				b.Block = policy.InBlock
			}
		case st.Class == sqltext.Undoes:
			b.Block = policy.InBlock
		case st.Class == sqltext.PreparesTransaction || m.Doubtful:
			b.Block = policy.BlockUnknown
		}
	}
}

// weave forwards a Query with its checks inserted. has says what the session holds, for a
// check that asks for the hold.
func (s *Session) weave(body []byte, m *policy.Message, a *policy.Action, has *string, out *Out) *note {
	w := s.newWoven()
	mark := len(out.own)
	dst, head := wire.BeginQuery(out.own)
	from, chars, next := 0, 0, 0
	for i := range m.Statements {
		st := &m.Statements[i]
		chars += s.countChars(body[from:st.Start])
		dst = append(dst, body[from:st.Start]...)
		if a.Guards && a.Guard == i {
			dst = s.weaveCheck(dst, w, i, chars, &s.hold.by, false, nil)
		}
		if next < len(a.Checks) && a.Checks[next] == i {
			next++
			dst = s.weaveCheck(dst, w, i, chars, &a.By, a.TakesHold, has)
		}
		chars += s.countChars(body[st.Start:st.End])
		dst = append(dst, body[st.Start:st.End]...)
		w.Ends(chars)
		from = st.End
	}
	dst = append(dst, body[from:]...)
	out.own = wire.EndQuery(dst, head)
	out.put(mark)
	n := &s.q.Push(ledger.Query).Note
	n.woven, n.takesHold, n.checkSample, n.trace = w, a.TakesHold, s.timesCheck(), s.tracing
	return n
}

// weaveCheck appends a check to a text, ahead of the statement with this index, which
// begins at chars characters of the client's text.
func (s *Session) weaveCheck(dst []byte, w *ledger.Woven, statement, chars int, by *policy.Carrier, takes bool, has *string) []byte {
	start := len(dst)
	if takes {
		dst = s.cfg.call.appendHoldOrCheck(dst, by, has)
	} else {
		dst = s.cfg.call.appendCheck(dst, s.checkFor(by), by)
		s.events.Checked()
	}
	dst = append(dst, ';')
	w.Put(statement, chars, len(dst)-start)
	return dst
}

func (s *Session) countChars(b []byte) int { return sqltext.CountChars(b, s.options.Encoding) }

// preparedCheck is the state of the prepared checks on the server.
type preparedCheck struct {
	ready [kinds]bool   // the server has confirmed it
	batch [kinds]uint32 // the batch in which it was last sent
	sent  [kinds]int    // Parses that are not answered
	doubt bool          // an unanswered message may have dropped them
	// shared says that the client has used such a name, so any statement may have it.
	shared bool
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

// putChecks inserts the checks of an extended-protocol message into the batch.
func (s *Session) putChecks(a *policy.Action, out *Out) {
	if a.Guards {
		s.putCheck(s.hold.by, s.checkFor(&s.hold.by), nil, out)
	}
	switch {
	case a.TakesHold:
		s.putCheck(a.By, holdingCheck, s.beginTake(a.By), out)
		s.batch.Taken, s.batch.TakenHere, s.batch.By = true, true, a.By
		s.fenced = true
	case len(a.Checks) > 0:
		s.putCheck(a.By, s.checkFor(&a.By), nil, out)
		s.batch.Taken = s.batch.Taken && s.batch.By == a.By
		s.batch.Checked, s.batch.By = true, a.By
		s.fenced = true
	}
}

// putCheck inserts Bind and Execute of a prepared check into the batch. They use a named
// portal, since the client may have bound the unnamed one.
func (s *Session) putCheck(by policy.Carrier, kind checkKind, has *string, out *Out) {
	mark := len(out.own)
	name := checkNames[kind]
	sent := s.check.batch[kind] == s.batch.id+1
	if s.pooled || s.check.shared || !sent && (!s.check.ready[kind] || s.check.doubt) {
		// Behind a pooler the prepared check may be on another server connection.
		out.own = wire.AppendClose(out.own, 'S', name)
		s.push(ledger.Close, ours)
		out.own = wire.AppendParse(out.own, name, s.cfg.prepared[kind])
		s.push(ledger.Parse, oursFull+role(kind))
		s.check.batch[kind] = s.batch.id + 1
		s.check.ready[kind] = false // the Close may succeed where the Parse is skipped
		s.check.sent[kind]++
	}
	params, count := s.cfg.call.parameters(kind, &by, has)
	out.own = wire.AppendBind(out.own, portalName, name, params[:count]...)
	s.push(ledger.Bind, ours)
	out.own = wire.AppendExecute(out.own, portalName)
	n := s.push(ledger.Execute, oursCheck)
	n.takesHold, n.checkSample, n.trace = kind == holdingCheck, s.timesCheck(), s.tracing
	out.own = wire.AppendClose(out.own, 'P', portalName)
	s.push(ledger.Close, ours)
	out.put(mark)
	if kind != holdingCheck {
		s.events.Checked()
	}
}

// noteNameUse records that the client uses the name of a prepared statement.
func (s *Session) noteNameUse(name []byte) {
	if bytes.HasPrefix(name, []byte(ownPrefix)) {
		s.check.shared = true
	}
}
