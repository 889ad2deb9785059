package session

import (
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A text above MaxStatement, and parameters, are not buffered: they are forwarded in parts, and read
// before. At a fence in a comment of such a text the proxy closes the connections, so the server never
// gets the message's end and runs nothing of it.

// remainder is how the rest of a message is read that is being forwarded.
type remainder struct {
	open  bool
	words sqltext.Search
	text  bool                     // the scanner reads it, too
	names *ledger.Names[statement] // of the statement or portal that the message makes, if it does
	name  string
}

// readOn reads the next part of the message that is being forwarded.
func (s *Session) readOn(part []byte) {
	r := &s.rest
	if !r.open {
		return
	}
	if r.text && s.scanner.ReadPart(part) {
		if s.cfg.Mode != Shadow {
			s.End(*s.tooLarge())
			return
		}
		s.reportShadow(s.tooLarge())
		r.text = false
	}
	s.noteFound(r.words.ReadPart(part))
	r.open = s.passLeft > 0
}

// noteFound records words in a part of a message. Those of a statement or a portal count where it is
// executed.
func (s *Session) noteFound(flags sqltext.Flags) {
	if r := &s.rest; r.names != nil {
		if st := r.names.Latest([]byte(r.name)); st != nil {
			st.text.Flags |= flags
			return
		}
	}
	s.noteFlags(flags)
}

// overlong handles the head of a Query or Parse above MaxStatement.
func (s *Session) overlong(in []byte, size, at int, out *Out) int {
	s.tracing = nil
	s.forgetIdle()
	m, head := policy.Message{Kind: policy.Query, TooLarge: true}, wire.HeaderSize
	var names *ledger.Names[statement]
	var name []byte
	if in[0] == wire.Query {
		a, ok := s.decide(&m, nil, out)
		switch {
		case !ok:
			return 0
		case a.Do == policy.Refuse:
			return s.refuseUnread(&a, &m, size, len(in), out)
		}
		s.pushQuery(underNothing)
	} else {
		var ok bool
		if name, _, ok = wire.CString(in[wire.HeaderSize:min(size, len(in))]); !ok {
			return s.namesUnread(in, size, at, out)
		}
		m.Kind = policy.Parse
		if _, used, goesOn := s.decideInBatch(&m, nil, size, len(in), out); !goesOn {
			return used
		}
		s.noteParse(name, statement{text: sqltext.Statement{Class: sqltext.Alone}})
		names = &s.names.prepared
		head += len(name) + 1
	}
	s.check.doubt = true // it may drop them
	s.scanner.Begin(s.options)
	n := s.passReading(names, name, in[:head], size, at, out)
	s.rest.text = true
	return n
}

// passReading forwards the message at offset at, of which the first bytes were read, and has the rest
// read as it comes.
func (s *Session) passReading(names *ledger.Names[statement], name, first []byte, size, at int, out *Out) int {
	if len(first) < size {
		s.rest = remainder{open: true, names: names, name: string(name)}
		s.rest.words.ReadPart(first)
	}
	return s.pass(size, len(first), at, out)
}

// namesUnread handles a message in which the end of a name isn't found: the rest has not come, or
// the message is malformed, which PostgreSQL refuses.
func (s *Session) namesUnread(in []byte, size, at int, out *Out) int {
	switch {
	case len(in) >= size:
		s.openBatch()
		s.q.Push(ledger.Kind(in[0]))
		return s.pass(size, size, at, out)
	case len(in) >= maxSmall:
		s.violation("the names in a message have more than %d bytes", maxSmall) // as PostgreSQL allows in a Describe
	}
	return 0
}
