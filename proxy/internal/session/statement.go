package session

import (
	"maps"

	"github.com/wirefence/wirefence/fence"
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
	executes   bool   // runs a statement that was prepared by name
	prepares   bool   // PREPARE
	forgets    bool   // DEALLOCATE of one statement
	declares   bool   // DECLARE
	cursor     bool   // DECLARE or CLOSE
	fetches    bool   // FETCH or MOVE
	reads      bool   // reads data: checked where reads are
	target     string // the name that it prepares, executes or deallocates
	unclear    bool   // that name can't be read
	blurs      bool   // may prepare another statement under any name
	sets       bool   // may set the session variable, by its own words
	runs       bool   // runs what has another text
	noBehind   bool   // no check can stand behind it
	resets     bool   // sets variables to what the session began with
	drops      bool   // drops prepared statements
	lexing     bool   // changes how the next text is read
	keeps      belief // behind a pooler, what it sets beyond its transaction
	obscure    string // behind a pooler, why it can't be followed
	read       bool   // a read as far as the catalog of this generation knows
	generation uint32
	text       string // of a named read, so that it can be judged again
	prepared   uint64 // the number of the PREPARE that made it, else 0
}

// unseen stands for a statement whose text never came by: a cursor of SQL's. It
// may write, and can be nothing else than what DECLARE takes.
var unseen = statement{step: weave.Step{Write: true}, runs: true}

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
		executes: st.Executes, prepares: st.Verb == sqlscan.VerbPrepare,
		forgets:  st.Verb == sqlscan.VerbDeallocate && !st.DropsPrepared,
		declares: st.Verb == sqlscan.VerbDeclare,
		resets:   st.Verb == sqlscan.VerbReset || st.Verb == sqlscan.VerbDiscard,
		cursor:   st.Verb == sqlscan.VerbDeclare || st.Verb == sqlscan.VerbClose,
		fetches:  st.Verb == sqlscan.VerbFetch,
		target:   st.Target, unclear: st.TargetUnclear,
		drops: st.DropsPrepared, lexing: st.SetsLexing,
		sets: st.Setter, noBehind: st.NoCheckBehind, runs: st.Executes || st.Verb == sqlscan.VerbFetch,
	}
	d.read = !st.Write && asksCatalog(st.Verb)
	d.reads = d.read || d.fetches
	d.step.Read = d.reads && s.checksReads()
	if d.read && !known {
		d.step.Write = true
	}
	if s.maySetUnseen() && (d.procedural || !known && (d.step.Write || d.prepares)) {
		d.sets = true
	}
	if d.declares {
		s.declared(d.target)
	}
	if st.Verb == sqlscan.VerbFetch && !s.cursors[d.target] {
		d.step.Write = true // a function may have opened it, or a Bind
	}
	if s.dirty && (st.Verb == sqlscan.VerbFetch || st.Verb == sqlscan.VerbCommit && s.cfg.Mode != Shadow) {
		d.step.Write = true // it may run what a cursor was declared for
	}
	s.mayset(&d)
	s.setterSQL = s.setterSQL || (d.prepares || d.declares) && d.step.Setter && !s.pool.on // the same text may run it
	if s.cfg.Mode == Shadow && (d.procedural || d.step.Unfenceable != "") {
		// A check would change what these do, and shadow mode changes nothing.
		d.step.Write, d.step.Unfenceable, d.step.Behind = false, "", false
	}
	return d
}

// checkable reports whether the database has the function that checks a fence. A
// session that was there before the function hears of it from the catalog.
func (s *Session) checkable() bool { return s.schema || s.db.schema.Load() }

// checksReads reports whether reads that carry a fence are to be checked.
func (s *Session) checksReads() bool { return s.checkable() && s.db.reads.Load() }

