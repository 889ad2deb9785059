package sqlscan

import "bytes"

// token is a token of the statement; name is set for an unquoted keyword.
type token struct {
	kind       kind
	id         keyword
	cat        category // 0 for what is not a keyword
	soft       bool     // a keyword that may stand before a parenthesis without calling anything
	goesOn     bool     // a closing parenthesis behind which an expression may begin
	start, end int
}

// state is what is known of the statement that is being read.
type state struct {
	out       Statement
	verb      Verb
	inner     Verb // of EXPLAIN: the verb of what is explained
	bodyAt    int  // and how many tokens stand before it
	n         int  // tokens so far
	head      [6]keyword
	third     kind // of the third token
	depth     int
	atomic    int // open BEGIN ATOMIC bodies
	prev      token
	prev2     token
	before    token // what stands before the name that prev ends, with its qualifiers
	qualifier token // the last qualifier of that name
	mentions  mention

	calls   uint64 // by depth: behind its closing parenthesis an expression may go on
	ctes    uint64 // by depth: in the list of a WITH
	explain phase
	copy    phase
	aim     aim
	target  token // the name of Target

	effect        bool // holds something that may write
	analyzed      bool
	concurrently  bool
	detach        bool
	setTablespace bool
	typeName      bool // prev names a type that may write
	escapes       bool // a name or a literal whose characters are not as written
	unicodeCall   bool
	unfinished    bool  // the text ends in a literal, a comment or a quoted name
	mayCommit     bool  // a DO whose text holds a word that ends transactions, or calls what may
	setConfig     uint8 // 1 behind the name set_config, 2 behind its parenthesis, 3 behind a literal there
}

// phase is how far EXPLAIN's options or a COPY are read.
type phase uint8

const (
	explainOptions  phase = iota + 1 // behind EXPLAIN
	explainBrackets                  // in its parentheses
	explainBody

	copySource   // up to TO or FROM
	copyTarget   // behind TO
	copyToClient // behind TO STDOUT
	copyToOther  // behind TO and a file or a program
	copyFrom
)

// token takes the next token that is no name.
func (s *Scanner) token(k kind, start, end int) {
	st := &s.st
	if k == semicolon && st.depth == 0 && st.atomic == 0 {
		s.finish()
		return
	}
	s.begin(token{kind: k}, start, end)
	if st.typeName && (k == literal || k == escaped || k == open) {
		s.unseenCall()
	}
	st.typeName = false
	goesOn := false
	switch k {
	case open:
		s.open()
	case closing:
		goesOn = st.calls&(1<<min(st.depth, 63)) != 0
		st.depth = max(st.depth-1, 0)
	case literal, escaped:
		s.literal(k, start, end)
	case operator:
		if s.cat != nil && len(s.cat.operators) > 0 && s.cat.operators[string(s.text[start:end])] {
			s.unseenCall()
		}
	}
	s.advance(token{kind: k, goesOn: goesOn, start: start, end: end})
}

// begin notes the first token of a statement, and of what EXPLAIN explains.
func (s *Scanner) begin(t token, start, end int) {
	st := &s.st
	if st.n == 0 {
		st.out.Start = start
		st.verb = verbOf(t)
		switch st.verb {
		case VerbExplain:
			st.explain = explainOptions
		case VerbCopy:
			st.copy = copySource
		}
		st.aimFrom(t, false)
	} else if st.aim != 0 {
		st.aimAt(t)
	}
	if st.n < len(st.head) {
		st.head[st.n] = t.id
	}
	if st.n == 2 {
		st.third = t.kind
	}
	st.out.End = end
	if st.explain == explainOptions && st.n > 0 || st.explain == explainBrackets {
		s.explained(t)
	}
	if st.verb == VerbCopy && st.depth == 0 {
		st.copied(t)
	}
	if st.setConfig != 0 {
		st.setConfigNext(t.kind, s.text[start:end])
	}
}

func verbOf(t token) Verb {
	if t.kind == open {
		return VerbSelect
	}
	return verbs[t.id]
}

