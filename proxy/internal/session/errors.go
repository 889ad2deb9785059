package session

import (
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// error handles an ErrorResponse: it takes out what the server skips, and puts
// what the client is to see into out where that differs.
func (s *Session) error(msg []byte, out *Out) bool {
	front := s.q.Front()
	if s.phase == login || front == nil {
		if s.phase == login {
			s.loginError = wire.ReadError(msg)
		}
		return !fatal(msg) || s.ended(msg, out)
	}
	if fatal(msg) {
		return s.ended(msg, out)
	}
	s.checkEnds(&front.Note)
	code := wire.ErrorCode(msg)
	passes := s.translate(msg, code, front, out)
	if (front.Note.role == oursCheck || front.Note.role == ours) && code == "26000" {
		s.check.ready = [kinds]bool{} // somebody dropped it behind our back
	}
	if code == "57014" && wire.ErrorField(msg, 'R') == copyFailed {
		s.q.EndCopyIn() // all before the CopyFail was read
	} else {
		s.q.FailCopyIn()
	}
	switch front.Kind {
	case ledger.Query, ledger.FunctionCall, ledger.Sync:
	default:
		s.q.Skip(s.dropped)
		s.skipping = s.skipping || s.q.Len() == 0
	}
	return passes
}

// copyFailed is the routine of the server that raises what a CopyFail asks for; a
// statement that is cancelled has the same SQLSTATE.
const copyFailed = "CopyGetData"

// dropped notes that the server has skipped a message, or failed at it.
func (s *Session) dropped(e *ledger.Entry[note]) {
	switch e.Note.role {
	case client:
		s.given(e, false)
	case oursFull, oursMissing, oursReadOnly, oursHolding:
		kind := e.Note.role - oursFull
		s.check.sent[kind]--
		s.check.ready[kind] = false // the Close before it may have dropped the last one
		if s.check.batch[kind] == s.batch.id+1 {
			s.check.batch[kind] = 0
		}
	}
	s.free(e.Note.woven)
}

// translate decides what the client sees of an error. It reports whether the
// message passes as it is.
func (s *Session) translate(msg []byte, code string, front *ledger.Entry[note], out *Out) bool {
	n := &front.Note
	switch {
	case s.own.by == beforeCall && n.role != client:
		s.callFailed = true // and the error is the answer of the call
	case s.own.by != client && n.role != client:
		// One among the client's messages is the client's: what it sent is skipped.
		s.exchangeFailed(msg)
		return false
	case front.Kind == ledger.FunctionCall && n.checked && s.callFailed:
		return false // 25P02 behind the check's own error
	}
	if n.refusal != nil && (code == "42601" || code == "08P01") {
		return s.answerRefusal(n.refusal, n.trace, out)
	}
	ours := n.role != client || n.woven != nil && n.woven.Ours()
	switch {
	case ours && code == missingSchema && !s.hasSchema():
		return s.answerRefusal(s.noSchema(), n.trace, out)
	case s.readOnly && code == readOnlyTransaction && !ours:
		return s.answerRefusal(s.noFence(), n.trace, out)
	}
	woven := n.woven != nil
	refused := fence.SQLState(code).Condition() != ""
	if !ours && !woven && !refused {
		return true
	}
	e, err := wire.DecodeError(msg)
	if err != nil {
		return true
	}
	if refused {
		s.refused(Refusal{State: fence.SQLState(code), Message: e.Message, Detail: e.Detail, Raised: e.SchemaName == counted}, n.trace)
	}
	where := e.Where
	if refused && s.tracked && (code != string(fence.TokenRequired) || s.mayCarry()) {
		e.Where = withoutOwnContext(e.Where)
	}
	if !ours && !woven && e.Where == where {
		return true
	}
	switch {
	case woven && e.Position > 0:
		e.Position = int32(n.woven.Position(int(e.Position)))
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

// withoutOwnContext takes the lines of Wirefence's functions from the CONTEXT of an error
// that one of them has raised, and leaves those of the client's own that called it. They
// stand at the beginning, in the language of the server.
func withoutOwnContext(where string) string {
	first, _, _ := strings.Cut(where, "\n")
	if !strings.Contains(first, ownFunctions) {
		return where
	}
	last := strings.LastIndex(where, ownFunctions)
	_, rest, _ := strings.Cut(where[last:], "\n")
	return strings.TrimPrefix(strings.TrimPrefix(rest, checkOfOneArgument), "\n")
}

// ownFunctions begins the names of Wirefence's functions in a CONTEXT, but for those in
// SQL, which have no schema there.
const (
	ownFunctions       = " wirefence."
	checkOfOneArgument = `SQL function "check" statement 1`
)

// readOnlyTransaction is the SQLSTATE of what a READ ONLY transaction refuses.
const readOnlyTransaction = "25006"

// exchangeFailed takes in the error of an exchange, which the client isn't shown.
func (s *Session) exchangeFailed(msg []byte) {
	if s.own.err != nil {
		return
	}
	s.own.err = &wire.Error{Severity: "ERROR", Code: wire.ErrorCode(msg)}
	if e, err := wire.DecodeError(msg); err == nil {
		s.own.err.Message, s.own.err.Detail, s.own.err.Hint = e.Message, e.Detail, e.Hint
		s.own.raised = e.SchemaName == counted
	}
}

// notice decides what the client sees of a notice. What a check says passes, in its
// own message or as part of the client's; what the server says of its running
// them, as a log of durations, does not.
func (s *Session) notice(msg []byte, out *Out) (passes bool) {
	front := s.q.Front()
	if front == nil || front.Note.role == client && front.Note.woven == nil {
		return true
	}
	n := &front.Note
	if n.role != client && n.role != oursCheck && n.role != beforeCall {
		return false
	}
	e, err := wire.DecodeError(msg)
	if err != nil {
		return true
	}
	if loud := e.SeverityUnlocalized == "WARNING" || e.SeverityUnlocalized == "NOTICE"; !loud && (n.woven == nil || n.woven.Ours()) {
		return false
	}
	if n.woven == nil || e.Position == 0 {
		return true
	}
	e.Position = int32(n.woven.Position(int(e.Position)))
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
// error, which doesn't pass.
func (s *Session) answerRefusal(e *wire.Error, of *trace, out *Out) (passes bool) {
	s.refused(Refusal{State: fence.SQLState(e.Code), Message: e.Message, Detail: e.Detail}, of)
	mark := len(out.own)
	out.own = e.Append(out.own)
	out.put(mark)
	return false
}

func fatal(msg []byte) bool {
	severity := wire.ErrorField(msg, 'V')
	return severity == "FATAL" || severity == "PANIC"
}