// mayset marks what may set the session variable although its text doesn't say
// so: the run of a prepared statement, the end of a transaction, or, in a
// database that has functions which do, whatever may come to call one, be it by a
// trigger or a default. What may also write by what it has set, by its own words
// or by those that it runs, has a check behind it.
func (s *Session) mayset(d *statement) {
	if s.pool.on {
		return
	}
	if s.inTx && (d.step.EndsTx || d.step.Uncovers) {
		d.step.Setter = true // a rollback brings back what the variable held before it was asked for
	}
	// What was prepared or declared may call a function that has changed since.
	sets := d.sets || d.runs && (s.setterSQL || s.maySetUnseen())
	if sets || s.maySetUnseen() && (d.step.Write || d.read || d.procedural) {
		d.step.Setter = true
	}
	d.step.Behind = sets && d.step.Write && d.step.Unfenceable == "" && !d.noBehind && s.checkable()
}

// maySetUnseen reports whether there may be functions that set the session
// variable.
func (s *Session) maySetUnseen() bool { return s.db.setters.Load() || !s.db.trusted.Load() }

// current judges a statement again if functions or views have changed since.
func (s *Session) current(st statement) statement {
	view := s.batch.view
	if !st.read || view.catalog != nil && view.generation == st.generation {
		return st
	}
	if view.catalog == nil || st.text == "" {
		st.step.Write = true
		return st
	}
	result := s.scanner.Scan([]byte(st.text), s.options, view.catalog)
	st.generation, st.step.Write = view.generation, len(result.Statements) == 0 || result.Statements[0].Write
	return st
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
	if d.step.Setter && !(d.resets && !s.inherits && s.variable == empty) {
		s.doubtVariable()
	}
	if d.drops {
		s.check.doubt = true
		s.check.batch = [kinds]uint32{} // what this batch has prepared is gone, too
	}
	if d.lexing || d.step.Setter && (d.procedural || d.step.Write) {
		s.lexPending, s.lexTx = true, true // what may set one setting by a function may set another
	}
	if s.lexTx && (d.step.EndsTx || d.step.Uncovers) {
		s.lexPending = true // it may bring an earlier value back
	}
	if d.cursor {
		s.portals.blur(d.target) // a cursor of SQL's may have the name now
		if !d.declares {
			delete(s.cursors, d.target)
		}
	}
	if d.blurs {
		s.prepared.blur("")
	}
}

// doubtVariable notes that the session variable may have another value. Behind a
// pooler a look at it would tell nothing.
func (s *Session) doubtVariable() {
	if s.pool.on {
		return
	}
	s.variable = unknown
	s.epoch++
}

// prepare notes an SQL PREPARE, whose fence is that of its message's comments.
// Where it isn't known whether it succeeds, and the name meant something with
// another fence, nobody can say which fence an EXECUTE carries.
func (s *Session) prepare(d *statement, comment string) {
	if d.unclear {
		return // every name counts as one that it may be
	}
	st := unseen
	st.runs, st.fence, st.sets, st.step.Setter = false, comment, d.sets, d.step.Setter
	old, sure := s.prepared.find([]byte(d.target), 0)
	if _, exists := s.prepared.get([]byte(d.target)); (exists || !sure) && old.fence != comment {
		st.step.Unfenceable = "the execution of a statement that was prepared twice"
		if st.fence == "" {
			st.fence = old.fence // it may be the first that counts: then this is carried
		}
	}
	s.prepares++
	st.prepared = s.prepares
	s.prepared.define(d.target, st)
	// A Parse of that name, whose answer is to come, may have been dropped by now.
	for i := range s.prepared.inflight {
		if f := &s.prepared.inflight[i]; f.name == cut(d.target) {
			f.stmt = eitherOf(f.stmt, st)
		}
	}
}

