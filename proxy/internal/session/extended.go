package session

import (
	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/weave"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// openBatch begins a batch with its first message. wait asks to come again
// after the replies that are under way.
func (s *Session) openBatch(out *Out) (wait bool) {
	if s.batch.open {
		return false
	}
	if s.dirty && s.mustWait() {
		return true
	}
	s.settle(out)
	s.glance(out)
	if (s.variable != empty || s.cfg.everyWrite || s.followsSetters()) && s.refresh(out) {
		return true
	}
	s.batch = batch{
		open: true, fresh: true, id: s.batch.id + 1, known: s.q.Ready() == 0,
		inBlock: s.tx != wire.Idle, dead: s.aborted(), covered: s.coveredNow(), view: s.look(),
	}
	return false
}

// holdBatch holds the message under way. If it is the first of its batch, the
// batch is opened anew when it comes again, with what is known by then.
func (s *Session) holdBatch() int {
	s.batch.open = s.batch.open && !s.batch.fresh
	return s.hold()
}

// aborted reports whether the transaction is known to have failed: until it is
// ended nothing runs in it, so nothing has to be checked.
func (s *Session) aborted() bool { return s.tx == wire.Failed && s.q.Ready() == 0 }

// parse handles a whole Parse.
func (s *Session) parse(msg []byte, at int, out *Out) int {
	name, rest, ok := wire.CString(msg[wire.HeaderSize:])
	body, _, ok2 := wire.CString(rest)
	if !ok || !ok2 {
		s.q.Push(replies.Parse)
		return s.pass(len(msg), len(msg), at, out)
	}
	if s.openBatch(out) {
		return s.hold()
	}
	result := s.scanner.Scan(body, s.options, s.batch.view.catalog)
	if result.FenceErr != nil && !s.shadowed(malformed(result.FenceErr)) {
		s.refuseBatch(malformed(result.FenceErr), out)
		return len(msg)
	}
	carries := s.variable != empty || result.FenceText != ""
	if s.batch.view.catalog == nil && carries && hasReads(result) && s.batch.fresh {
		s.batch.open = false
		if s.refresh(out) {
			return s.hold()
		}
		s.batch.open = true
	}
	if s.unreadable(result, carries, body) {
		if refusal := s.unreadableText(); !s.shadowed(refusal) {
			s.refuseBatch(refusal, out)
			return len(msg)
		}
	}
	var d statement
	if len(result.Statements) > 0 {
		d = s.describe(&result.Statements[0], s.batch.view.catalog != nil)
		s.describePooled(&d, &result.Statements[0], body)
		s.reaches(&d, &result.Statements[0], body)
	}
	if d.obscure != "" && !s.shadowed(s.refusalPooled(d.obscure+" can't be followed")) {
		s.refuseBatch(s.refusalPooled(d.obscure+" can't be followed"), out)
		return len(msg)
	}
	d.fence = result.FenceText
	if d.prepares && d.unclear && d.fence != "" && !s.shadowed(malformed(errUnclearPrepare)) {
		s.refuseBatch(malformed(errUnclearPrepare), out)
		return len(msg)
	}
	if s.unsettled(&d, out) {
		return s.hold()
	}
	s.batch.fresh = false
	d.generation = s.batch.view.generation
	if len(name) > 0 {
		if d.read && len(body) <= maxKeptText {
			d.text = string(body)
		}
		s.setterSQL = s.setterSQL || d.step.Setter // SQL may EXECUTE it
	}
	s.touches(name)
	s.prepared.sent(name, s.batch.id, d)
	e := s.q.Push(replies.Parse)
	e.Note.name = string(name)
	return s.pass(len(msg), len(msg), at, out)
}

// unsettled reports whether a statement, with which a batch begins, may be
// refused for what the session variable is not yet known to hold.
func (s *Session) unsettled(st *statement, out *Out) (wait bool) {
	atStake := st.step.Unfenceable != "" || st.procedural || st.step.Write && !s.checkable()
	if !s.batch.fresh || !atStake || st.fence != "" || s.cfg.Mode != Enforce {
		return false
	}
	s.batch.open = false
	wait = s.awaitVariable(out)
	s.batch.open = !wait
	return wait
}

// bind handles a Bind, of which only the names must be there: its parameters
// may be large.
func (s *Session) bind(in []byte, size, at int, out *Out) int {
	have := in[wire.HeaderSize:min(size, len(in))]
	portal, rest, ok := wire.CString(have)
	name, _, ok2 := wire.CString(rest)
	if !ok || !ok2 {
		if len(in) < size && len(have) <= s.cfg.MaxStatement {
			return 0
		}
		if s.openBatch(out) {
			return s.hold()
		}
		s.batch.fresh = false
		if refusal := s.longName(); size > s.cfg.MaxStatement && !s.shadowed(refusal) {
			s.refuseBatch(refusal, out)
			n := min(size, len(in))
			s.drop = size - n
			return n
		}
		s.q.Push(replies.Bind)
		return s.pass(size, len(in), at, out)
	}
	if s.openBatch(out) {
		return s.hold()
	}
	st, sure := s.prepared.find(name, s.batch.id)
	if !sure && s.q.Ready() > 0 && !s.q.CopyIn() {
		return s.holdBatch()
	}
	if st.read && st.fence != "" && s.batch.view.catalog == nil && s.batch.fresh {
		s.batch.open = false
		if s.refresh(out) {
			return s.hold()
		}
		s.batch.open = true
	}
	if s.unsettled(&st, out) {
		return s.hold()
	}
	s.batch.fresh = false
	s.portals.sent(portal, s.batch.id, s.current(st))
	s.q.Push(replies.Bind).Note.name = string(portal)
	return s.pass(size, len(in), at, out)
}

// execute judges the statement behind a portal and puts in front of its Execute
// what it needs. The Execute itself is then forwarded by the caller.
func (s *Session) execute(msg []byte, at int, out *Out) int {
	name, _, ok := wire.CString(msg[wire.HeaderSize:])
	if !ok {
		s.q.Push(replies.Execute)
		return s.pass(len(msg), len(msg), at, out)
	}
	if s.openBatch(out) {
		return s.hold()
	}
	st, sure := s.portals.find(name, s.batch.id)
	if !sure && s.q.Ready() > 0 && !s.q.CopyIn() {
		return s.holdBatch()
	}
	st.sets = st.sets || st.generation != s.batch.view.generation && s.maySetUnseen()
	s.mayset(&st)
	if st.executes || st.fetches {
		if wait := s.inherit(&st, out); wait {
			return s.holdBatch()
		}
	}
	by := s.carrier(st.fence).In(s.batch.covered)
	s.dirty = s.dirty || st.declares && st.step.Write && by.Comment == ""
	if s.batch.dead {
		s.batch.dead = !st.step.EndsTx && !st.step.Uncovers
	} else if (st.step.Write || st.step.Unfenceable != "") && (by.Carries() || s.cfg.everyWrite) {
		if wait := s.guard(&st, by, out); wait {
			return s.holdBatch()
		}
	} else if st.reads && s.checksReads() && by.Carries() {
		by.Reads = true
		if wait := s.guard(&st, by, out); wait {
			return s.holdBatch()
		}
	} else if st.procedural && s.major < 18 && !s.batch.inBlock {
		s.batch.covered = weave.Coverage{} // it may have committed
	}
	s.batch.covered = s.batch.covered.After(st.step)
	switch {
	case st.begins:
		// A block that the proxy has opened is the client's from here on.
		s.batch.known, s.batch.inBlock, s.batch.contained = true, true, false
	case st.step.EndsTx:
		s.batch.ended, s.batch.contained = true, false
	}
	s.ran(&st)
	before := s.prepares
	if st.prepares {
		s.prepare(&st, st.fence)
	}
	s.batch.fresh = false
	e := s.q.Push(replies.Execute)
	e.Note.before = before
	s.follow(e, &st, 0)
	s.pool.keeps = s.pool.keeps || st.step.Keeps
	if st.forgets {
		e.Note.sql, e.Note.name = true, st.target
	}
	n := s.pass(len(msg), len(msg), at, out)
	if st.step.Behind && st.fence == "" && !s.batch.dead {
		by := s.carrier("") // as it is by now
		by.Behind = true
		s.putCheck(by, out)
	}
	return n
}

// inherit adds the fence of the prepared statement that an EXECUTE runs. wait
// asks to come again after the replies that are under way.
func (s *Session) inherit(st *statement, out *Out) (wait bool) {
	var own fence.Fence
	if st.fence != "" {
		own, _ = fence.Parse(st.fence) // it is the text of a fence
	}
	f, _, wait, err := s.inherited(st, own)
	if err != nil && !s.shadowed(malformed(err)) {
		s.refuseBatch(malformed(err), out)
	}
	if !wait && err == nil {
		st.fence = f.String()
	}
	return wait
}

// guard puts a check, or the bait of a refusal, in front of a statement. wait asks
// to come again after the replies that are under way.
func (s *Session) guard(st *statement, by weave.Carrier, out *Out) (wait bool) {
	enforce := s.cfg.Mode == Enforce
	if (st.step.Unfenceable != "" || st.procedural || !s.checkable()) && by.Comment == "" && enforce && s.awaitVariable(out) {
		return true
	}
	var refusal *wire.Error
	switch {
	case by.Unknown():
		refusal = s.refusalElsewhere()
	case st.step.Unfenceable != "" && by.Carries():
		refusal = s.refusal(fence.CannotBeFenced, st.step.Unfenceable)
	case by.Unheld():
		refusal = s.unheld()
	case !by.Carries():
		refusal = s.refusal(fence.TokenRequired, "")
	case !s.checkable():
		refusal = s.refusal(fence.CannotBeFenced, "")
	case st.procedural && s.major < 18 && s.batch.ended && enforce:
		// Whether a block is open depends on AND CHAIN.
		refusal = s.refusal(fence.CannotBeFenced, "a CALL or DO behind the end of a transaction in the same batch")
	}
	if refusal != nil {
		if !s.shadowed(refusal) {
			s.refuseBatch(refusal, out)
		}
		return false
	}
	if st.procedural && s.major < 18 && enforce {
		if !s.batch.known {
			if s.q.Ready() > 0 && !s.q.CopyIn() {
				return true
			}
			s.batch.known, s.batch.inBlock = true, s.tx != wire.Idle
		}
		s.contain(out)
	}
	if !s.batch.covered.Covers(by) {
		s.putCheck(by, out)
		s.batch.covered = s.batch.covered.Add(by)
	}
	return false
}

// contain opens a transaction block before a CALL or DO. Up to PostgreSQL 17
// a procedure in the extended protocol could else commit behind the check and
// go on unfenced; in a block its COMMIT raises 2D000, as it does behind a check
// in a simple query, and as from 18 on.
func (s *Session) contain(out *Out) {
	if s.batch.inBlock {
		return
	}
	s.putCommand("BEGIN", out)
	s.batch.inBlock, s.batch.contained, s.batch.opened = true, true, true
}

func (s *Session) push(kind replies.Kind, by role) *note {
	e := s.q.Push(kind)
	e.Note.role = by
	e.Note.epoch = s.epoch
	return &e.Note
}

// sync handles a Sync, which ends a batch.
func (s *Session) sync(out *Out) {
	contained, opened, covered := s.batch.open && s.batch.contained, s.batch.open && s.batch.opened, s.coveredNow()
	if s.skipping {
		s.skipping = false
		if !s.pool.on {
			covered = weave.Coverage{}
		}
	} else if contained {
		s.putCommand("COMMIT", out)
	}
	if opened || s.bound(covered) {
		s.drained = true // what follows must not run into a failed block
	}
	e := s.q.Push(replies.Sync)
	e.Note.covered, e.Note.contain = covered, opened
	s.batch.open, s.pool.keeps = false, false
	s.batch.id++ // what follows comes even if something in this batch has failed
}
