package session

import (
	"bytes"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// FromServer takes bytes that the server sent and puts into out what is to be
// sent to the client. It returns how many bytes it has used; the rest is the
// beginning of a message and must come again with more behind it. wake says
// that FromClient is to be called even if the client sends nothing: there are
// bytes for the server, or input that was held may go on.
func (s *Session) FromServer(in []byte, out *Out) (used int, wake bool) {
	out.reset(in)
	for used < len(in) && s.farewell == nil {
		n := s.fromServer(in[used:], used, out)
		if n == 0 {
			break
		}
		used += n
	}
	return used, len(s.toward) > 0 || s.held && s.mayGoOn()
}

// mayGoOn reports whether what the client's message waits for may have come.
func (s *Session) mayGoOn() bool {
	if s.full {
		return s.q.Len() <= resumeAt
	}
	return s.q.Ready() == 0 || s.q.CopyIn()
}

// fromServer handles one message, or a part of one, at offset at of the input.
func (s *Session) fromServer(in []byte, at int, out *Out) int {
	if s.skipBack > 0 {
		n := min(s.skipBack, len(in))
		s.skipBack -= n
		if !s.dropBack {
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
	if len(in) < size && s.wantsWhole(typ) {
		return 0
	}
	if s.judge(typ, in[:min(size, len(in))], out) {
		s.dropBack = false
		n := min(size, len(in))
		s.skipBack = size - n
		out.pass(at, at+n)
		return n
	}
	n := min(size, len(in))
	s.skipBack, s.dropBack = size-n, true
	return n
}

// wantsWhole reports whether a message must be complete to be judged. Bulk data
// never must.
func (s *Session) wantsWhole(typ byte) bool {
	switch typ {
	case wire.ReadyForQuery, wire.ErrorResponse, wire.ParameterStatus, wire.CommandComplete, wire.BackendKeyData, wire.Authentication:
		return true
	case wire.DataRow:
		front := s.q.Front()
		return front != nil && !s.passes(front)
	case wire.NoticeResponse:
		front := s.q.Front()
		return front != nil && (front.Note.role != client || front.Note.woven != nil)
	}
	return false
}

// judge takes a message in and reports whether it passes as it is. What goes to
// the client in its place has then been put into out.
func (s *Session) judge(typ byte, msg []byte, out *Out) bool {
	switch typ {
	case wire.ReadyForQuery:
		return s.ready(msg)
	case wire.ErrorResponse:
		return s.error(msg, out)
	case wire.ParameterStatus:
		s.parameter(msg)
		return true
	case wire.Authentication:
		if s.proved && wire.AuthKind(msg) != wire.AuthOk {
			s.violation("the server asks the client for a password behind its login")
			return false
		}
		s.password = needsPassword(msg)
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
			s.given(e, true)
		}
		return s.answered(ledger.Bind)
	case wire.CloseComplete:
		return s.closeComplete()
	case wire.NoData:
		return s.answered(ledger.Describe)
	case wire.RowDescription:
		if e := s.q.Expect(ledger.Describe, ledger.Query); e != nil && e.Kind == ledger.Query {
			return s.passes(e)
		}
		return s.answered(ledger.Describe)
	case wire.DataRow:
		return s.row(msg)
	case wire.CommandComplete:
		s.completed(msg[wire.HeaderSize:])
		s.q.EndCopyIn()
		return s.resultEnds()
	case wire.EmptyQueryResponse:
		return s.resultEnds()
	case wire.PortalSuspended:
		return s.answered(ledger.Execute)
	case wire.CopyInResponse:
		s.q.BeginCopyIn()
	case wire.CopyBothResponse:
		s.streaming = true
	}
	return true
}

// answered takes out the entry that a message answers in full.
func (s *Session) answered(kind ledger.Kind) bool {
	e := s.q.Expect(kind)
	if e == nil {
		return s.unexpected()
	}
	passes := e.Note.role == client
	s.q.Pop()
	return passes
}

// unexpected handles an answer to nothing that was asked. While answers to the
// proxy's own messages are outstanding it would be a guess which is which, so
// the session ends; else the message is the client's.
func (s *Session) unexpected() bool {
	if front := s.q.Front(); front != nil && (front.Note.role != client || front.Note.woven != nil) {
		s.violation("the server's answers don't match what it was asked")
		return false
	}
	return true
}

func (s *Session) parseComplete() bool {
	e := s.q.Expect(ledger.Parse)
	if e == nil {
		return s.unexpected()
	}
	switch e.Note.role {
	case client:
		s.given(e, true)
	case oursFull, oursMissing, oursReadOnly, oursHolding:
		kind := e.Note.role - oursFull
		s.check.sent[kind]--
		s.check.ready[kind] = s.check.sent[kind] == 0
	}
	return s.answered(ledger.Parse)
}

// given takes in the outcome of a message that gives a name.
func (s *Session) given(e *ledger.Entry[note], succeeded bool) {
	switch {
	case !e.Note.gives:
	case e.Kind == ledger.Parse:
		s.prepared.Answered(e.Note.name, succeeded)
	default:
		s.portals.Answered(e.Note.name, succeeded)
	}
}

func (s *Session) closeComplete() bool {
	e := s.q.Expect(ledger.Close)
	if e != nil && e.Note.role == client {
		switch e.Note.closes {
		case 'S':
			s.prepared.Closed(e.Note.name)
		case 'P':
			s.portals.Closed(e.Note.name)
		}
	}
	return s.answered(ledger.Close)
}

// passes reports whether the current result of an entry is the client's.
func (s *Session) passes(e *ledger.Entry[note]) bool {
	return e.Note.role == client && (e.Note.woven == nil || !e.Note.woven.Ours())
}

// row handles a DataRow, the only message of which there are many.
func (s *Session) row(msg []byte) bool {
	e := s.q.Front()
	if e == nil || s.passes(e) {
		return true
	}
	switch e.Note.role {
	case client, oursCheck:
		s.checkEnds(&e.Note)
		if e.Note.takes {
			e.Note.takes = false
			s.takenWithin(msg)
		}
		s.checked(msg)
	default:
		s.told(e.Note.role, msg)
	}
	return false
}

// carriesNone is what a check says of a transaction that it has made READ ONLY, or in
// shadow mode would have.
const carriesNone = "unfenced"

// checked takes in what a check says: nothing, that it carries no fence, or in
// shadow mode, or of a resource that is, what would have been refused.
func (s *Session) checked(msg []byte) {
	verdict, null := wire.FirstColumn(msg)
	switch {
	case null || len(verdict) == 0:
		return
	case string(verdict) == carriesNone || string(verdict) == "on": // the latter of other checks
		s.readOnly = s.cfg.Mode == Enforce && !s.standby
		s.unfenced = s.cfg.Mode == Shadow
		return
	}
	state, message, found := strings.Cut(string(verdict), ": ")
	if !found {
		return
	}
	s.refused(Refusal{State: fence.SQLState(state), Message: message, Shadow: true, Noted: s.cfg.Mode == Enforce}, s.answeredTrace())
}

// completed looks at the tag of a command.
func (s *Session) completed(tag []byte) {
	name := string(bytes.TrimRight(tag, "\x00"))
	if s.tracked && (name == "DISCARD ALL" || name == "DEALLOCATE ALL") {
		s.check.ready = [kinds]bool{}
		s.prepared.Cleared()
	}
	if s.unfenced && writes(name) {
		e := s.noFence()
		s.refused(Refusal{State: fence.SQLState(e.Code), Message: e.Message, Detail: e.Detail, Shadow: true}, s.answeredTrace())
		s.unfenced = false
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

// resultEnds handles what ends one result: of a statement of a Query, or of an
// Execute.
func (s *Session) resultEnds() bool {
	e := s.q.Expect(ledger.Execute, ledger.Query)
	if e == nil {
		return s.unexpected()
	}
	passes := s.passes(e)
	if e.Kind == ledger.Query {
		if e.Note.woven != nil {
			e.Note.woven.NextResult()
		}
		return passes
	}
	s.q.Pop()
	return passes
}

// ready handles a ReadyForQuery.
func (s *Session) ready(msg []byte) bool {
	if len(msg) != 6 {
		s.violation("ReadyForQuery has a wrong length")
		return false
	}
	s.tx = msg[5]
	s.streaming = false
	s.answers++
	if s.phase == login {
		return s.beginServing()
	}
	e, ok := s.q.TakeReady()
	if !ok {
		return true
	}
	if s.hold.state == policy.Taking && e.Note.role != takes {
		s.hold.state = policy.Doubtful // the group that asked for it has failed
	}
	if s.tx == wire.Idle {
		s.activity++
		s.transactions++
		s.portals.Cleared()
		s.readOnly, s.unfenced = false, false
		if s.quiet() {
			s.fenced, s.localSet = false, false
		}
	}
	if e.Note.timed {
		s.groupEnds()
	}
	if s.q.Ready() == 0 && !s.batch.Open {
		s.check.doubt, s.check.sent = false, [kinds]int{}
		s.timing.group.open, s.timing.check.open = false, false // their answers were skipped
	}
	s.free(e.Note.woven)
	if e.Note.role != client {
		return s.exchanged(e.Note.role)
	}
	switch e.Kind {
	case ledger.FunctionCall:
		s.callFailed = false
	case ledger.Query:
		if e.Note.trace != nil {
			s.spareTrace = e.Note.trace
		}
		s.prepared.Closed("") // a simple query drops the unnamed statement
	}
	return true
}
