package session

import (
	"bytes"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// maxName is how many bytes PostgreSQL keeps of the name of a prepared statement
// or a portal: names that agree in these are one (NAMEDATALEN).
const maxName = 63

// oddName stands for every name with characters beyond ASCII. Which of them are
// one to PostgreSQL depends on two encodings, of which the client's may change.
const oddName = "\x80"

// cut returns what names that are one to PostgreSQL have in common.
func cut[T ~string | ~[]byte](name T) T {
	if len(name) > maxName {
		name = name[:maxName]
	}
	for i := range len(name) {
		if name[i] >= 0x80 {
			return T(oddName)
		}
	}
	return name
}

// eitherOf stands for two statements of which nobody can say which one a name
// means. It does whatever either of them may do.
func eitherOf(a, b statement) statement {
	if a.fence == "" {
		a.fence = b.fence
	}
	a.read, a.lexing, a.procedural = false, true, true
	a.sets, a.runs, a.noBehind = a.sets || b.sets, true, a.noBehind || b.noBehind
	a.prepared = max(a.prepared, b.prepared)
	a.step.Write, a.step.EndsTx, a.step.Setter = true, true, true
	a.step.Unfenceable = "a statement whose name can't be told"
	return a
}

// replaceable marks a statement in whose place there may be another by now,
// that carries nothing of its own.
func (st *statement) replaceable() {
	st.read, st.runs, st.step.Write = false, true, true
	if st.fence != "" {
		st.step.Unfenceable = "a statement whose name may mean another"
	}
}

// blur marks what a name means as replaceable, or all names with "".
func (r *registry) blur(name string) {
	name = cut(name)
	for known, st := range r.named {
		if name == "" || known == name {
			st.replaceable()
			r.named[known] = st
		}
	}
	for i := range r.inflight {
		if f := &r.inflight[i]; f.name != "" && (name == "" || f.name == name) {
			f.stmt.replaceable()
		}
	}
}

// fenced reports whether some statement carries a fence of its own.
func (r *registry) fenced() bool {
	for _, st := range r.named {
		if st.fence != "" {
			return true
		}
	}
	for i := range r.inflight {
		if r.inflight[i].stmt.fence != "" {
			return true
		}
	}
	return false
}

// ownPrefix begins the names of the proxy's own statements.
const ownPrefix = "_wirefence"

// reaches notes a statement that may get hold of the proxy's own prepared check,
// or of any other, under a name that nobody can read.
func (s *Session) reaches(d *statement, st *sqlscan.Statement, body []byte) {
	switch {
	case d.prepares || d.forgets:
		s.check.shared = s.check.shared || d.unclear || strings.HasPrefix(d.target, ownPrefix)
		d.blurs = d.prepares && d.unclear
	case d.procedural || st.Verb == sqlscan.VerbSelect:
		text := body[st.Start:st.End]
		s.check.shared = s.check.shared || containsFold(text, ownPrefix)
		d.blurs = st.Verb == sqlscan.VerbDo && containsFold(text, "prepare")
	}
}

// containsFold reports whether text holds a lower-case word in any case.
func containsFold(text []byte, word string) bool {
	for i := 0; i+len(word) <= len(text); i++ {
		if text[i]|0x20 == word[0]|0x20 && strings.EqualFold(string(text[i:i+len(word)]), word) {
			return true
		}
	}
	return false
}

// touches notes a message about a prepared statement of this name.
func (s *Session) touches(name []byte) {
	if bytes.HasPrefix(name, []byte(ownPrefix)) {
		s.check.shared = true
	}
}

// closing handles a whole Close. The statement is forgotten when the server
// has confirmed it: after an error it lives on.
func (s *Session) closing(msg []byte) {
	e := s.q.Push(replies.Close)
	if body := msg[wire.HeaderSize:]; len(body) > 1 {
		e.Note.closes, e.Note.before = body[0], s.prepares
		e.Note.name = string(bytes.TrimRight(body[1:], "\x00"))
		s.touches(body[1:])
	}
}

// maxCursors bounds how many names of cursors are remembered.
const maxCursors = 256

// declared notes the name of a cursor whose query has been seen.
func (s *Session) declared(name string) {
	if name == "" {
		return
	}
	if s.cursors == nil || len(s.cursors) >= maxCursors {
		s.cursors = map[string]bool{}
	}
	s.cursors[name] = true
}
