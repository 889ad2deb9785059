package session

import (
	"bytes"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// What a message that is forwarded changes in what is known is all in this file.

// one returns a statement of the extended protocol as the statements of a message.
func (s *Session) one(st *statement) []sqltext.Statement {
	s.single[0] = st.text
	return s.single[:]
}

// openBatch begins a batch with its first message.
func (s *Session) openBatch() {
	if s.batch.Open {
		return
	}
	s.batch.Batch, s.batch.ended = policy.Batch{Open: true, Answer: s.answer, About: s.asked}, false
	if s.q.Ready() == 0 || s.exchanging() {
		s.batch.Block = s.block()
	}
	s.answer = policy.NoAnswer
}

// follow notes what a message that is being forwarded may do. body is the text of a
// Query.
func (s *Session) follow(m *policy.Message, a *policy.Action, body []byte) {
	s.answer, s.hold.retried = policy.NoAnswer, false
	ends := false
	s.fresh = false
	if s.db.interferes.Load() {
		s.uncount()
	}
	for i := range m.Statements {
		st := &m.Statements[i]
		s.may(st.Flags)
		s.localSet = s.localSet || s.pooled && st.Flags.Has(sqltext.SetsVariable|sqltext.Local)
		if st.Flags.Has(sqltext.Stores) {
			s.stored |= st.Flags
		}
		if st.Flags&(sqltext.Stores|sqltext.Renames) != 0 {
			s.renames(st, body)
		}
		s.fresh = false
		if st.Flags.Has(sqltext.Chains) || ends && st.Class == sqltext.Begins {
			s.chains, s.fresh = true, true
			s.uncount()
		}
		ends = ends || st.Class == sqltext.Ends
		if st.Flags.Has(sqltext.Imports) || st.Flags.Has(sqltext.Resets) && s.hold.by.Comment == "" {
			s.uncount()
		}
		if st.Flags.Has(sqltext.DropsPrepared) {
			s.check.doubt = true
			s.check.batch = [kinds]uint32{} // what this batch has prepared is gone, too
		}
		if st.Flags.Has(sqltext.Defines) && st.Flags&(sqltext.SetsVariable|sqltext.Unlocks) != 0 {
			s.db.suspect()
		}
	}
	if m.Kind == policy.FunctionCall {
		s.uncount() // it may release the lock
	}
	s.fenced = s.fenced || a.Covers
	if a.By.Carries() && !s.pooled {
		s.last, s.lastAt = a.By, s.cfg.Clock()
	}
}

// renames notes that SQL gives a name to another statement than the one that was
// parsed under it.
func (s *Session) renames(st *sqltext.Statement, body []byte) {
	doubt := func(known *statement) {
		fence := known.fence
		*known = odd
		known.fence = fence
	}
	if body == nil || st.NameEnd == 0 {
		s.check.shared = true // it may be one of the proxy's own
		s.prepared.Change(nil, doubt)
		s.portals.Change(nil, doubt)
		return
	}
	name := bytes.ToLower(body[st.NameStart:st.NameEnd])
	s.touches(name)
	s.prepared.Change(name, doubt)
	s.portals.Change(name, doubt)
}

// may notes what a statement names.
func (s *Session) may(flags sqltext.Flags) {
	if flags.Has(sqltext.SetsVariable) {
		s.armed, s.startupFence = true, ""
		if s.hold.by.Comment == "" {
			s.uncount()
		}
	}
	if flags.Has(sqltext.Unlocks) {
		s.uncount()
	}
}

// parses notes a Parse.
func (s *Session) parses(name []byte, st *statement) {
	if isOdd(name) {
		*st = odd
	}
	s.parsed |= st.text.Flags & (sqltext.SetsVariable | sqltext.Unlocks)
	s.namedFence = s.namedFence || len(name) > 0 && st.fence != ""
	if st.text.Flags.Has(sqltext.Stores) {
		s.stored |= st.text.Flags
	}
	s.touches(name)
}

// executed notes what the Execute of a batch does to its transaction.
func (s *Session) executed(m *policy.Message, a *policy.Action) {
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
			b.Answer = policy.NoAnswer // it was about what the variable held before
		}
		switch {
		case st.Class == sqltext.Begins:
			b.Block = policy.InBlock
			if s.batch.ended {
				s.chains, s.fresh = true, true
				s.uncount()
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

// weave forwards a Query with the checks that it needs. has is what the session has of
// the hold that they ask for.
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
			dst = s.weaveCheck(dst, w, i, chars, &a.By, a.Takes, has)
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
	n.woven, n.takes, n.tested, n.trace = w, a.Takes, s.timesCheck(), s.tracing
	return n
}

// weaveCheck appends a check to a text, in front of a statement that begins behind so
// many characters.
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
	doubt bool          // something under way may have dropped them
	// shared: the client has touched such a name, so what goes by it is anybody's.
	shared bool
}

// checkFor is the kind of check that a carrier needs.
func (s *Session) checkFor(by *policy.Carrier) checkKind {
	switch {
	case s.hasSchema() && (by.Carries() || !s.pooled || s.cfg.Mode == Shadow):
		return fullCheck
	case by.Variable:
		return missingCheck
	}
	return readOnlyCheck
}

// putChecks puts the checks that a message of the extended protocol needs into the
// batch.
func (s *Session) putChecks(a *policy.Action, out *Out) {
	if a.Guards {
		s.putCheck(s.hold.by, s.checkFor(&s.hold.by), nil, out)
	}
	switch {
	case a.Takes:
		s.putCheck(a.By, holdingCheck, s.beginTake(a.By), out)
		s.batch.Taken, s.batch.Took, s.batch.By = true, true, a.By
		s.fenced = true
	case len(a.Checks) > 0:
		s.putCheck(a.By, s.checkFor(&a.By), nil, out)
		s.batch.Taken = s.batch.Taken && s.batch.By == a.By
		s.batch.Checked, s.batch.By = true, a.By
		s.fenced = true
	}
}

// putCheck puts Bind and Execute of the prepared check into the batch. It uses
// a portal of its own, since the client may have bound the unnamed one already.
func (s *Session) putCheck(by policy.Carrier, kind checkKind, has *string, out *Out) {
	mark := len(out.own)
	name := checkNames[kind]
	sent := s.check.batch[kind] == s.batch.id+1
	if s.pooled || s.check.shared || !sent && (!s.check.ready[kind] || s.check.doubt) {
		// Behind a pooler what was prepared may be on another server connection.
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
	n.takes, n.tested, n.trace = kind == holdingCheck, s.timesCheck(), s.tracing
	out.own = wire.AppendClose(out.own, 'P', portalName)
	s.push(ledger.Close, ours)
	out.put(mark)
	if kind != holdingCheck {
		s.events.Checked()
	}
}

// touches notes a message about a prepared statement of this name.
func (s *Session) touches(name []byte) {
	if bytes.HasPrefix(name, []byte(ownPrefix)) {
		s.check.shared = true
	}
}
