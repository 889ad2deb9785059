package session

import (
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/weave"
)

// statement is what the session knows of one statement, copied by value: what
// must be known to judge its execution.
type statement struct {
	step       weave.Step
	fence      string // the text of the fence in its comments
	begins     bool   // begins a transaction block
	procedural bool   // CALL or DO
	execute    bool   // EXECUTE of a PREPAREd statement
	prepares   bool   // PREPARE
	drops      bool   // drops prepared statements
	lexing     bool   // changes how the next text is read
	read       bool   // a read as far as the catalog of this generation knows
	generation uint32
	text       string // of a named read, so that it can be judged again
}

// unseen stands for a statement whose text never came by: one that SQL
// PREPAREd, or a cursor of SQL's. It may write, and can be nothing else than
// what PREPARE and DECLARE take.
var unseen = statement{step: weave.Step{Write: true}, execute: true}

// maxKeptText is the longest text in bytes that is kept to be judged again when
// the catalog changes; a longer read counts as a write then.
const maxKeptText = 8 << 10

// describe translates the scanner's view of a statement. Where the catalog is
// not known, whatever it would have to be asked for counts as a write.
func (s *Session) describe(st *sqlscan.Statement, known bool) statement {
	d := statement{
		step: weave.Step{
			At: st.Start, Write: st.Write, Unfenceable: st.Unfenceable,
			EndsTx: st.TxEnd, Uncovers: st.LosesCheck || st.OwnTx, Setter: st.Setter,
		},
		begins: st.TxBegin, procedural: st.Procedural,
		execute: st.Verb == sqlscan.VerbExecute, prepares: st.Verb == sqlscan.VerbPrepare,
		drops: st.DropsPrepared, lexing: st.SetsLexing,
	}
	d.read = !st.Write && asksCatalog(st.Verb)
	if d.read && !known {
		d.step.Write = true
	}
	if d.execute && s.setterSQL {
		d.step.Setter = true
	}
	if s.cfg.Mode == Shadow && (d.procedural || d.step.Unfenceable != "") {
		// A check would change what these do, and shadow mode changes nothing.
		d.step.Write, d.step.Unfenceable = false, ""
	}
	return d
}

// asksCatalog reports whether a statement of this kind is a read only if the
// functions and views it names are harmless.
func asksCatalog(v sqlscan.Verb) bool {
	switch v {
	case sqlscan.VerbSelect, sqlscan.VerbExplain, sqlscan.VerbDeclare, sqlscan.VerbCopy:
		return true
	}
	return false
}

// ran notes what a statement that was forwarded may change.
func (s *Session) ran(d *statement) {
	if d.step.Setter {
		s.variable = unknown
		s.epoch++
		s.setterSQL = s.setterSQL || d.prepares
	}
	if d.drops {
		s.check.doubt = true
	}
	if d.lexing {
		s.lexPending = true
	}
}

// statements are the session's prepared statements, by name.
type statements struct {
	unnamed  statement
	defined  bool // there is an unnamed one
	named    map[string]statement
	inflight []inflight // Parses that are not yet answered, oldest first
}

type inflight struct {
	name  string
	batch uint32
	stmt  statement
}

func (p *statements) get(name []byte) (statement, bool) {
	if len(name) == 0 {
		return p.unnamed, p.defined
	}
	st, ok := p.named[string(name)]
	return st, ok
}

// find returns the statement that a Bind in this batch means. sure is false if
// that depends on the outcome of a Parse in an earlier batch, which replaced
// another statement.
func (p *statements) find(name []byte, batch uint32) (st statement, sure bool) {
	confirmed, exists := p.get(name)
	for i := len(p.inflight) - 1; i >= 0; i-- {
		if f := &p.inflight[i]; f.name == string(name) {
			return f.stmt, f.batch == batch || !exists
		}
	}
	if !exists {
		return unseen, true
	}
	return confirmed, true
}

// parsed notes that the oldest Parse of this name has succeeded.
func (p *statements) parsed(name string, st statement) {
	p.forget(name)
	if name == "" {
		p.unnamed, p.defined = st, true
		return
	}
	if p.named == nil {
		p.named = map[string]statement{}
	}
	p.named[name] = st
}

// forget drops the oldest unanswered Parse of this name.
func (p *statements) forget(name string) {
	for i := range p.inflight {
		if p.inflight[i].name == name {
			p.inflight = append(p.inflight[:i], p.inflight[i+1:]...)
			return
		}
	}
}

// closed notes that the server has dropped a statement.
func (p *statements) closed(name string) {
	if name == "" {
		p.defined = false
		return
	}
	delete(p.named, name)
}

func (p *statements) clear() {
	p.defined = false
	p.named = nil
}

// portals are the statements behind the session's portals, by name.
type portals struct {
	unnamed statement
	named   map[string]statement
}

func (p *portals) bind(name []byte, st statement) {
	if len(name) == 0 {
		p.unnamed = st
		return
	}
	if p.named == nil {
		p.named = map[string]statement{}
	}
	p.named[string(name)] = st
}

func (p *portals) find(name []byte) statement {
	if len(name) == 0 {
		return p.unnamed
	}
	if st, ok := p.named[string(name)]; ok {
		return st
	}
	return unseen
}