// explained reads EXPLAIN's options, up to the statement that it explains.
func (s *Scanner) explained(t token) {
	st := &s.st
	if t.id == kwAnalyze || t.id == kwAnalyse {
		st.analyzed = true
		return
	}
	if st.explain == explainBrackets {
		if t.kind == unicode || t.kind == quoted && string(s.text[t.start:t.end]) == `"analyze"` {
			st.analyzed = true // an option's name may be quoted
		}
		first := st.prev.kind == open && st.depth == 1 && st.n == 2
		switch {
		case first && verbOf(t) == VerbSelect: // EXPLAIN (SELECT …)
			st.explain, st.inner = explainBody, VerbSelect
		case t.kind == closing && st.depth == 1:
			st.explain = explainOptions
		}
		return
	}
	switch {
	case t.kind == open && st.n == 1:
		st.explain = explainBrackets
	case t.id == kwVerbose && st.n < 3:
	default:
		st.explain, st.inner, st.bodyAt = explainBody, verbOf(t), st.n
		st.aimFrom(t, true)
	}
}

// copied follows a COPY outside of its query.
func (st *state) copied(t token) {
	switch {
	case st.copy == copySource && t.id == kwFrom:
		st.copy = copyFrom
	case st.copy == copySource && t.id == kwTo:
		st.copy = copyTarget
	case st.copy == copyTarget:
		st.copy = copyToOther
		if t.id == kwStdout || t.id == kwStdin {
			st.copy = copyToClient
		}
	}
}

// setConfigNext looks at what stands behind the name set_config: only a plain
// literal as its first argument says what it sets.
func (st *state) setConfigNext(k kind, text []byte) {
	switch {
	case st.setConfig == 1 && k == open:
		st.setConfig = 2
		return
	case st.setConfig == 2 && k == literal && bytes.IndexByte(text, '\\') < 0:
		if mentioned(text)&mentionsFence != 0 {
			st.out.Setter, st.out.SetterCall = true, true
		}
		st.setConfig = 3
		return
	case st.setConfig == 3 && k == comma:
	default:
		st.out.Setter, st.out.SetterCall, st.out.SetsLexing = true, true, true
	}
	st.setConfig = 0
}

func (s *Scanner) advance(t token) {
	st := &s.st
	st.prev2, st.prev = st.prev, t
	st.n++
}

// literal looks for the words in a literal that make a setter of a statement.
func (s *Scanner) literal(k kind, start, end int) {
	st := &s.st
	if k == escaped {
		st.escapes = true
	}
	if st.verb == VerbDo {
		s.body(k, s.text[start:end])
	}
	if s.found == 0 {
		return
	}
	m := mentioned(s.text[start:end])
	s.mentions(m)
	if m&mentionsSetConfig != 0 {
		st.out.SetsLexing = true
	}
}

func (s *Scanner) mentions(m mention) {
	st := &s.st
	st.mentions |= m
	st.out.Setter = st.out.Setter || m&mentionsSetter != 0
	st.out.SetterCall = st.out.SetterCall || m&mentionsSetConfig != 0
	st.out.SetsLexing = st.out.SetsLexing || m&mentionsLexing != 0
}

// open takes an opening parenthesis: what stands before it may be called.
func (s *Scanner) open() {
	st := &s.st
	if st.prev.kind == word || st.prev.kind == quoted || st.prev.kind == unicode {
		s.call()
	}
	st.depth++
	bit := uint64(1) << min(st.depth, 63)
	st.calls &^= bit
	st.ctes &^= bit
	if st.depth >= 63 || st.prev.id == kwOperator || st.prev.id == kwOn && st.prev2.id == kwDistinct {
		st.calls |= bit
	}
}

// finish ends the statement that is being read, if there is one.
func (s *Scanner) finish() {
	st := &s.st
	if st.n > 0 {
		st.effect = st.effect || s.cat != nil && s.cat.all
		st.conclude()
		s.setTarget()
		s.result.Statements = append(s.result.Statements, st.out)
	}
	s.st = state{}
}
