package session

import (
	_ "embed"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// The proxy asks the database what the session variable holds, since nobody
// else can say: ALTER ROLE, a function or a rollback may have set it. It asks
// at login, and again when something that may have changed it has run. The
// question travels ahead of the client's next message and costs no round trip.
// Until the answer is there the session counts as one that may carry a fence.

//go:embed login.sql
var loginSQL string

//go:embed variable.sql
var variableSQL string

// settle sends the question ahead, where it is open and may be asked: between
// transactions, with nothing else under way. In a transaction it would take a
// snapshot that the client didn't ask for.
func (s *Session) settle(out *Out) {
	if changes := s.db.changes.Load(); changes != s.changes {
		s.changes = changes
		s.doubtVariable()
	}
	if s.variable != unknown || s.probing || !s.mayAskNow() {
		return
	}
	s.probing = true
	mark := len(out.own)
	out.own = s.appendAside(out.own, variableSQL, probeVar)
	// As long as the catalog isn't known, any statement makes the value doubtful, and
	// this question goes ahead of each: there would be no other moment to ask.
	if q, ok := s.db.ask(false); ok {
		out.own = s.appendQuestion(out.own, q)
	}
	out.put(mark)
}

// mayAskNow reports whether a question of the proxy's own would find the server
// idle and outside a transaction.
func (s *Session) mayAskNow() bool {
	return s.phase == serving && s.tx == wire.Idle && s.q.Len() == 0 && !s.batch.open
}

// appendAside appends a question of the proxy's own: an extended query under
// names of its own, closed again, so that the client's unnamed statement lives
// on.
func (s *Session) appendAside(dst []byte, sql string, by role) []byte {
	dst = s.appendCommand(dst, strings.TrimSpace(sql), by)
	dst = wire.AppendSync(dst)
	s.push(replies.Sync, oursEnd)
	return dst
}

// awaitVariable reports whether what the session variable holds is not known
// but will be, so that nothing is refused for what may not be so. In a
// transaction it asks: what made the value doubtful has run in it already, so
// the question takes no snapshot that the client didn't ask for.
func (s *Session) awaitVariable(out *Out) bool {
	switch {
	case s.variable != unknown || s.q.CopyIn():
		return false
	case s.q.Ready() > 0:
		return true
	case s.tx != wire.InTx || s.q.Len() > 0 || s.amidBatch():
		return false
	}
	s.inTx, s.probing = true, true
	mark := len(out.own)
	out.own = s.appendAside(out.own, variableSQL, probeVar)
	out.put(mark)
	return true
}

// learn takes in the value of the session variable; nil is none.
func (s *Session) learn(value []byte, epoch uint32) {
	s.asked = 0
	switch {
	case epoch != s.epoch:
	case len(value) == 0:
		s.variable = empty
	default:
		s.variable = carries
	}
}

// unanswered notes that a question brought no answer. After a few the session
// counts as one that carries a fence, which is always safe.
func (s *Session) unanswered() {
	if s.asked++; s.asked >= 3 {
		s.variable, s.asked = carries, 0
	}
}

// amidBatch reports whether the client has sent a part of a batch. The Sync of a
// question would end it there, and commit.
func (s *Session) amidBatch() bool { return s.batch.open && !s.batch.fresh }

// view is what is known of the catalog at one moment.
type view struct {
	catalog    *sqlscan.Catalog // nil if nothing is known
	generation uint32
}

func (s *Session) look() view {
	catalog, generation := s.db.get()
	return view{catalog, generation}
}

// refresh asks for the catalog ahead of the client's message, if it is needed
// and isn't known. wait asks to come again when the answer, or what else is
// under way, is there. In a transaction the question does no harm: the message
// that it is asked for would take a snapshot too.
func (s *Session) refresh(out *Out) (wait bool) {
	if s.tx == wire.Failed || s.q.CopyIn() || s.q.Ready() == 0 && (s.q.Len() > 0 || s.amidBatch()) {
		return false
	}
	if s.q.Ready() > 0 {
		catalog, _ := s.db.get()
		return catalog == nil && (s.inquiring || s.cfg.everyWrite)
	}
	q, ok := s.db.ask(s.cfg.everyWrite)
	if ok {
		mark := len(out.own)
		out.own = s.appendQuestion(out.own, q)
		out.put(mark)
	}
	return ok
}

// glance looks ahead of the client's message whether the catalog has changed,
// where it is this session's turn. Nobody waits for the answer.
func (s *Session) glance(out *Out) {
	if !s.mayAskNow() {
		return
	}
	if q, ok := s.db.glance(); ok {
		mark := len(out.own)
		out.own = s.appendQuestion(out.own, q)
		out.put(mark)
	}
}

// appendQuestion asks for the stamp first: should the catalog change between
// the two, the next look tells.
func (s *Session) appendQuestion(dst []byte, q question) []byte {
	s.question, s.answer, s.inquiring = q, nil, true
	dst = s.appendAside(dst, sqlscan.StampQuery, probeStamp)
	if q.whole {
		dst = s.appendAside(dst, sqlscan.CatalogQuery, probeCatalog)
	}
	return dst
}

// hasCalls reports whether functions may be called in a text.
func hasCalls(r *sqlscan.Result) bool {
	for i := range r.Statements {
		if r.Statements[i].Write {
			return true
		}
	}
	return hasReads(r)
}

// hasReads reports whether the catalog decides what a text is.
func hasReads(r *sqlscan.Result) bool {
	for i := range r.Statements {
		if asksCatalog(r.Statements[i].Verb) {
			return true
		}
	}
	return false
}
