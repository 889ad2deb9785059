package session

import (
	"bytes"
	"fmt"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// maxSmall is the largest size in bytes that PostgreSQL accepts for the
// messages that carry but a name (PQ_SMALL_MESSAGE_LIMIT).
const maxSmall = 10000

// A client may send this many messages ahead of their answers; then it waits until
// no more than resumeAt are outstanding. PostgreSQL keeps back 8 KiB of answers at
// most, of at least 5 bytes each, so it always gets there.
const (
	maxOutstanding = 4096
	resumeAt       = 3072
)

// FromClient takes bytes that the client sent and puts into out what is to be
// sent to the server. It returns how many bytes it has used. The rest is the
// beginning of a message: it must come again, with more behind it, or, where
// Held reports true, after the replies it waits for.
func (s *Session) FromClient(in []byte, out *Out) int {
	out.reset(in)
	s.held, s.full = false, false
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

// putToward sends what FromServer or Tick made as soon as no message is half sent:
// what the client sends next may have to wait for its answer.
func (s *Session) putToward(out *Out) {
	if len(s.toward) > 0 && s.between() {
		out.insert(s.toward)
		s.toward = s.toward[:0]
	}
}

// between reports whether the client's next byte begins a message.
func (s *Session) between() bool { return s.skip == 0 && s.drop == 0 && s.over.left == 0 }

// quiet reports whether nothing is outstanding and no batch is open.
func (s *Session) quiet() bool { return s.q.Len() == 0 && !s.batch.Open && !s.skipping }

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
		return s.wait()
	}
	if s.phase == login {
		s.password = false
	}
	if s.skipping && (asks(typ) || typ == wire.Flush) {
		// The server would discard it without an answer: so do we.
		n := min(size, len(in))
		s.drop = size - n
		return n
	}
	if s.crowded(typ) {
		return 0
	}
	return s.message(typ, size, in, at, out)
}

// crowded reports whether a message must wait for room in the queue.
func (s *Session) crowded(typ byte) bool {
	if s.q.Len() < maxOutstanding || !asks(typ) && typ != wire.Sync {
		return false
	}
	if s.q.CopyIn() {
		// No answer is due to what is sent now, so the queue would grow for ever.
		s.violation("more than %d messages other than copy data in a COPY", maxOutstanding)
		return true
	}
	s.held, s.full = true, true
	return true
}

// message handles a message by its type.
func (s *Session) message(typ byte, size int, in []byte, at int, out *Out) int {
	switch {
	case typ == wire.Terminate:
		return s.terminate(size, in, at, out)
	case s.phase != serving || !asks(typ):
		return s.plain(typ, size, len(in), at, out)
	case !s.tracked:
		return s.untracked(typ, size, len(in), at, out)
	}
	s.activity++
	switch typ {
	case wire.Query, wire.Parse:
		if size > s.cfg.MaxStatement {
			return s.beginOver(typ, size, in, at, out)
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
	return s.closes(in[:size], at, out)
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
		s.skipping = false
		s.batch.Open = false
		s.batch.id++ // what follows comes even if something in this batch has failed
		s.tally[s.batch.under]++
		s.q.Push(ledger.Sync).Note.timed = s.batch.timed
		s.batch.under, s.batch.timed = uncounted, false
	case wire.CopyData:
		s.q.MarkCopyData()
	case wire.CopyDone, wire.CopyFail:
		s.q.MarkCopyDone()
	}
	return s.pass(size, have, at, out)
}

// terminate handles a Terminate, which has no body: PostgreSQL reads the rest of
// one that says it has, and so the session must not end before that is there.
func (s *Session) terminate(size int, in []byte, at int, out *Out) int {
	if size > maxSmall {
		s.violation("a Terminate of %d bytes", size)
		return 0
	}
	if len(in) < size {
		return 0
	}
	s.done = true
	return s.pass(size, size, at, out)
}

// pass lets the message at offset at through, as much of it as is there.
func (s *Session) pass(size, have, at int, out *Out) int {
	n := min(size, have)
	s.skip = size - n
	out.pass(at, at+n)
	return n
}

// wait leaves the message where it is until replies have come.
func (s *Session) wait() int {
	s.held = true
	return 0
}

// untracked forwards a message of a session whose statements nobody judges. The
// queue is kept all the same: it tells when the session is idle.
func (s *Session) untracked(typ byte, size, have, at int, out *Out) int {
	switch typ {
	case wire.Query, wire.FunctionCall:
		s.tally[underNothing]++
	case wire.Execute:
		s.batch.under = underNothing
	}
	s.q.Push(kindOf(typ))
	return s.pass(size, have, at, out)
}

// kindOf is the queue's kind of a message that asks.
func kindOf(typ byte) ledger.Kind {
	switch typ {
	case wire.Query:
		return ledger.Query
	case wire.FunctionCall:
		return ledger.FunctionCall
	case wire.Parse:
		return ledger.Parse
	case wire.Bind:
		return ledger.Bind
	case wire.Describe:
		return ledger.Describe
	case wire.Execute:
		return ledger.Execute
	}
	return ledger.Close
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
