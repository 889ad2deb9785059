package session

import (
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// oversize is a text that is too large to be held and read. In a session that
// carries no fence it streams through, searched on the way. Should it mention
// something that could be a fence, the rest of it is replaced by zeros: PostgreSQL
// takes a text with bytes behind its NUL for an invalid message, runs nothing of it
// and goes on with the next; its error is replaced by ours.
type oversize struct {
	left   int // bytes still to come
	poison bool
	entry  *ledger.Entry[note] // valid until the next Push, which only the end of the text allows
}

// tail is how many bytes are held back until the whole text has been searched:
// enough for a mention that is cut in two, and for zeros that can't be taken
// for the rest of a well-formed Parse.
const tail = 64

// large stands for a text that nobody has read. What could be a fence in it has been
// searched for.
var large = statement{text: sqltext.Statement{Class: sqltext.Alone, Flags: sqltext.Unlocks}}

// beginOver handles the head of a Query or Parse above MaxStatement.
func (s *Session) beginOver(typ byte, size int, in []byte, at int, out *Out) int {
	s.tracing = nil
	kind := ledger.Query
	var name []byte
	if typ == wire.Parse {
		kind = ledger.Parse
		var ok bool
		if name, _, ok = wire.CString(in[wire.HeaderSize:]); !ok {
			if name = in[wire.HeaderSize:]; len(name) <= tail && len(in) < size {
				return 0
			}
		}
	}
	if s.hold.state != policy.NoHold && s.q.Ready() > 0 && !s.q.CopyIn() {
		return s.wait()
	}
	if s.hold.state != policy.NoHold && s.quiet() && s.tx == wire.Idle {
		s.exchangeFor(policy.Action{Do: policy.GiveBack}, out)
	}
	if s.mayCarry() || s.cfg.required() || s.namedFence || s.hold.state != policy.NoHold {
		if e := s.tooLarge(); !s.shadowed(e) {
			if kind == ledger.Query {
				s.batch.Open = false
				s.refuseQuery(e, out)
			} else {
				s.openBatch()
				s.refuseBatch(e, out)
			}
			n := min(size, len(in))
			s.drop = size - n
			return n
		}
	}
	// Nobody reads what it does: what matters later counts as done.
	s.check.doubt = true
	s.uncount()
	s.stored |= sqltext.Unlocks
	s.renames(&sqltext.Statement{}, nil)
	if kind == ledger.Query {
		s.batch.Open = false
		s.tally[underNothing]++
	} else {
		s.openBatch()
		s.touches(name)
		s.prepared.Sent(name, s.batch.id, large)
	}
	e := s.q.Push(kind)
	e.Note.gives, e.Note.name = kind == ledger.Parse, string(name)
	s.over = oversize{left: size - wire.HeaderSize, entry: e}
	out.pass(at, at+wire.HeaderSize)
	return wire.HeaderSize
}

// streamOver handles the next part of an oversize text.
func (s *Session) streamOver(in []byte, at int, out *Out) int {
	have := min(s.over.left, len(in))
	last := have == s.over.left
	if !s.over.poison && sqltext.MayCarry(in[:have]) {
		if e := s.tooLarge(); s.shadowed(e) {
			s.armed = true
		} else {
			s.over.poison, s.over.entry.Note.refusal = true, e
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
