package session

import (
	"encoding/binary"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// setConfigOID is pg_catalog.set_config(text, text, boolean) in every version.
const setConfigOID = 2078

// firstNormalOID is the first object id of what isn't built in
// (FirstNormalObjectId).
const firstNormalOID = 16384

// functionCall handles a FunctionCall (documentation, "Message Flow", Function
// Call), which counts as a write. It can't share a message with a check, so
// outside a transaction block the proxy opens one around both; all of it is sent
// at once. What the client gets is the answer of its call, or the check's error
// in its place, and one ReadyForQuery.
func (s *Session) functionCall(in []byte, size, at int, out *Out) int {
	const head = wire.HeaderSize + 4
	if len(in) < head && size >= head {
		return 0
	}
	oid := uint32(0)
	if size >= head {
		oid = binary.BigEndian.Uint32(in[wire.HeaderSize:])
	}
	setter := s.maySetUnseen() || oid == setConfigOID
	if s.pool.on && oid != setConfigOID && oid < firstNormalOID {
		setter = false // a refusal would hit every large object
	}
	n := s.fenceFunctionCall(size, len(in), at, setter, out)
	if n > 0 && setter {
		s.doubtVariable()
	}
	return n
}

func (s *Session) fenceFunctionCall(size, have, at int, setter bool, out *Out) int {
	by := s.carrier("").In(s.coveredNow())
	dead := s.aborted() && !s.batch.open
	follows := s.pool.on && setter
	if dead || !by.Carries() && !s.cfg.everyWrite && !follows {
		s.batch.open = false
		s.q.Push(replies.FunctionCall)
		return s.pass(size, have, at, out)
	}
	if !s.batch.open {
		s.settle(out)
	}
	if s.q.Ready() > 0 && !s.q.CopyIn() {
		return s.hold() // whether a block is open is not known yet
	}
	if !s.checkable() && s.cfg.Mode == Enforce && !s.batch.open && s.awaitVariable(out) {
		return s.hold() // the session may prove to carry nothing
	}
	inBlock := s.tx != wire.Idle
	if s.batch.open && s.batch.known {
		inBlock = s.batch.inBlock
	}
	var refusal *wire.Error
	switch {
	case follows:
		refusal = s.refusalPooled("a function call that may set wirefence.token can't be followed")
	case by.Unknown():
		refusal = s.refusalElsewhere()
	case by.Unheld():
		refusal = s.unheld()
	case !by.Carries():
		refusal = s.refusal(fence.TokenRequired, "")
	case !s.checkable():
		refusal = s.refusal(fence.CannotBeFenced, "")
	case s.batch.open && s.batch.ended && s.cfg.Mode == Enforce:
		// Whether a block is open depends on AND CHAIN.
		refusal = s.refusal(fence.CannotBeFenced, "a function call behind the end of a transaction in the same batch")
	}
	if refusal != nil && !s.shadowed(refusal) {
		s.batch.open = false
		s.refuseQuery(0, refusal, out)
		n := min(size, have)
		s.drop = size - n
		return n
	}
	covered, alone := s.coveredNow(), !inBlock
	s.batch.open = false
	if refusal == nil && s.cfg.Mode == Enforce && !covered.Covers(by) {
		covered = covered.Add(by)
		before := s.cfg.call.Simple(by)
		if alone {
			before = "BEGIN;" + before
		}
		s.fastpath = false
		out.insert(wire.AppendQuery(nil, before))
		s.push(replies.Query, fastBefore)
		s.events.Checked()
	} else {
		alone = false
	}
	s.drained = s.drained || s.bound(covered)
	note := s.push(replies.FunctionCall, client)
	note.covered = covered
	if alone {
		note.role = fastCall
		s.drained = true
	}
	return s.pass(size, have, at, out)
}

// commitFunctionCall ends the transaction block around a function call.
func (s *Session) commitFunctionCall() {
	s.toward = wire.AppendQuery(s.toward, "COMMIT")
	s.push(replies.Query, fastAfter)
}
