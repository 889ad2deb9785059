package session

import (
	"bytes"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// FromServer handles bytes of the server and puts the bytes for the client into out. It
// returns how many bytes it has used; the caller passes the rest, the beginning of a
// message, again with more bytes. wake says that the driver must call FromClient, even
// without new bytes: there are bytes for the server, or the client's input need not wait
// any longer.
func (s *Session) FromServer(in []byte, out *Out) (used int, wake bool) {
	out.reset(in)
	s.at = s.cfg.Clock()
	if s.unconfirmed() {
		return 0, false
	}
	for used < len(in) && s.fatal == nil {
		n := s.fromServer(in[used:], used, out)
		if n == 0 {
			break
		}
		used += n
	}
	return used, len(s.toServer) > 0 || s.inputWaits && s.canResume()
}

// canResume reports whether the replies may have come for which the client's message
// waits.
func (s *Session) canResume() bool {
	if s.queueFull {
		return s.q.Len() <= resumeAt
	}
	return s.q.Ready() == 0 || s.q.CopyIn()
}

// fromServer handles one message, or a part of one, at offset at of the input.
func (s *Session) fromServer(in []byte, at int, out *Out) int {
	if s.serverLeft > 0 {
		n := min(s.serverLeft, len(in))
		s.serverLeft -= n
		if !s.dropServer {
			out.pass(at, at+n)
		}
		return n
	}
	typ, size, ok := wire.Header(in)
	if !ok {
		return 0
	}
	if size == 0 {
		s.violation("server message of type %q has an impossible length", typ)
		return 0
	}
	if len(in) < size && s.needsWhole(typ, size) {
		return 0
	}
	if typ == wire.ReadyForQuery && s.withholds(in[:size]) {
		return 0
	}
	if s.handleServerMessage(typ, in[:min(size, len(in))], out) {
		s.dropServer = false
		n := min(size, len(in))
		s.serverLeft = size - n
		out.pass(at, at+n)
		return n
	}
	n := min(size, len(in))
	s.serverLeft, s.dropServer = size-n, true
	return n
}

// needsWhole reports whether a message must be complete to be handled. Bulk data need not.
func (s *Session) needsWhole(typ byte, size int) bool {
	switch typ {
	case wire.ReadyForQuery, wire.ErrorResponse, wire.ParameterStatus, wire.CommandComplete, wire.BackendKeyData, wire.Authentication:
		return true
	case wire.DataRow:
		front := s.q.Front()
		return front != nil && !s.isClientResult(front)
	case wire.NoticeResponse:
		front := s.q.Front()
		return len(s.cfg.FollowsRows) > 0 && size <= maxSmall || front != nil && (front.Note.role != client || front.Note.woven != nil)
	}
	return false
}

// handleServerMessage handles a message of the server, and reports whether it passes
// unchanged. If not, out has the message for the client, if there is one.
func (s *Session) handleServerMessage(typ byte, msg []byte, out *Out) bool {
	switch typ {
	case wire.ReadyForQuery:
		return s.handleReady(msg)
	case wire.ErrorResponse:
		return s.handleError(msg, out)
	case wire.ParameterStatus:
		s.noteParameter(msg)
		return true
	case wire.Authentication:
		if s.login.authenticated && wire.AuthKind(msg) != wire.AuthOk {
			s.violation("the server asks the client for a password behind its login")
			return false
		}
		s.login.awaitsPassword = needsPassword(msg)
		return true
	case wire.BackendKeyData:
		s.key = string(msg[wire.HeaderSize:])
		return true
	case wire.NoticeResponse:
		return s.notice(msg, out)
	case wire.ParseComplete:
		return s.parseComplete()
	case wire.BindComplete:
		if e := s.q.Expect(ledger.Bind); e != nil {
			resolveName(&e.Note, true)
		}
		return s.popAnswered(ledger.Bind)
	case wire.CloseComplete:
		dropName(s.q.Expect(ledger.Close))
		return s.popAnswered(ledger.Close)
	case wire.NoData:
		return s.popAnswered(ledger.Describe)
	case wire.RowDescription:
		if e := s.q.Expect(ledger.Describe, ledger.Query); e != nil && e.Kind == ledger.Query {
			return s.isClientResult(e)
		}
		return s.popAnswered(ledger.Describe)
	case wire.DataRow:
		return s.handleRow(msg)
	case wire.CommandComplete:
		s.handleCommandTag(msg[wire.HeaderSize:])
		s.q.EndCopyIn()
		return s.finishResult()
	case wire.EmptyQueryResponse:
		return s.finishResult()
	case wire.PortalSuspended:
		return s.popAnswered(ledger.Execute)
	case wire.CopyInResponse:
		s.q.BeginCopyIn()
	case wire.CopyBothResponse:
		s.streaming = true
	}
	return true
}

// popAnswered removes the entry that a message answers completely, and reports whether the
// message passes.
func (s *Session) popAnswered(kind ledger.Kind) bool {
	e := s.q.Expect(kind)
	if e == nil {
		return s.handleUnexpected()
	}
	passes := e.Note.role == client
	s.q.Pop()
	return passes
}

// handleUnexpected handles an answer that matches no entry. If the front entry is the
// proxy's own, the answer may be the proxy's or the client's, so the session ends;
// otherwise it is the client's.
func (s *Session) handleUnexpected() bool {
	if front := s.q.Front(); front != nil && (front.Note.role != client || front.Note.woven != nil) {
		s.violation("the server's answers don't match what it was asked")
		return false
	}
	return true
}

func (s *Session) parseComplete() bool {
	e := s.q.Expect(ledger.Parse)
	if e == nil {
		return s.handleUnexpected()
	}
	switch e.Note.role {
	case client:
		resolveName(&e.Note, true)
	case oursFull, oursMissing, oursReadOnly, oursHolding:
		kind := e.Note.role - oursFull
		s.check.sent[kind]--
		s.check.ready[kind] = s.check.sent[kind] == 0
	}
	return s.popAnswered(ledger.Parse)
}

// resolveName records the outcome of a message that gives a name.
func resolveName(n *note, succeeded bool) {
	if n.gives != nil {
		n.gives.Answered(n.name, succeeded)
		n.gives = nil
	}
}

// dropName records that the server has dropped the name in a message.
func dropName(e *ledger.Entry[note]) {
	if e != nil && e.Note.drops != nil {
		e.Note.drops.Closed(e.Note.name)
	}
}

// isClientResult reports whether the current result of an entry is the client's.
func (s *Session) isClientResult(e *ledger.Entry[note]) bool {
	return e.Note.role == client && (e.Note.woven == nil || !e.Note.woven.Ours())
}

// handleRow handles a DataRow. Most messages are DataRows, so the first case must be fast.
func (s *Session) handleRow(msg []byte) bool {
	e := s.q.Front()
	if e == nil || s.isClientResult(e) {
		return true
	}
	switch e.Note.role {
	case client, oursCheck:
		s.finishCheckSample(&e.Note)
		v, keys := s.readVerdict(msg)
		s.noteNone(v, e.Note.behindReset)
		s.tx.Judged = s.tx.Judged || v != none && v != unfenced && s.hasSchema()
		if e.Note.takesHold {
			e.Note.takesHold = false
			if v == none && s.cfg.required() {
				s.noteReadOnly()
			}
			s.noteHeld(v, keys)
		}
	case ours: // what it set
	default:
		s.handleExchangeRow(e.Note.role, msg)
	}
	return false
}

// handleCommandTag handles the tag of a CommandComplete.
func (s *Session) handleCommandTag(tag []byte) {
	name := string(bytes.TrimRight(tag, "\x00"))
	switch {
	case !s.tracked:
	case name == "RESET":
		s.guarded.lost = true
	case name == "DISCARD ALL" || name == "DEALLOCATE ALL":
		s.guarded.lost = true
		s.check.ready = [kinds]bool{}
		s.names.prepared.Cleared()
		if name == "DISCARD ALL" && s.hold.state == policy.Doubtful {
			s.hold.change(policy.GivesBack) // it has released all advisory locks
		}
	case name == "DEALLOCATE":
		dropName(s.q.Front())
	}
	if s.tx.shadowReadOnly && writes(name) {
		s.reportRefusal(verdictOf(s.noFence(), true), s.answeredTrace())
		s.tx.shadowReadOnly = false
	}
}

// writes reports whether a command's tag is one that a READ ONLY transaction would
// have refused.
func writes(tag string) bool {
	verb, rest, _ := strings.Cut(tag, " ")
	switch verb {
	case "SELECT", "FETCH", "MOVE", "BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET", "RESET", "SHOW",
		"EXPLAIN", "DECLARE", "CLOSE", "PREPARE", "DEALLOCATE", "DISCARD", "LISTEN", "UNLISTEN", "NOTIFY", "LOCK", "LOAD", "ANALYZE", "CHECKPOINT":
		return false
	}
	return rest != "0" && rest != "0 0" // rows
}

// finishResult handles the end of one result, of a statement in a Query or of an Execute.
func (s *Session) finishResult() bool {
	e := s.q.Expect(ledger.Execute, ledger.Query)
	if e == nil {
		return s.handleUnexpected()
	}
	passes := s.isClientResult(e)
	if e.Kind == ledger.Query {
		if e.Note.woven != nil {
			e.Note.woven.NextResult()
		}
		return passes
	}
	s.q.Pop()
	return passes
}

// handleReady handles a ReadyForQuery.
func (s *Session) handleReady(msg []byte) bool {
	if len(msg) != 6 {
		s.violation("ReadyForQuery has a wrong length")
		return false
	}
	s.tx.status = msg[5]
	s.streaming = false
	s.readyCount++
	if s.phase == loggingIn {
		return s.beginServing()
	}
	e, ok := s.q.TakeReady()
	if !ok {
		return true
	}
	if e.Note.role != asksHold {
		s.hold.change(policy.AskFails) // if it still asks, the group that asked has failed
	}
	// What failed may be ahead of what was to end the transaction.
	s.tx.localSet = s.tx.localSet || s.tx.localWasSet && s.tx.status == wire.Failed
	if s.tx.status == wire.Idle {
		s.activity++
		s.transactions++
		s.names.portals.Cleared()
		s.tx.madeReadOnly, s.tx.shadowReadOnly, s.tx.Guarded = false, false, false
		if s.quiet() {
			s.tx = openTransaction{status: wire.Idle}
			s.variable.reset = s.variable.resets
		}
	}
	if e.Note.groupSample {
		s.finishGroupSample()
	}
	if s.q.Ready() == 0 && s.batch.Open && s.batch.Block == policy.BlockUnknown {
		s.batch.Block = s.block() // where the batch has begun
	}
	if s.q.Ready() == 0 && !s.batch.Open {
		s.check.doubt, s.check.sent = false, [kinds]int{}
		s.timing.group.open, s.timing.check.open = false, false // their answers were skipped
	}
	s.recycle(e.Note.woven)
	if e.Note.role != client {
		passes := s.finishExchange(e.Note.role)
		s.giveBackAtOnce()
		return passes
	}
	s.giveBackAtOnce()
	if e.Kind == ledger.Query {
		if e.Note.trace != nil {
			s.spareTrace = e.Note.trace
		}
		s.names.prepared.Closed("") // a simple query drops the unnamed statement
	}
	return true
}
