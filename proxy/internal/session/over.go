package session

import (
	"bytes"

	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/weave"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// oversize is a text that is too large to be held and scanned. In a session
// that carries no fence it streams through, searched on the way. Should it
// mention something that could be a fence, the rest of it is replaced by zeros:
// PostgreSQL takes a text with bytes behind its NUL for an invalid message,
// runs nothing of it and goes on with the next; its error is replaced by ours.
type oversize struct {
	left   int // bytes still to come
	poison bool
	// An EXECUTE may run a statement that carries a fence.
	executes bool
	// Names with escapes in them have been seen, and what escapes.
	unicode, escape bool
	entry           *replies.Entry[note] // valid until the next Push, which only the end of the text allows
}

// tail is how many bytes are held back until the whole text has been searched:
// enough for a mention that is cut in two, and for zeros that can't be taken
// for the rest of a well-formed Parse.
const tail = 64

// mayCarry reports whether a part of a text mentions what a fence is carried by.
func mayCarry(part []byte) bool {
	lower := bytes.ToLower(part)
	return bytes.Contains(lower, []byte("wirefence")) || bytes.Contains(lower, []byte("set_config"))
}

// mayCarry reports whether the text, of which this is the next part, may carry
// a fence, or may run what carries one.
func (o *oversize) mayCarry(part []byte) bool {
	lower := bytes.ToLower(part)
	o.unicode = o.unicode || bytes.Contains(lower, []byte(`u&"`))
	o.escape = o.escape || bytes.IndexByte(part, '\\') >= 0 || bytes.Contains(lower, []byte("uescape"))
	return mayCarry(part) || o.unicode && o.escape || o.executes && bytes.Contains(lower, []byte("execute"))
}

// beginOver handles the head of a Query or Parse above MaxStatement.
func (s *Session) beginOver(typ byte, size int, in []byte, at int, out *Out) int {
	kind := replies.Query
	var name []byte
	if typ == wire.Parse {
		kind = replies.Parse
		var ok bool
		if name, _, ok = wire.CString(in[wire.HeaderSize:]); !ok {
			if name = in[wire.HeaderSize:]; len(name) < maxName && len(in) < size {
				return 0
			}
		}
		if s.openBatch(out) {
			return s.hold()
		}
	} else {
		s.settle(out)
	}
	if s.cfg.Mode == Enforce && s.awaitVariable(out) {
		return s.holdBatch()
	}
	if s.carrier("").In(s.coveredNow()).Carries() || s.cfg.everyWrite {
		if !s.shadowed(s.tooLarge()) {
			if kind == replies.Query {
				s.refuseQuery(0, s.tooLarge(), out)
			} else {
				s.refuseBatch(s.tooLarge(), out)
			}
			n := min(size, len(in))
			s.drop = size - n
			return n
		}
	}
	if typ == wire.Query {
		s.batch.open = false
	}
	// Nobody reads what it does; what matters later counts as done.
	s.doubtVariable()
	s.check.doubt, s.lexPending, s.lexTx, s.dirty = true, true, true, true
	e := s.q.Push(kind)
	if s.pool.on {
		e.Note.covered = weave.Unseen()
	}
	if kind == replies.Parse {
		e.Note.name = string(name)
		s.touches(name)
		s.prepared.sent(name, s.batch.id, unseen) // what sets the variable by its words is refused
	}
	s.over = oversize{left: size - wire.HeaderSize, entry: e, executes: s.setterSQL || s.prepared.fenced()}
	out.pass(at, at+wire.HeaderSize)
	return wire.HeaderSize
}

// streamOver handles the next part of an oversize text.
func (s *Session) streamOver(in []byte, at int, out *Out) int {
	have := min(s.over.left, len(in))
	last := have == s.over.left
	if !s.over.poison && s.over.mayCarry(in[:have]) {
		s.over.poison = true
		if !s.shadowed(s.tooLarge()) {
			s.over.entry.Note.refusal = s.tooLarge()
		} else {
			s.over.poison = false
		}
	}
	n := have
	if !last {
		if n = have - tail; n <= 0 {
			return 0
		}
	}
	s.over.left -= n
	if s.over.poison {
		out.insert(make([]byte, n))
	} else {
		out.pass(at, at+n)
	}
	return n
}
