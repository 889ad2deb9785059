package session

import (
	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/weave"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// query handles a whole Query (documentation, "Message Flow", Simple Query).
func (s *Session) query(msg []byte, at int, out *Out) int {
	n := s.judgeQuery(msg, at, out)
	if n > 0 {
		s.batch.open = false // one that is held leaves the batch open that it came in
	}
	return n
}

func (s *Session) judgeQuery(msg []byte, at int, out *Out) int {
	body, ok := text(msg[wire.HeaderSize:])
	if !ok {
		return s.pushPlain(len(msg), at, out)
	}
	if !s.batch.open {
		s.settle(out)
		s.glance(out)
	}
	if s.untouched(body) {
		s.check.doubt = true // it may be a DISCARD ALL
		return s.pushPlain(len(msg), at, out)
	}
	var covered weave.Coverage
	if !s.batch.open {
		covered = s.coveredNow()
	} else { // a check anew: only one in the same text keeps a CALL from committing
		covered = s.batch.covered.Unchecked()
	}
	known := s.look()
	result := s.scanner.Scan(body, s.options, known.catalog)
	by := s.carrier(result.FenceText)
	decides := hasReads(result) && (by.In(covered).Carries() || s.cfg.everyWrite) || hasCalls(result) && s.followsSetters()
	if known.catalog == nil && decides && s.refresh(out) {
		return s.hold()
	}
	if result.FenceErr != nil && !s.shadowed(malformed(result.FenceErr)) {
		return s.refuseQuery(len(msg), malformed(result.FenceErr), out)
	}
	if s.batch.open && s.unreadable(result, by.In(covered).Carries(), body) {
		if refusal := s.unreadableText(); !s.shadowed(refusal) {
			return s.refuseQuery(len(msg), refusal, out)
		}
		return s.pushPlain(len(msg), at, out)
	}
	r := gathered{by: by, carried: result.Fence}
	s.stmts, s.steps = s.stmts[:0], s.steps[:0]
	for i := range result.Statements {
		obscure, wait := s.readStatement(&r, &result.Statements[i], body, known.catalog != nil)
		if obscure != nil {
			return s.refuseQuery(len(msg), obscure, out)
		} else if wait {
			return s.hold()
		}
	}
	by, failure := r.by, r.failure
	if r.bare && result.FenceText == "" && by.Comment != "" && (by.In(covered).Variable || r.sets || s.cfg.everyWrite) {
		failure = &fence.SyntaxError{Reason: "the fence of a statement that EXECUTE runs doesn't hold for the other writes of the same message; send them apart"}
	}
	if failure != nil && !s.shadowed(malformed(failure)) {
		return s.refuseQuery(len(msg), malformed(failure), out)
	}
	if r.contain && by.Comment == "" && s.cfg.Mode == Enforce && s.awaitVariable(out) {
		return s.hold() // the session may prove to carry nothing
	}
	before := s.prepares
	for i := range s.stmts {
		d := &s.stmts[i]
		s.ran(d)
		if d.prepares {
			s.prepare(d, by.Comment)
		}
	}
	return s.weaveQuery(msg, body, at, by, covered, before, out)
}

// gathered is what the statements of a Query have shown so far.
type gathered struct {
	by      weave.Carrier
	carried fence.Fence // of the text, and of statements that it executes
	failure error       // why these don't fit together
	contain bool        // one can't be checked as it stands
	bare    bool        // one writes by itself, not by a statement that it executes
	sets    bool        // one may set the session variable
}

// readStatement describes the next statement of a Query for what is to be sent.
// obscure refuses the Query; wait says that it must be held back.
func (s *Session) readStatement(r *gathered, st *sqlscan.Statement, body []byte, known bool) (obscure *wire.Error, wait bool) {
	d := s.describe(st, known)
	if d.resets && !s.inherits && s.variable == empty {
		d.step.Setter = false // unless an earlier statement of the text has set it
		for _, before := range s.steps {
			d.step.Setter = d.step.Setter || before.Setter
		}
	}
	if len(s.steps) == 0 && d.step.EndsTx && s.aborted() {
		d.step.Write = false // it rolls back
	}
	s.describePooled(&d, st, body)
	s.reaches(&d, st, body)
	if d.obscure != "" {
		if e := s.refusalPooled(d.obscure + " can't be followed"); !s.shadowed(e) {
			return e, false
		}
	}
	own := false
	if (d.executes || d.fetches) && r.failure == nil {
		if r.carried, own, wait, r.failure = s.inherited(&d, r.carried); wait {
			return nil, true
		}
		r.by.Comment = r.carried.String()
	}
	if d.prepares && d.unclear && r.by.Comment != "" && r.failure == nil {
		r.failure = errUnclearPrepare
	}
	r.bare, r.sets = r.bare || d.step.Write && !own, r.sets || d.step.Setter
	r.contain = r.contain || d.procedural || d.step.Unfenceable != "" || d.step.Write && !s.checkable()
	s.dirty = s.dirty || d.declares && d.step.Write && r.by.Comment == ""
	s.stmts, s.steps = append(s.stmts, d), append(s.steps, d.step)
	return nil, false
}

// weaveQuery forwards a Query with the checks that its steps need, before which
// there were so many PREPAREs.
func (s *Session) weaveQuery(msg, body []byte, at int, by weave.Carrier, covered weave.Coverage, before uint64, out *Out) int {
	plan := s.plan()
	plan.Query(s.steps, by, covered, s.cfg.RequireFence)
	if plan.Refuse == "" && len(plan.Inserts) > 0 && !s.checkable() {
		plan.Refuse = fence.CannotBeFenced
	}
	if plan.Refuse != "" {
		refusal := s.refusal(plan.Refuse, plan.Command)
		switch {
		case plan.Unknown:
			refusal = s.refusalElsewhere()
		case plan.Refuse == fence.LeaseNotHeld:
			refusal = s.unheld()
		}
		s.free(plan)
		if !s.shadowed(refusal) {
			return s.refuseQuery(len(msg), refusal, out)
		}
		return s.pushPlain(len(msg), at, out)
	}
	if len(plan.Inserts) == 0 {
		e := s.q.Push(replies.Query)
		e.Note.covered, e.Note.before = plan.After, before
		s.followAll(e, plan)
		if len(s.stmts) == 1 && s.stmts[0].forgets {
			e.Note.sql, e.Note.name = true, s.stmts[0].target
		}
		s.free(plan)
		return s.pass(len(msg), len(msg), at, out)
	}
	mark := len(out.own)
	dst, head := wire.BeginQuery(out.own)
	dst = plan.Rewrite(dst, body, s.cfg.call, s.countChars)
	out.own = wire.EndQuery(dst, head)
	out.put(mark)
	e := s.q.Push(replies.Query)
	e.Note.plan, e.Note.covered, e.Note.before = plan, plan.After, before
	s.followAll(e, plan)
	for range plan.Inserts {
		s.events.Checked()
	}
	return len(msg)
}

// untouched reports whether a text can be forwarded without being read: nothing
// in it can be a fence or bring one about, and nothing has to be known of it.
func (s *Session) untouched(body []byte) bool {
	return s.variable == empty && !s.pool.on && !s.cfg.everyWrite && !s.inherits && s.db.trusted.Load() && !s.db.setters.Load() &&
		s.confirmed == (weave.Coverage{}) && !s.portals.fenced() && !sqlscan.Mentions(body)
}

func (s *Session) pushPlain(size, at int, out *Out) int {
	s.q.Push(replies.Query).Note.before = s.prepares
	return s.pass(size, size, at, out)
}

// coveredNow returns what the open transaction has been checked for when a
// message begins. While replies are outstanding nobody can say: an error among
// them may end the transaction, and what follows would be another.
func (s *Session) coveredNow() weave.Coverage {
	if s.batch.open {
		return s.batch.covered
	}
	switch {
	case s.pool.on && s.q.Ready() > 0:
		return weave.Unseen()
	case s.q.Ready() > 0 || s.tx == wire.Idle:
		return weave.Coverage{}
	}
	return s.confirmed
}

func (s *Session) countChars(b []byte) int { return sqlscan.CountChars(b, s.options.Encoding) }
