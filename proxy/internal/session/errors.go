package session

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// error handles an ErrorResponse: it takes out what the server skips, and puts
// what the client is to see into out where that differs.
func (s *Session) error(msg []byte, out *Out) bool {
	front := s.q.Front()
	if s.phase == login || front == nil {
		s.failed = s.failed || fatal(msg)
		return true
	}
	if fatal(msg) {
		s.failed = true
		return true
	}
	code := wire.ErrorCode(msg)
	n := front.Note
	s.pool.erred = true
	passes := s.translate(msg, code, front, out)
	if n.role == oursCheck || n.role == ours {
		if code == "26000" {
			s.check.ready = [kinds]bool{} // somebody dropped it behind our back
		}
	}
	if code == "57014" && wire.ErrorField(msg, 'R') == copyFailed {
		s.q.EndCopyIn() // all before the CopyFail was read
	} else {
		s.q.FailCopyIn()
	}
	switch front.Kind {
	case replies.Query, replies.FunctionCall, replies.Sync:
	default:
		s.q.Skip(s.dropped)
		s.skipping = s.q.Len() == 0
	}
	return passes
}

// copyFailed is the routine of the server that raises what a CopyFail asks for; a
// statement that is cancelled has the same SQLSTATE.
const copyFailed = "CopyGetData"

// dropped notes that the server has skipped a message, or failed at it.
func (s *Session) dropped(e *replies.Entry[note]) {
	switch e.Note.role {
	case client:
		switch {
		case e.Note.refusal != nil || !s.tracked:
		case e.Kind == replies.Parse:
			s.prepared.failed(e.Note.name)
		case e.Kind == replies.Bind:
			s.portals.failed(e.Note.name)
		}
	case oursParse, oursParseRead, oursParseBehind:
		what := e.Note.role - oursParse
		s.check.ready[what] = false // the Close before it may have dropped the last one
		if s.check.batch[what] == s.batch.id {
			s.check.batch[what] = 0
		}
	}
	s.free(e.Note.plan)
}

// translate decides what the client sees of an error. It reports whether the
// message passes as it is.
func (s *Session) translate(msg []byte, code string, front *replies.Entry[note], out *Out) bool {
	n := &front.Note
	switch n.role {
	case probeVar, probeLogin, probeInitial:
		s.unanswered()
		if n.role == probeLogin {
			s.inherits = true // for all that is known
			// In shadow mode a check that isn't there must not fail a write.
			s.schema = s.schema && s.cfg.Mode != Shadow
		}
		return false
	case probeStamp, probeCatalog:
		s.inquiring = false
		s.db.fail()
		s.events.Trouble(catalogError(msg))
		return false
	case fastBefore:
		s.fastpath = true
	case client, fastCall:
		if front.Kind == replies.FunctionCall && s.fastpath {
			return false // 25P02 behind the check's own error
		}
	}
	if n.refusal != nil && (code == "42601" || code == "08P01") {
		return s.answerRefusal(n.refusal, false, out)
	}
	ours := n.role == oursCheck || n.role == ours || n.role == fastBefore || n.plan != nil && n.plan.Ours()
	if s.elsewhere(code, ours) {
		return s.answerRefusal(s.refusalElsewhere(), false, out)
	}
	if s.cfg.Lease != nil && ours && code == string(fence.TokenRequired) {
		// The session variable proved to be empty, and there was no stamp.
		e, err := wire.DecodeError(msg)
		return s.answerRefusal(s.unheld(), err == nil && e.SchemaName == counted, out)
	}
	woven := n.plan != nil
	refused := fence.SQLState(code).Condition() != ""
	if !ours && !woven && !refused {
		return true
	}
	e, err := wire.DecodeError(msg)
	if err != nil {
		return true
	}
	if refused {
		s.events.Refused(Refusal{State: fence.SQLState(code), Message: e.Message, Detail: e.Detail, Raised: e.SchemaName == counted})
	}
	if !ours && !woven {
		return true
	}
	switch {
	case woven && e.Position > 0:
		e.Position = int32(n.plan.Position(int(e.Position)))
	case ours:
		e.Position = 0
	}
	if ours {
		// Where in the check it was raised is nothing that the client wrote.
		e.Where, e.InternalQuery, e.InternalPosition = "", "", 0
	}
	mark := len(out.own)
	if own, err := e.Encode(out.own); err == nil {
		out.own = own
		out.put(mark)
		return false
	}
	return true
}

// notice decides what the client sees of a notice. What a check says passes, in its
// own message or as part of the client's; what the server says of its running
// them, as a log of durations, does not.
func (s *Session) notice(msg []byte, out *Out) (passes bool) {
	front := s.q.Front()
	if front == nil || front.Note.role == fastCall || front.Note.role == client && front.Note.plan == nil {
		return true
	}
	n := &front.Note
	if n.role != client && n.role != oursCheck && n.role != fastBefore {
		return false
	}
	e, err := wire.DecodeError(msg)
	if err != nil {
		return true
	}
	if loud := e.SeverityUnlocalized == "WARNING" || e.SeverityUnlocalized == "NOTICE"; !loud && (n.plan == nil || n.plan.Ours()) {
		return false
	}
	if n.plan == nil || e.Position == 0 {
		return true
	}
	e.Position = int32(n.plan.Position(int(e.Position)))
	moved := pgproto3.NoticeResponse(*e)
	mark := len(out.own)
	own, err := moved.Encode(out.own)
	if err != nil {
		return true
	}
	out.own = own
	out.put(mark)
	return false
}

// counted is what stands in the field of the schema where the database has counted a
// refusal as one that it raised: it can't in a READ ONLY transaction.
const counted = "wirefence"

// answerRefusal puts a refusal of the proxy's own in the place of the server's
// error, which doesn't pass; raised says that it was one of the schema's.
func (s *Session) answerRefusal(e *wire.Error, raised bool, out *Out) (passes bool) {
	s.events.Refused(Refusal{State: fence.SQLState(e.Code), Message: e.Message, Detail: e.Detail, Raised: raised})
	mark := len(out.own)
	out.own = e.Append(out.own)
	out.put(mark)
	return false
}

func fatal(msg []byte) bool {
	for b := msg[wire.HeaderSize:]; len(b) > 1 && b[0] != 0; {
		value, rest, ok := wire.CString(b[1:])
		if !ok {
			return false
		}
		if b[0] == 'V' {
			return string(value) == "FATAL" || string(value) == "PANIC"
		}
		b = rest
	}
	return false
}

func catalogError(msg []byte) error {
	return fmt.Errorf("the catalog could not be read, so every function counts as one that writes: SQLSTATE %s", wire.ErrorCode(msg))
}
