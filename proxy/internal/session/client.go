package session

import (
	"bytes"
	"fmt"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// maxSmall is the largest size in bytes that PostgreSQL accepts for messages with a name
// only: PQ_SMALL_MESSAGE_LIMIT, and the type's byte, which that doesn't count.
const maxSmall = 10000 + 1

// A client may send maxOutstanding messages ahead of their answers; then it waits until
// at most resumeAt are outstanding. That always happens without a Flush: PostgreSQL
// buffers at most 8 KiB of answers, each of at least 5 bytes.
const (
	maxOutstanding = 4096
	resumeAt       = 3072
)

// FromClient handles bytes of the client and puts the bytes for the server into out. It
// returns how many bytes it has used. The caller passes the rest, the beginning of a
// message, again: with more bytes, or, if InputWaits, after the server's replies.
func (s *Session) FromClient(in []byte, out *Out) int {
	out.reset(in)
	s.at = s.cfg.Clock()
	s.inputWaits, s.queueFull = false, false
	if s.unconfirmed() {
		return 0
	}
	s.flushToServer(out)
	at := 0
	for at < len(in) && s.fatal == nil && !s.terminated {
		n := s.fromClient(in[at:], at, out)
		if n == 0 {
			break
		}
		at += n
		s.flushToServer(out)
	}
	return at
}

// flushToServer puts the bytes in s.toServer into out unless a message is half sent. They
// go ahead of the client's next message, which may have to wait for their answer.
func (s *Session) flushToServer(out *Out) {
	if len(s.toServer) > 0 && s.atMessageStart() {
		out.insert(s.toServer)
		s.toServer = s.toServer[:0]
	}
}

// atMessageStart reports whether the client's next byte begins a message.
func (in *input) atMessageStart() bool {
	return in.passLeft == 0 && in.dropLeft == 0
}

// quiet reports whether nothing is outstanding and no batch is open.
func (s *Session) quiet() bool { return s.q.Len() == 0 && !s.batch.Open && !s.skipping }

// fromClient handles one message, or a part of one, at offset at of the input.
// It returns the bytes used; 0 asks for more, or for replies.
func (s *Session) fromClient(in []byte, at int, out *Out) int {
	switch {
	case s.passLeft > 0:
		n := min(s.passLeft, len(in))
		s.passLeft -= n
		if s.readOn(in[:n]); s.fatal != nil {
			return 0
		}
		out.pass(at, at+n)
		return n
	case s.dropLeft > 0:
		n := min(s.dropLeft, len(in))
		s.dropLeft -= n
		s.refuseDropped(out)
		return n
	}
	typ, size, ok := wire.Header(in)
	if !ok {
		return 0
	}
	if size == 0 {
		s.violation("message of type %q has an impossible length", typ)
		return 0
	}
	if s.phase != serving && typ != wire.Password && typ != wire.Terminate {
		if s.login.awaitsPassword {
			// Don't buffer the bytes of a client that isn't authenticated.
			s.End(wire.Error{Code: "08P01", Message: fmt.Sprintf("expected password response, got message type %d", typ)})
			return 0
		}
		return s.wait()
	}
	if s.phase == loggingIn {
		s.login.awaitsPassword = false
	}
	if s.skipping && (isRequest(typ) || typ == wire.Flush) {
		return s.drop(size, len(in)) // the server would discard it without an answer
	}
	if s.waitsForRoom(typ) {
		return 0
	}
	if s.waitsForPooler(typ) {
		return s.wait()
	}
	used := s.handleMessage(typ, size, in, at, out)
	if used > 0 && !s.batch.Open {
		s.exchange.awaited = false
	}
	return used
}

// waitsForRoom reports whether a message must wait until the queue is shorter.
func (s *Session) waitsForRoom(typ byte) bool {
	if s.q.Len() < maxOutstanding || !isRequest(typ) && typ != wire.Sync {
		return false
	}
	if s.q.CopyIn() {
		// The server answers none of these, so the queue would only grow.
		s.violation("more than %d messages other than copy data in a COPY", maxOutstanding)
		return true
	}
	s.inputWaits, s.queueFull = true, true
	return true
}

// waitsForPooler reports whether a message would begin a batch while a ReadyForQuery is
// outstanding behind a pooler. PgBouncer 1.18 doesn't count a batch before its Sync: at the
// ReadyForQuery it would give the server connection to another client, with the beginning
// of the batch on it. Since a later message of the batch may have to wait, the proxy can't
// send each batch in one piece.
func (s *Session) waitsForPooler(typ byte) bool {
	begins := isRequest(typ) && typ != wire.Query && typ != wire.FunctionCall && !s.batch.Open
	return s.pooled && begins && s.q.Ready() > 0 && !s.q.CopyIn()
}

// handleMessage handles a message by its type.
func (s *Session) handleMessage(typ byte, size int, in []byte, at int, out *Out) int {
	switch {
	case typ == wire.Terminate:
		return s.terminate(size, in, at, out)
	case s.phase != serving || !isRequest(typ):
		return s.forwardUnjudged(typ, size, len(in), at, out)
	case !s.tracked:
		return s.untracked(typ, size, len(in), at, out)
	}
	if s.guardedDue() {
		switch {
		case s.atBoundary():
			s.setGuarded(out)
		case s.tx.status == wire.Idle && !s.batch.Open && s.q.Ready() > 0 && !s.q.CopyIn():
			return s.wait()
		}
	}
	s.activity++
	switch typ {
	case wire.Query, wire.Parse:
		if size > s.cfg.MaxStatement {
			return s.overlong(in, size, at, out)
		}
		if len(in) < size {
			return 0
		}
		if typ == wire.Query {
			return s.query(in[:size], at, out)
		}
		return s.parse(in[:size], at, out)
	case wire.Bind:
		return s.bind(in, size, at, out)
	case wire.FunctionCall:
		return s.functionCall(in, size, at, out)
	}
	if size > maxSmall {
		return s.pass(size, len(in), at, out) // PostgreSQL ends the session
	}
	if len(in) < size {
		return 0
	}
	switch typ {
	case wire.Execute:
		return s.execute(in[:size], at, out)
	case wire.Describe:
		return s.describe(in[:size], at, out)
	}
	return s.closeName(in[:size], at, out)
}

// isRequest reports whether a message asks PostgreSQL to do something.
func isRequest(typ byte) bool {
	switch typ {
	case wire.Query, wire.Parse, wire.Bind, wire.Execute, wire.Describe, wire.Close, wire.FunctionCall:
		return true
	}
	return false
}

// forwardUnjudged forwards the messages that policy doesn't decide on.
func (s *Session) forwardUnjudged(typ byte, size, have, at int, out *Out) int {
	switch typ {
	case wire.Sync:
		s.skipping = false
		s.batch.Open = false
		s.tx.Guarded = s.tx.Guarded && s.batch.Block == policy.InBlock
		s.batch.id++ // the server runs the next batch even if this one has failed
		s.tally[s.batch.under]++
		s.q.Push(ledger.Sync).Note.groupSample = s.batch.timed
		s.batch.under, s.batch.timed = uncounted, false
	case wire.CopyData:
		s.q.MarkCopyData()
	case wire.CopyDone, wire.CopyFail:
		s.q.MarkCopyDone()
	}
	return s.pass(size, have, at, out)
}

// terminate handles a Terminate. It should have no body; PostgreSQL reads the body of one
// that has, so the session must not end before the whole message has come.
func (s *Session) terminate(size int, in []byte, at int, out *Out) int {
	if size > maxSmall {
		s.violation("a Terminate of %d bytes", size)
		return 0
	}
	if len(in) < size {
		return 0
	}
	if s.hold.state != policy.NoHold && s.atBoundary() {
		// A pooler may keep the server connection, and the hold with it.
		out.insert(s.appendGiveBack(nil))
	}
	s.terminated = true
	return s.pass(size, size, at, out)
}

// pass forwards the message at offset at, with the bytes that have not come yet.
func (s *Session) pass(size, have, at int, out *Out) int {
	n := min(size, have)
	s.passLeft = size - n
	out.pass(at, at+n)
	return n
}

// drop discards the message, with the bytes that have not come yet.
func (in *input) drop(size, have int) int {
	n := min(size, have)
	in.dropLeft = size - n
	return n
}

// wait leaves the message in the input until replies have come.
func (in *input) wait() int {
	in.inputWaits = true
	return 0
}

// untracked forwards a message of an untracked session. The queue gets an entry all the
// same: it tells when the session is idle.
func (s *Session) untracked(typ byte, size, have, at int, out *Out) int {
	switch typ {
	case wire.Query, wire.FunctionCall:
		s.tally[underNothing]++
	case wire.Execute:
		s.batch.under = underNothing
	}
	s.q.Push(ledger.Kind(typ))
	return s.pass(size, have, at, out)
}

// text returns the NUL-terminated text of a Query. ok is false if the message is
// malformed, which PostgreSQL refuses.
func text(body []byte) ([]byte, bool) {
	n := bytes.IndexByte(body, 0)
	if n < 0 || n != len(body)-1 {
		return nil, false
	}
	return body[:n], true
}