// inherited returns the fence that a statement carries: its own, or its
// message's, and that of the prepared statement or portal that it runs, if that
// one has a fence. wait asks to come again after the replies that are under way.
func (s *Session) inherited(d *statement, carried fence.Fence) (f fence.Fence, has, wait bool, err error) {
	of := &s.prepared
	if d.fetches {
		of = &s.portals
	}
	if !d.executes && !d.fetches || d.fetches && !of.fenced() {
		return carried, false, false, nil
	}
	if d.unclear {
		return carried, false, false, &fence.SyntaxError{Reason: "the name in EXECUTE or FETCH can't be read, and what it runs may carry a fence"}
	}
	st, sure := of.find([]byte(d.target), s.batch.id)
	if !sure && s.q.Ready() > 0 && !s.q.CopyIn() {
		return carried, false, true, nil
	}
	if st.step.Unfenceable != "" {
		d.step.Unfenceable = st.step.Unfenceable
	}
	if st.fence == "" {
		return carried, false, false, nil
	}
	more, err := fence.Parse(st.fence)
	if err == nil {
		f, err = carried.Merge(more)
	}
	return f, true, false, err
}

// registry knows statements by the name of a prepared statement or a portal.
type registry struct {
	unnamed  statement
	defined  bool // there is an unnamed one
	named    map[string]statement
	inflight []inflight // Parses or Binds that are not yet answered, oldest first
}

type inflight struct {
	name  string
	batch uint32
	stmt  statement
}

func (r *registry) get(name []byte) (statement, bool) {
	name = cut(name)
	if len(name) == 0 {
		return r.unnamed, r.defined
	}
	st, ok := r.named[string(name)]
	return st, ok
}

// sent notes a Parse or a Bind. name is copied if it isn't empty.
func (r *registry) sent(name []byte, batch uint32, st statement) {
	r.inflight = append(r.inflight, inflight{string(cut(name)), batch, st})
}

// find returns the statement that a name means in this batch. sure is false if
// that depends on the outcome of a message in an earlier batch, which may have
// replaced another statement, or not.
func (r *registry) find(name []byte, batch uint32) (st statement, sure bool) {
	name = cut(name)
	known, exists := r.get(name)
	candidates := 0
	for i := range r.inflight {
		if f := &r.inflight[i]; f.name == string(name) {
			if string(name) == oddName && (exists || candidates > 0) {
				known, exists = eitherOf(known, f.stmt), true
				continue
			}
			// If this one fails, what follows in its batch is skipped.
			st, sure = f.stmt, f.batch == batch
			candidates++
		}
	}
	switch {
	case candidates == 1 && string(name) == oddName && exists:
		return eitherOf(known, st), true
	case candidates == 0 && exists:
		return known, true
	case candidates == 0:
		return unseen, true
	}
	return st, sure || candidates == 1 && !exists
}

// done notes that the oldest message about this name has succeeded.
func (r *registry) done(name string) {
	name = cut(name)
	for i := range r.inflight {
		if r.inflight[i].name == name {
			r.define(name, r.inflight[i].stmt)
			r.inflight = append(r.inflight[:i], r.inflight[i+1:]...)
			return
		}
	}
}

// failed drops the oldest unanswered message about this name.
func (r *registry) failed(name string) {
	name = cut(name)
	for i := range r.inflight {
		if r.inflight[i].name == name {
			r.inflight = append(r.inflight[:i], r.inflight[i+1:]...)
			return
		}
	}
}

func (r *registry) define(name string, st statement) {
	name = cut(name)
	if name == "" {
		r.unnamed, r.defined = st, true
		return
	}
	if old, exists := r.named[oddName]; exists && name == oddName {
		st = eitherOf(old, st)
	}
	if r.named == nil {
		r.named = map[string]statement{}
	}
	r.named[name] = st
}

// closed notes that the server has dropped a statement or a portal. What was
// PREPAREd when prepares had been counted, or before, is gone; a later one, that
// was sent ahead of this answer, isn't.
func (r *registry) closed(name string, prepares uint64) {
	if name == "" {
		r.defined = false
		return
	}
	name = cut(name)
	if name != oddName && r.named[name].prepared <= prepares { // oddName may be another's
		delete(r.named, name)
	}
}

// clear notes that the server has dropped them all, but for what was PREPAREd
// when this many PREPAREs had come before.
func (r *registry) clear(prepares uint64) {
	r.defined = false
	maps.DeleteFunc(r.named, func(_ string, st statement) bool { return st.prepared <= prepares })
}
