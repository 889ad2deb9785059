package session

import (
	"bytes"
	"fmt"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// maxSmall is the largest size in bytes that PostgreSQL accepts for the
// messages that carry but a name (PQ_SMALL_MESSAGE_LIMIT).
const maxSmall = 10000

// FromClient takes bytes that the client sent and puts into out what is to be
// sent to the server. It returns how many bytes it has used. The rest is the
// beginning of a message: it must come again, with more behind it, or, where
// Held reports true, after the replies it waits for.
func (s *Session) FromClient(in []byte, out *Out) int {
	out.reset(in)
	s.held = false
	s.putToward(out)
	at := 0
	for at < len(in) && s.farewell == nil && !s.done {
		n := s.fromClient(in[at:], at, out)
		if n == 0 {
			break
		}
		at += n
		s.putToward(out)
	}
	return at
}

// putToward sends what FromServer made as soon as no message is half sent: what
// the client sends next may have to wait for its answer.
func (s *Session) putToward(out *Out) {
	if len(s.toward) > 0 && s.between() {
		out.insert(s.toward)
		s.toward = s.toward[:0]
	}
}

// between reports whether the client's next byte begins a message.
func (s *Session) between() bool { return s.skip == 0 && s.drop == 0 && s.over.left == 0 }

// fromClient handles one message, or a part of one, at offset at of the input.
// It returns the bytes used; 0 asks for more, or for replies.
func (s *Session) fromClient(in []byte, at int, out *Out) int {
	switch {
	case s.skip > 0:
		n := min(s.skip, len(in))
		s.skip -= n
		out.pass(at, at+n)
		return n
	case s.drop > 0:
		n := min(s.drop, len(in))
		s.drop -= n
		return n
	case s.over.left > 0:
		return s.streamOver(in, at, out)
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
		if s.password {
			// To wait for more would be to keep whatever a stranger sends.
			s.End(wire.Error{Code: "08P01", Message: fmt.Sprintf("expected password response, got message type %d", typ)})
			return 0
		}
		return s.hold()
	}
	if s.phase == login {
		s.password = false
	}
	if s.drained && (asks(typ) || typ == wire.Sync) {
		if s.q.Len() > 0 {
			return s.hold() // its ReadyForQuery would overtake the one that is due
		}
		s.drained = false
	}
	if s.skipping && (asks(typ) || typ == wire.Flush) {
		// The server would discard it without an answer: so do we.
		n := min(size, len(in))
		s.drop = size - n
		return n
	}
	if !s.tracked {
		return s.untracked(typ, size, len(in), at, out)
	}
	return s.judged(typ, size, in, at, out)
}

// judged handles a message of a session whose statements are judged.
func (s *Session) judged(typ byte, size int, in []byte, at int, out *Out) int {
	if (typ == wire.Query || typ == wire.FunctionCall) && s.batch.open && s.batch.opened {
		// Only a Sync can end the block around a CALL or DO, whether it failed or not. Nor
		// does a COMMIT of the client's that may never have run.
		s.End(*s.refusal(fence.CannotBeFenced, "a CALL or DO before a simple query in the same batch"))
		return 0
	}
	switch typ {
	case wire.Query, wire.Parse:
		if size > s.cfg.MaxStatement {
			return s.beginOver(typ, size, in, at, out)
		}
		if len(in) < size {
			return 0
		}
		if s.mustWait() {
			return s.hold()
		}
		if typ == wire.Query {
			return s.query(in[:size], at, out)
		}
		return s.parse(in[:size], at, out)
	case wire.Bind:
		return s.bind(in, size, at, out)
	case wire.Execute, wire.Describe, wire.Close:
		if size > maxSmall {
			return s.pass(size, len(in), at, out) // PostgreSQL ends the session
		}
		if len(in) < size {
			return 0
		}
		if typ == wire.Execute {
			return s.execute(in[:size], at, out)
		}
		if s.openBatch(out) {
			return s.hold()
		}
		s.batch.fresh = false
		if typ == wire.Describe {
			s.q.Push(replies.Describe)
		} else {
			s.closing(in[:size])
		}
		return s.pass(size, size, at, out)
	case wire.FunctionCall:
		return s.functionCall(in, size, at, out)
	}
	return s.plain(typ, size, len(in), at, out)
}

// asks reports whether a message asks PostgreSQL to do something.
func asks(typ byte) bool {
	switch typ {
	case wire.Query, wire.Parse, wire.Bind, wire.Execute, wire.Describe, wire.Close, wire.FunctionCall:
		return true
	}
	return false
}

// plain handles the messages that are never judged.
func (s *Session) plain(typ byte, size, have, at int, out *Out) int {
	switch typ {
	case wire.Sync:
		s.sync(out)
	case wire.CopyData:
		s.q.MarkCopyData()
	case wire.CopyDone, wire.CopyFail:
		s.q.MarkCopyDone()
	case wire.Terminate:
		s.done = true
	}
	return s.pass(size, have, at, out)
}

// pass lets the message at offset at through, as much of it as is there.
func (s *Session) pass(size, have, at int, out *Out) int {
	n := min(size, have)
	s.skip = size - n
	out.pass(at, at+n)
	return n
}

// hold leaves the message where it is until replies have come.
func (s *Session) hold() int {
	s.held = true
	return 0
}

// untracked forwards a message of a session whose statements nobody judges. The
// queue is kept all the same: it tells when the session is idle.
func (s *Session) untracked(typ byte, size, have, at int, out *Out) int {
	switch typ {
	case wire.Query:
		if s.walsender {
			if n, refused := s.judgeWalsender(size, have, at, out); refused {
				return n
			}
		}
		s.q.Push(replies.Query)
	case wire.FunctionCall:
		s.q.Push(replies.FunctionCall)
	case wire.Sync:
		s.skipping = false
		s.q.Push(replies.Sync)
	case wire.Parse:
		s.q.Push(replies.Parse)
	case wire.Bind:
		s.q.Push(replies.Bind)
	case wire.Describe:
		s.q.Push(replies.Describe)
	case wire.Execute:
		s.q.Push(replies.Execute)
	case wire.Close:
		s.q.Push(replies.Close)
	case wire.CopyData:
		s.q.MarkCopyData()
	case wire.CopyDone, wire.CopyFail:
		s.q.MarkCopyDone()
	case wire.Terminate:
		s.done = true
	}
	return s.pass(size, have, at, out)
}

// mustWait reports whether a text can't be read yet: a setting that decides how
// it is to be read may be under way, or an unchecked cursor may run at a COMMIT,
// before which a check must only be put in a transaction that hasn't failed.
func (s *Session) mustWait() bool {
	return (s.lexPending || s.lexTx || s.dirty) && s.q.Ready() > 0 && !s.batch.open && !s.q.CopyIn()
}

// text returns the NUL-terminated text of a Query. ok is false where the
// message is not well formed: then PostgreSQL refuses it.
func text(body []byte) ([]byte, bool) {
	n := bytes.IndexByte(body, 0)
	if n < 0 || n != len(body)-1 {
		return nil, false
	}
	return body[:n], true
}
