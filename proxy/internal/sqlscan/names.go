package sqlscan

// maxName is how many bytes of a name PostgreSQL keeps.
const maxName = 63

// word takes an unquoted name or keyword.
func (s *Scanner) word(start, end int) {
	st := &s.st
	var buf [maxName]byte
	folded, known := buf[:0], true
	t := token{kind: word, start: start, end: end}
	if end-start <= maxName {
		folded = buf[:end-start]
		for i, c := range s.text[start:end] {
			folded[i] = lower[c]
			known = known && c < 0x80
		}
		if st.prev.kind != dot { // behind a dot every word is a name
			if k := findKeyword(folded); k != nil {
				t.id, t.cat, t.soft = k.id, k.category, k.soft
			}
			if t.id == kwAs && st.prev.id == kwAs { // AS "as": what follows is no name
				t.id = someKeyword
			}
		}
	} else {
		known = false
	}
	s.startName(t)
	if t.id > someKeyword && st.prev.id != kwAs {
		s.keyword(t)
	}
	if t.cat != reserved {
		s.nameMarks(folded, known)
	}
	if s.found != 0 && t.cat == 0 {
		s.nameMentions(start, end, string(folded) == "set_config")
	}
	s.advance(t)
}

// name takes a quoted name.
func (s *Scanner) name(k kind, start, end int) {
	st := &s.st
	t := token{kind: k, start: start, end: end}
	s.startName(t)
	if k == unicode {
		st.escapes = true
		s.nameMarks(nil, false)
	} else {
		if s.cat != nil && s.cat.marked {
			var buf [maxName]byte
			s.nameMarks(s.nameOf(t, &buf))
		}
		if s.found != 0 {
			s.nameMentions(start, end, string(s.text[start:end]) == `"set_config"`)
		}
	}
	s.advance(t)
}

// startName begins a token that is a name, and the chain of names and dots that
// it may begin.
func (s *Scanner) startName(t token) {
	st := &s.st
	s.begin(t, t.start, t.end)
	st.typeName = false
	if st.prev.kind == dot && isName(st.prev2.kind) {
		st.qualifier = st.prev2
	} else {
		st.before, st.qualifier = st.prev, token{}
	}
}

func isName(k kind) bool { return k == word || k == quoted || k == unicode }

// nameOf returns the name that a token stands for, in buf, and whether it could
// be told: not those that PostgreSQL would shorten, nor those that it converts.
func (s *Scanner) nameOf(t token, buf *[maxName]byte) ([]byte, bool) {
	text := s.text[t.start:t.end]
	n := 0
	switch t.kind {
	case quoted:
		text = text[1 : len(text)-1]
	case unicode:
		return nil, false
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		if n == maxName || c >= 0x80 {
			return nil, false
		}
		if t.kind == word {
			c = lower[c]
		} else if c == '"' {
			i++
		}
		buf[n] = c
		n++
	}
	return buf[:n], true
}

// nameMarks asks the catalog whether the mere mention of a name may write or set.
func (s *Scanner) nameMarks(name []byte, known bool) {
	st := &s.st
	if s.cat == nil || !s.cat.marked {
		return
	}
	if !known {
		st.effect = true
		st.out.Setter = st.out.Setter || s.cat.setters
		st.out.SetterCall = st.out.SetterCall || s.cat.setters
		return
	}
	f := s.cat.names[string(name)]
	if f&^isFunction == 0 {
		return
	}
	if f&isRelation != 0 || f&isField != 0 && st.prev.kind == dot {
		s.unseenCall()
	}
	if f&isType != 0 {
		st.typeName = true
		if st.before.beforeType() {
			s.unseenCall()
		}
	}
	if f&isSetter != 0 {
		st.out.Setter, st.out.SetterCall, st.out.SetsLexing = true, true, true
	}
}

// unseenCall notes that a function which may write is called without being named:
// by a view, a type or an operator. Which one isn't known.
func (s *Scanner) unseenCall() {
	s.st.effect = true
	s.st.out.Setter = s.st.out.Setter || s.cat.setters
}

// beforeType reports whether what follows the token may well be a type: x::type,
// AS type, RETURNING type, or a column and its type.
func (t token) beforeType() bool {
	switch t.kind {
	case cast, quoted, unicode:
		return true
	case word:
		switch t.id {
		case kwAs, kwReturning:
			return true
		case kwBy, kwCopy:
			return false
		}
		return t.cat < typeOrFunction
	}
	return false
}

func (s *Scanner) nameMentions(start, end int, setConfig bool) {
	if setConfig {
		s.st.setConfig = 1
		return
	}
	m := mentioned(s.text[start:end])
	s.mentions(m)
	if m&mentionsSetConfig != 0 {
		s.st.out.SetsLexing = true
	}
}

