package session

import (
	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A text above MaxStatement is not buffered. In a session that carries a fence it is refused; where
// only the session variable may carry one, the proxy asks first. In any other session it forwards the
// text in parts and reads them. At a fence in a comment it closes the connections, so the server never
// gets the message's end and runs nothing of it.

// oversize is the state of an over-long text.
type oversize struct {
	left   int // bytes that are still to be read
	text   sqltext.Stream
	parsed bool   // by a Parse, which gives it a name
	name   string // "" for the unnamed statement
}

// maxOverName is how long the name in the Parse of an over-long text may be, in bytes.
const maxOverName = 64

// beginOver handles the head of a Query or Parse above MaxStatement.
func (s *Session) beginOver(typ byte, size int, in []byte, at int, out *Out) int {
	s.tracing = nil
	s.forgetIdle()
	m := policy.Message{Kind: policy.Query}
	var name []byte
	head := wire.HeaderSize
	if typ == wire.Parse {
		m.Kind = policy.Parse
		var ok bool
		if name, _, ok = wire.CString(in[wire.HeaderSize:]); !ok {
			if name = in[wire.HeaderSize:]; len(name) <= maxOverName && len(in) < size {
				return 0
			}
		}
		head += min(len(name)+1, len(in)-wire.HeaderSize)
	}
	if s.onlySuspected() && s.answer == policy.NoAnswer && !s.batch.Open && !s.q.CopyIn() {
		if s.quiet() {
			s.exchangeFor(policy.Action{Do: policy.Ask, By: policy.Carrier{Variable: true}}, out)
		}
		return s.wait()
	}
	if !s.unfenced() && s.answer != policy.Empty {
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
	s.check.doubt = true // it may drop them
	if typ == wire.Query {
		s.answer = policy.NoAnswer
		s.pushQuery(underNothing)
	} else {
		s.openBatch()
		s.noteParse(name, statement{text: sqltext.Statement{Class: sqltext.Alone}})
	}
	s.oversize = oversize{left: size - head, text: sqltext.NewStream(s.options), parsed: typ == wire.Parse, name: string(name)}
	out.pass(at, at+head)
	return head
}

// onlySuspected reports whether nothing but the session variable can carry a fence.
func (s *Session) onlySuspected() bool {
	return s.mayCarry() && !s.login.fenced && !s.cfg.required() && !s.tx.judged && s.hold.state == policy.NoHold && s.cfg.Mode == Enforce
}

// streamOver handles the next part of an over-long text. Its last byte is not forwarded before
// all of it was read.
func (s *Session) streamOver(in []byte, at int, out *Out) int {
	n := min(s.oversize.left, len(in))
	if s.oversize.text.Read(in[:n]) {
		if s.cfg.Mode != Shadow {
			s.End(*s.tooLarge())
			return 0
		}
		s.reportShadow(s.tooLarge())
		s.oversize.text = sqltext.NewStream(s.options)
	}
	s.oversize.left -= n
	if s.oversize.text.Named() {
		if st := s.names.prepared.Latest([]byte(s.oversize.name)); s.oversize.parsed && st != nil {
			st.text.Flags |= sqltext.SetsVariable // which count where it is executed
		} else {
			s.noteFlags(sqltext.SetsVariable)
		}
	}
	out.pass(at, at+n)
	return n
}
