package session

import (
	"cmp"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// handleError handles an ErrorResponse: it removes the entries that the server skips, and
// puts the client's error into out if that differs.
func (s *Session) handleError(msg []byte, out *Out) bool {
	front := s.q.Front()
	if s.phase == loggingIn || front == nil {
		if s.phase == loggingIn {
			s.login.err = wire.ReadError(msg)
		}
		return !isFatal(msg) || s.handleFatal(msg, out)
	}
	if isFatal(msg) {
		return s.handleFatal(msg, out)
	}
	s.finishCheckSample(&front.Note)
	code := wire.ErrorCode(msg)
	if isRefusal(code) {
		s.doubtHold() // a guard or a policy that is newer than the hold may have refused it
	}
	passes := s.translate(msg, code, front, out)
	if s.check.doubt || (front.Note.role == oursCheck || front.Note.role == ours) && code == "26000" {
		s.check.ready = [kinds]bool{} // a text whose COMMIT fails may have dropped it, or one that the proxy couldn't read
	}
	if code == "57014" && wire.ErrorField(msg, 'R') == copyFailed {
		s.q.EndCopyIn() // the server has read all messages before the CopyFail
	} else {
		s.q.FailCopyIn()
	}
	switch front.Kind {
	case ledger.Query, ledger.FunctionCall, ledger.Sync:
	default:
		s.q.Skip(s.handleSkipped)
		s.skipping = s.skipping || s.q.Len() == 0
	}
	return passes
}

// copyFailed is the server's routine that raises the error of a CopyFail. The error of a
// cancelled statement has the same SQLSTATE.
const copyFailed = "CopyGetData"

// isRefusal reports whether an error is one of Wirefence's own. It doesn't tell what is held: a
// check of another proxy may have raised it ahead of proxy_hold.
func isRefusal(code string) bool { return fence.SQLState(code).Condition() != "" }

// handleSkipped records that the server has skipped a message, or failed at it.
func (s *Session) handleSkipped(e *ledger.Entry[note]) {
	switch e.Note.role {
	case client:
		resolveName(&e.Note, false)
	case oursFull, oursMissing, oursReadOnly, oursHolding:
		kind := e.Note.role - oursFull
		s.check.sent[kind]--
		s.check.ready[kind] = false // the Close before it may have dropped the last one
		if s.check.batch[kind] == s.batch.id+1 {
			s.check.batch[kind] = 0
		}
	}
	s.recycle(e.Note.woven)
}

// translate puts the client's form of an error into out. It reports whether the message
// passes unchanged instead.
func (s *Session) translate(msg []byte, code string, front *ledger.Entry[note], out *Out) bool {
	n := &front.Note
	if s.exchange.by != client && n.role != client {
		// An error at one of the client's messages goes to the client.
		s.exchangeFailed(msg)
		return false
	}
	if n.refusal != nil && code != queryCanceled {
		return s.answerRefusal(n.refusal, n.trace, out)
	}
	ours := n.role != client || n.woven != nil && n.woven.Ours()
	switch {
	case ours && code == missingSchema && !s.hasSchema():
		return s.answerRefusal(s.noSchema(), n.trace, out)
	case s.tx.madeReadOnly && code == readOnlyTransaction && !ours:
		return s.answerRefusal(s.noFence(), n.trace, out)
	}
	return s.rewriteError(msg, code, n, ours, out)
}

// rewriteError reports a refusal of the server's, and puts the error into out if it came
// from a check or needs another position. Otherwise it reports that the message passes unchanged.
func (s *Session) rewriteError(msg []byte, code string, n *note, ours bool, out *Out) (passes bool) {
	woven := n.woven != nil
	refused := isRefusal(code)
	if !ours && !woven && !refused {
		return true
	}
	e, err := wire.DecodeError(msg)
	if err != nil {
		return true
	}
	if refused {
		s.reportRefusal(Refusal{State: fence.SQLState(code), Message: e.Message, Detail: e.Detail, Raised: e.SchemaName == countedSchema}, n.trace)
	}
	if !ours && !woven {
		return true
	}
	switch {
	case woven && e.Position > 0:
		e.Position = int32(n.woven.Position(int(e.Position)))
	case ours:
		e.Position = 0
	}
	if ours {
		// These fields describe the check, not the client's text.
		e.Where, e.InternalQuery, e.InternalPosition = "", "", 0
	}
	return !out.encode(e)
}

// readOnlyTransaction is the SQLSTATE of a write in a READ ONLY transaction.
const readOnlyTransaction = "25006"

// exchangeFailed records the error of an exchange. The client doesn't get it.
func (s *Session) exchangeFailed(msg []byte) {
	if s.exchange.err == nil {
		s.exchange.err = cmp.Or(wire.ReadError(msg), &wire.Error{Code: wire.ErrorCode(msg)})
		s.exchange.err.Severity = "ERROR"
	}
}

// notice handles a NoticeResponse. The client gets the warnings and notices that a check
// raises, but not the server's messages about running it, such as durations.
func (s *Session) notice(msg []byte, out *Out) (passes bool) {
	if s.takesClaim(msg) {
		return false
	}
	front := s.q.Front()
	if front == nil || front.Note.role == client && front.Note.woven == nil {
		return true
	}
	n := &front.Note
	if n.role != client && n.role != oursCheck {
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
	return !out.encode(&moved)
}

// countedSchema is the error's schema field if the database has counted the refusal. It
// can't count one in a READ ONLY transaction.
const countedSchema = "wirefence"

// answerRefusal puts the proxy's own refusal into out in place of the server's error.
func (s *Session) answerRefusal(e *wire.Error, of *trace, out *Out) (passes bool) {
	s.reportRefusal(verdictOf(e, false), of)
	out.insert(e.Append(nil))
	return false
}

func isFatal(msg []byte) bool {
	severity := wire.ErrorField(msg, 'V')
	return severity == "FATAL" || severity == "PANIC"
}
