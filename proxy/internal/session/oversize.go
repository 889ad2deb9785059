package session

import (
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// oversize is a text above MaxStatement, which isn't buffered and read. In a session
// without a fence the proxy forwards it in parts, and searches them. Once a part could be
// a fence, zeros replace the rest: PostgreSQL refuses a text with bytes behind its NUL as
// an invalid message, runs nothing of it and continues with the next message. The client
// gets the proxy's refusal instead of that error.
type oversize struct {
	left   int // bytes still to come
	poison bool
	entry  *ledger.Entry[note] // valid until the next Push, which only the end of the text allows
}

// heldBackTail is how many bytes are held back until the whole text has been searched:
// enough for a word that is cut in two, and for zeros that no Parse could end with.
const heldBackTail = 64

// unread is the meaning of an oversize text, which was searched for fences but not read.
var unread = statement{text: sqltext.Statement{Class: sqltext.Alone, Flags: sqltext.Unlocks}}

// beginOver handles the head of a Query or Parse above MaxStatement.
func (s *Session) beginOver(typ byte, size int, in []byte, at int, out *Out) int {
	s.tracing = nil
	kind := ledger.Query
	var name []byte
	if typ == wire.Parse {
		kind = ledger.Parse
		var ok bool
		if name, _, ok = wire.CString(in[wire.HeaderSize:]); !ok {
			if name = in[wire.HeaderSize:]; len(name) <= heldBackTail && len(in) < size {
				return 0
			}
		}
	}
	if s.hold.state != policy.NoHold && s.q.Ready() > 0 && !s.q.CopyIn() {
		return s.wait()
	}
	if s.hold.state != policy.NoHold && s.quiet() && s.txStatus == wire.Idle {
		s.exchangeFor(policy.Action{Do: policy.GiveBack}, out)
	}
	if s.mayCarry() || s.cfg.required() || s.namedFence || s.hold.state != policy.NoHold {
		if e := s.tooLarge(); !s.reportShadowed(e) {
			if kind == ledger.Query {
				s.batch.Open = false
				s.refuseQuery(e, out)
			} else {
				s.openBatch()
				s.refuseBatch(e, out)
			}
			n := min(size, len(in))
			s.dropLeft = size - n
			return n
		}
	}
	// The text isn't read, so it counts as having all effects.
	s.check.doubt = true
	s.doubtHold()
	s.storedFlags |= sqltext.Unlocks
	s.noteRenames(&sqltext.Statement{}, nil)
	if kind == ledger.Query {
		s.batch.Open = false
		s.tally[underNothing]++
	} else {
		s.openBatch()
		s.noteNameUse(name)
		s.prepared.Sent(name, s.batch.id, unread)
	}
	e := s.q.Push(kind)
	e.Note.givesName, e.Note.name = kind == ledger.Parse, string(name)
	s.over = oversize{left: size - wire.HeaderSize, entry: e}
	out.pass(at, at+wire.HeaderSize)
	return wire.HeaderSize
}

// streamOver handles the next part of an oversize text.
func (s *Session) streamOver(in []byte, at int, out *Out) int {
	have := min(s.over.left, len(in))
	last := have == s.over.left
	if !s.over.poison && sqltext.MayCarry(in[:have]) {
		if e := s.tooLarge(); s.reportShadowed(e) {
			s.variableMayCarry = true
		} else {
			s.over.poison, s.over.entry.Note.refusal = true, e
		}
	}
	n := have
	if !last {
		if n = have - heldBackTail; n <= 0 {
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
