package session

import (
	"bytes"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/weave"
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
	return used, len(s.toward) > 0 || s.held && (s.q.Ready() == 0 || s.q.CopyIn())
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
		return front != nil && front.Note.role != client || front != nil && front.Note.plan != nil && front.Note.plan.Ours()
	case wire.NoticeResponse:
		front := s.q.Front()
		return front != nil && (front.Note.role != client || front.Note.plan != nil)
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
		if e := s.q.Expect(replies.Bind); e != nil && e.Note.role == client && s.tracked {
			s.portals.done(e.Note.name)
		}
		return s.answered(replies.Bind)
	case wire.CloseComplete:
		return s.closeComplete()
	case wire.NoData:
		return s.answered(replies.Describe)
	case wire.RowDescription:
		if e := s.q.Expect(replies.Describe, replies.Query); e != nil && e.Kind == replies.Query {
			return s.passes(e)
		}
		return s.answered(replies.Describe)
	case wire.DataRow:
		return s.row(msg)
	case wire.CommandComplete:
		s.noticeTag(msg)
		s.q.EndCopyIn()
		return s.resultEnds(msg)
	case wire.EmptyQueryResponse:
		return s.resultEnds(nil)
	case wire.PortalSuspended:
		return s.answered(replies.Execute)
	case wire.CopyInResponse:
		s.q.BeginCopyIn()
	case wire.CopyBothResponse:
		s.streaming = true
	}
	return true
}

// answered takes out the entry that a message answers in full.
func (s *Session) answered(kind replies.Kind) bool {
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
	if front := s.q.Front(); front != nil && (front.Note.role != client || front.Note.plan != nil) {
		s.violation("the server's answers don't match what it was asked")
		return false
	}
	return true
}

func (s *Session) parseComplete() bool {
	e := s.q.Expect(replies.Parse)
	if e == nil {
		return s.unexpected()
	}
	switch e.Note.role {
	case client:
		if s.tracked {
			s.prepared.done(e.Note.name)
		}
	case oursParse, oursParseRead, oursParseBehind:
		s.check.ready[e.Note.role-oursParse] = true
	}
	return s.answered(replies.Parse)
}

func (s *Session) closeComplete() bool {
	e := s.q.Expect(replies.Close)
	if e != nil && e.Note.role == client {
		switch e.Note.closes {
		case 'S':
			s.prepared.closed(e.Note.name, e.Note.before)
		case 'P':
			s.portals.closed(e.Note.name, 0)
		}
	}
	return s.answered(replies.Close)
}

// passes reports whether the current result of an entry is the client's.
func (s *Session) passes(e *replies.Entry[note]) bool {
	return e.Note.role == client && (e.Note.plan == nil || !e.Note.plan.Ours())
}

// row handles a DataRow, the only message of which there are many.
func (s *Session) row(msg []byte) bool {
	e := s.q.Front()
	if e == nil || s.passes(e) {
		return true
	}
	switch e.Note.role {
	case probeVar, probeLogin:
		columns := wire.Columns(msg)
		if len(columns) > 0 {
			s.learn(columns[0], e.Note.epoch)
		}
		if e.Note.role == probeLogin && len(columns) > 1 {
			s.learnLogin(columns)
		}
	case probeInitial:
		value, _ := wire.FirstColumn(msg)
		s.learnInitial(value)
	case probeStamp, probeCatalog:
		text, _ := wire.FirstColumn(msg)
		s.answer = bytes.Clone(text)
	case client, oursCheck, fastBefore:
		s.observed(msg)
	}
	return false
}

// observed reports what would have been refused, by a check in shadow mode or for a
// resource that is: then the check itself has noted it in the history.
func (s *Session) observed(msg []byte) {
	verdict, null := wire.FirstColumn(msg)
	if null || len(verdict) == 0 {
		return
	}
	state, message, _ := strings.Cut(string(verdict), ": ")
	if s.cfg.Lease != nil && state == string(fence.TokenRequired) {
		state, message = string(fence.LeaseNotHeld), s.unheld().Message
	}
	s.events.Refused(Refusal{State: fence.SQLState(state), Message: message, Shadow: true, Noted: s.cfg.Mode == Enforce})
}

