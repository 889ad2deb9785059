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
	body, ok := text(msg[wire.HeaderSize:])
	if !ok {
		s.batch.open = false // the error ends its transaction
		return s.pushPlain(len(msg), at, out)
	}
	if !s.batch.open {
		s.settle(out)
		s.glance(out)
	}
	if s.untouched(body) {
		s.check.doubt = true // it may be a DISCARD ALL
		s.batch.open = false
		return s.pushPlain(len(msg), at, out)
	}
	var covered weave.Coverage
	if !s.batch.open {
		covered = s.coveredNow()
	} else { // a check anew: only one in the same text keeps a CALL from committing
		covered = s.batch.covered.Unchecked()
	}
	s.batch.open = false
	known := s.look()
	result := s.scanner.Scan(body, s.options, known.catalog)
	by := s.carrier(result.FenceText)
	if known.catalog == nil && (by.In(covered).Carries() || s.cfg.RequireFence || s.followsSetters()) && hasReads(result) && s.refresh(out) {
		return s.hold()
	}
	if result.FenceErr != nil && !s.shadowed(malformed(result.FenceErr)) {
		return s.refuseQuery(len(msg), malformed(result.FenceErr), out)
	}
	contain, bare, sets := false, false, false
	carried, failure := result.Fence, error(nil)
	s.stmts, s.steps = s.stmts[:0], s.steps[:0]
	for i := range result.Statements {
		d := s.describe(&result.Statements[i], known.catalog != nil)
		if d.resets && !s.inherits && s.variable == empty {
			d.step.Setter = false // unless an earlier statement of the text has set it
			for _, before := range s.steps {
				d.step.Setter = d.step.Setter || before.Setter
			}
		}
		if i == 0 && d.step.EndsTx && s.aborted() {
			d.step.Write = false // it rolls back
		}
		s.describePooled(&d, &result.Statements[i], body)
		s.reaches(&d, &result.Statements[i], body)
		if d.obscure != "" && !s.shadowed(s.refusalPooled(d.obscure+" can't be followed")) {
			return s.refuseQuery(len(msg), s.refusalPooled(d.obscure+" can't be followed"), out)
		}
		own := false
		if (d.executes || d.fetches) && failure == nil {
			var wait bool
			if carried, own, wait, failure = s.inherited(&d, carried); wait {
				return s.hold()
			}
			by.Comment = carried.String()
		}
		if d.prepares && d.unclear && by.Comment != "" && failure == nil {
			failure = errUnclearPrepare
		}
		bare, sets = bare || d.step.Write && !own, sets || d.step.Setter
		s.dirty = s.dirty || d.declares && d.step.Write && by.Comment == ""
		s.stmts, s.steps = append(s.stmts, d), append(s.steps, d.step)
		contain = contain || d.procedural || d.step.Unfenceable != "" || d.step.Write && !s.schema
	}
	if bare && result.FenceText == "" && by.Comment != "" && (by.In(covered).Variable || sets || s.cfg.RequireFence) {
		failure = &fence.SyntaxError{Reason: "the fence of a statement that EXECUTE runs doesn't hold for the other writes of the same message; send them apart"}
	}
	if failure != nil && !s.shadowed(malformed(failure)) {
		return s.refuseQuery(len(msg), malformed(failure), out)
	}
	if contain && by.Comment == "" && s.cfg.Mode == Enforce && s.awaitVariable(out) {
		return s.hold() // the session may prove to carry nothing
	}
	for i := range s.stmts {
		d := &s.stmts[i]
		s.ran(d)
		if d.prepares {
			s.prepare(d, by.Comment)
		}
	}
	return s.weaveQuery(msg, body, at, by, covered, out)
}

// weaveQuery forwards a Query with the checks that its steps need.
func (s *Session) weaveQuery(msg, body []byte, at int, by weave.Carrier, covered weave.Coverage, out *Out) int {
	plan := s.plan()
	plan.Query(s.steps, by, covered, s.cfg.RequireFence)
	if plan.Refuse == "" && len(plan.Inserts) > 0 && !s.schema {
		plan.Refuse = fence.CannotBeFenced
	}
	if plan.Refuse != "" {
		refusal := s.refusal(plan.Refuse, plan.Command)
		if plan.Unknown {
			refusal = s.refusalElsewhere()
		}
		s.free(plan)
		if !s.shadowed(refusal) {
			return s.refuseQuery(len(msg), refusal, out)
		}
		return s.pushPlain(len(msg), at, out)
	}
	if len(plan.Inserts) == 0 {
		e := s.q.Push(replies.Query)
		e.Note.covered = plan.After
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
	e.Note.plan, e.Note.covered = plan, plan.After
	s.followAll(e, plan)
	for range plan.Inserts {
		s.events.Checked()
	}
	return len(msg)
}

// untouched reports whether a text can be forwarded without being read: nothing
// in it can be a fence or bring one about, and nothing has to be known of it.
func (s *Session) untouched(body []byte) bool {
	return s.variable == empty && !s.pool.on && !s.cfg.RequireFence && !s.inherits && (!s.schema || s.db.trusted.Load() && !s.db.setters.Load()) &&
		s.confirmed == (weave.Coverage{}) && !s.portals.fenced() && !sqlscan.Mentions(body)
}

func (s *Session) pushPlain(size, at int, out *Out) int {
	s.q.Push(replies.Query)
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
