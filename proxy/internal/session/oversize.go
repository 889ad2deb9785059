package session

import (
	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A text above MaxStatement is neither buffered nor read. In a session that may carry a
// fence it is refused. In any other session the proxy forwards it in parts, and searches
// them: at a word that may carry a fence or set one it closes the connections, so the server
// never gets the message's end and runs nothing of it.

// heldBackTail is how many bytes are held back until the whole text has been searched:
// enough for a word that is cut in two.
const heldBackTail = 64

// beginOver handles the head of a Query or Parse above MaxStatement.
func (s *Session) beginOver(typ byte, size int, in []byte, at int, out *Out) int {
	s.tracing = nil
	m := policy.Message{Kind: policy.Query}
	var name []byte
	if typ == wire.Parse {
		m.Kind = policy.Parse
		var ok bool
		if name, _, ok = wire.CString(in[wire.HeaderSize:]); !ok {
			if name = in[wire.HeaderSize:]; len(name) <= heldBackTail && len(in) < size {
				return 0
			}
		}
	}
	if !s.unfenced() || s.pooled {
		a := policy.Action{Do: policy.Refuse, Refusal: policy.Refusal{State: fence.CannotBeFenced, Reason: policy.TooLarge}}
		s.shadows(&a, nil, &m)
		switch {
		case a.Do != policy.Refuse:
		case typ == wire.Query:
			return s.refuseUnread(&a, &m, size, len(in), out)
		default:
			s.openBatch()
			s.refuseBatch(&a, nil, &m, out)
			return s.drop(size, len(in))
		}
	}
	// What it leaves behind isn't known.
	s.check.doubt = true
	s.names.left |= sqltext.Unlocks
	s.noteRenames(&sqltext.Statement{}, nil, "")
	if typ == wire.Query {
		s.pushQuery(underNothing)
	} else {
		s.openBatch()
		s.noteParse(name, statement{text: sqltext.Statement{Class: sqltext.Alone, Flags: sqltext.Unlocks}})
	}
	s.overLeft = size - wire.HeaderSize
	out.pass(at, at+wire.HeaderSize)
	return wire.HeaderSize
}

// streamOver handles the next part of an over-long text.
func (s *Session) streamOver(in []byte, at int, out *Out) int {
	n := min(s.overLeft, len(in))
	if sqltext.MayCarry(in[:n]) {
		if s.cfg.Mode != Shadow {
			s.End(*s.tooLarge())
			return 0
		}
		if !s.variableMayCarry {
			s.reportShadow(s.tooLarge())
		}
		s.variableMayCarry = true
	}
	if n < s.overLeft {
		n -= heldBackTail
	}
	if n <= 0 {
		return 0
	}
	s.overLeft -= n
	out.pass(at, at+n)
	return n
}