// resultEnds handles what ends one result: of a statement of a Query, or of an
// Execute; msg is its CommandComplete, or nil.
func (s *Session) resultEnds(msg []byte) bool {
	e := s.q.Expect(replies.Execute, replies.Query)
	if e == nil {
		return s.unexpected()
	}
	passes := s.passes(e)
	s.begun = s.begun || e.Note.role == client && opensBlock(msg)
	if e.Note.sql && e.Note.name != "" {
		s.prepared.closed(e.Note.name, e.Note.before)
	}
	if e.Note.outcome != nil {
		s.concluded(e.Note.outcome, msg)
	}
	switch {
	case e.Kind == replies.Query:
		if e.Note.plan != nil {
			e.Note.plan.NextResult()
		}
		if e.Note.role == fastAfter {
			return false
		}
		return passes
	case e.Note.role == probeStamp:
		s.inquiring = s.question.whole
		s.db.look(&s.question, s.answer)
	case e.Note.role == probeCatalog:
		s.inquiring = false
		if err := s.db.store(s.question, s.answer); err != nil {
			s.events.Trouble(err)
		}
		s.answer = nil
	}
	s.q.Pop()
	return passes
}

// opensBlock reports whether a CommandComplete is that of a BEGIN.
func opensBlock(msg []byte) bool {
	if len(msg) < wire.HeaderSize {
		return false
	}
	switch string(msg[wire.HeaderSize:]) {
	case "BEGIN\x00", "START TRANSACTION\x00":
		return true
	}
	return false
}

// ready handles a ReadyForQuery.
func (s *Session) ready(msg []byte) bool {
	if len(msg) != 6 {
		s.violation("ReadyForQuery has a wrong length")
		return false
	}
	status := msg[5]
	s.streaming = false
	if s.phase == login {
		s.tx = status
		return s.beginServing()
	}
	e, ok := s.q.TakeReady()
	s.tx = status
	if !ok {
		return true
	}
	switch {
	case status == wire.InTx:
		s.confirmed = e.Note.covered
	case status == wire.Failed && s.pool.on:
		s.confirmed = s.confirmed.Aborted(e.Note.covered)
	default:
		s.confirmed = weave.Coverage{}
	}
	if status == wire.Idle {
		s.conclude(!s.pool.erred)
		s.activity++
		s.transactions++
		s.portals.clear(0)
		s.dirty = s.dirty && (s.q.Ready() > 0 || s.batch.open)
		if s.inTx {
			s.inTx = false
			s.doubtVariable() // a rollback brings an earlier value back
		}
		if s.ddl {
			s.ddl = false
			s.catalogs.invalidate(s.database)
		}
	}
	if s.q.Ready() == 0 && !s.batch.open {
		s.lexPending, s.check.doubt = false, false
		s.lexTx = s.lexTx && status != wire.Idle
	}
	if e.Note.plan != nil {
		s.free(e.Note.plan)
		s.lexTx = s.lexTx && status != wire.Idle
	}
	switch e.Note.role {
	case oursEnd, probeVar:
		s.probing = false
		if s.phase == asking {
			return s.nextQuestion()
		}
		return false
	case fastBefore:
		return false
	case fastCall:
		s.commitFunctionCall()
		return false
	}
	begun := s.begun
	s.begun = false
	if e.Note.contain && status == wire.Failed && !begun {
		// The block that the proxy put around a CALL or DO has failed, before the client
		// has made it its own.
		s.toward = wire.AppendSync(s.appendCommand(s.toward, "ROLLBACK", ours))
		s.push(replies.Sync, client)
		return false
	}
	return true
}