// keyword takes what a keyword says of the statement, wherever it stands.
func (s *Scanner) keyword(t token) {
	st := &s.st
	switch t.id {
	case kwInsert, kwUpdate, kwDelete, kwMerge:
		st.effect = true
		if st.verb == VerbSelect && st.depth == 0 && st.head[0] == kwWith {
			st.verb = verbs[t.id]
		}
	case kwInto:
		st.effect = true
	case kwShare, kwNo, kwKey:
		st.effect = st.effect || st.prev.id == kwFor
	case kwConcurrently:
		st.concurrently = true
	case kwDetach:
		st.detach = true
	case kwTablespace:
		st.setTablespace = st.setTablespace || st.prev.id == kwSet
	case kwAtomic:
		if st.prev.id == kwBegin && st.depth == 0 && st.createsRoutine() {
			st.atomic++
		}
	case kwEnd:
		// The END of a CASE never stands behind a semicolon.
		if st.atomic > 0 && st.depth == 0 && (st.prev.kind == semicolon || st.prev.id == kwAtomic) {
			st.atomic--
		}
	}
	s.with(t)
}

func (st *state) createsRoutine() bool {
	object := st.head[1]
	if object == kwOr { // OR REPLACE
		object = st.head[3]
	}
	return st.head[0] == kwCreate && (object == kwFunction || object == kwProcedure)
}

// with follows the list of a WITH: its names may have a list of columns.
func (s *Scanner) with(t token) {
	st := &s.st
	bit := uint64(1) << min(st.depth, 63)
	switch t.id {
	case kwWith:
		if st.prev.kind == open || st.n == 0 || st.n == st.bodyAt ||
			st.prev.id == kwFor && st.verb == VerbDeclare {
			if st.depth < 63 { // deeper lists share a bit
				st.ctes |= bit
			}
		}
	case kwSelect, kwValues, kwTable, kwInsert, kwUpdate, kwDelete, kwMerge, kwOrder, kwLimit, kwOffset,
		kwFetch, kwFor, kwUnion, kwIntersect, kwExcept:
		st.ctes &^= bit
	}
}

// call judges the call of the name before a parenthesis, if it can be one.
func (s *Scanner) call() {
	st := &s.st
	t := st.prev
	switch {
	case t.id == kwTreat: // TREAT(x AS f) calls pg_catalog.f(x)
		st.effect = true
		return
	case t == st.target: // PREPARE p(int), EXECUTE p(1)
		return
	case (t.cat == reserved || t.cat == columnName) && !t.soft:
		return
	case st.verb == VerbCopy && (st.depth == 0 || st.copy > copySource), st.before.id == kwInto,
		st.explain == explainBrackets: // a list of columns, or options
		return
	}
	var buf [maxName]byte
	name, known := s.nameOf(t, &buf)
	var f flags
	if known && !s.isTemporary() {
		f = s.cat.function(name)
	} else if t.kind == unicode {
		st.unicodeCall = true
	}
	if s.mayBeNoCall(t) {
		st.effect = st.effect || f&isUnsafe != 0
	} else {
		st.effect = st.effect || f&isSafe == 0
		if s.cat != nil && f == 0 && t.cat == 0 && calling[st.verb] {
			st.out.Setter = true // made after the catalog was read
		}
	}
	if f&isField != 0 {
		s.unseenCall() // an argument's default may call it
	}
	if f&isSetter != 0 {
		st.out.Setter, st.out.SetterCall, st.out.SetsLexing = true, true, true
	}
}

// mayBeNoCall reports whether a name before a parenthesis stands where the
// grammar has a list of columns, a type's modifiers or a clause. Then it counts
// as a call only if the catalog knows a function of that name that may write.
func (s *Scanner) mayBeNoCall(t token) bool {
	st := &s.st
	if t.soft {
		return true
	}
	switch b := st.before; b.kind {
	case cast, quoted, unicode: // x::type(n), "tab" t(a, b)
		return true
	case closing: // (SELECT …) t(a, b); but DISTINCT ON (a) f(b), OPERATOR(+) f(b)
		return !b.goesOn
	case comma: // WITH a AS (…), b(x) AS (…)
		return st.ctes&(1<<min(st.depth, 63)) != 0
	case word: // AS t(a, b), tab t(a, b), WITH t(a)
		return b.cat == 0 || b.id == kwAs || b.id == kwWith || b.id == kwRecursive
	}
	return false
}

// isTemporary reports whether the name that prev ends is of the session's own
// temporary schema, of which the catalog knows nothing.
func (s *Scanner) isTemporary() bool {
	var buf [maxName]byte
	if s.st.qualifier.kind == none {
		return false
	}
	schema, known := s.nameOf(s.st.qualifier, &buf)
	return !known || len(schema) >= len("pg_temp") && string(schema[:len("pg_temp")]) == "pg_temp"
}

// calling marks the verbs in which an unknown name before a parenthesis is a
// function's and not that of a new table or the like.
var calling = [256]bool{
	VerbSelect: true, VerbInsert: true, VerbUpdate: true, VerbDelete: true, VerbMerge: true, VerbCopy: true,
	VerbExplain: true, VerbDeclare: true, VerbExecute: true, VerbCall: true,
}
