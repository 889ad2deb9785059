package sqltext

// token is a token of the statement that is being read.
type token struct {
	kind       kind
	start, end int32
}

// state is the state of the statement that is being read.
type state struct {
	n             int       // tokens so far
	first         [11]token // the first of them: as many as the longest call that isCall knows
	last          token
	depth, atomic int // open parentheses, and BEGIN ATOMIC bodies
	flags         Flags
	computes      bool // behind the first four tokens is more than (constants and parameters)
	concurrently  bool
}

// token handles a token.
func (s *Scanner) token(k kind, start, end int) {
	if s.more && end == len(s.text) {
		s.goOnAt(start)
		return
	}
	st := &s.st
	s.goesOn = false
	t := token{k, int32(start), int32(end)}
	switch k {
	case semicolon:
		if st.depth == 0 && st.atomic == 0 {
			s.finish()
			return
		}
	case word:
		s.keyword(t)
	case open:
		st.depth++
	case closing:
		st.depth = max(st.depth-1, 0)
	}
	if st.n < len(st.first) {
		st.first[st.n] = t
	}
	if st.n > 4 && (st.last.kind == closing || st.last.kind == word && k == literal || k != literal && k != param && k != comma && k != word && k != closing) {
		st.computes = true
	}
	st.n++
	st.last = t
	if s.nextAt < end {
		s.note(k, start, end)
	}
}

// goOnAt has the text's next part read from this offset on, where a token begins that may go on in
// it.
func (s *Scanner) goOnAt(start int) {
	if len(s.text)-start > maxShort {
		s.in = longWord
		return
	}
	s.keep, s.rest = start, start
}

// keyword handles the words that count anywhere in a statement.
func (s *Scanner) keyword(t token) {
	st := &s.st
	switch t.end - t.start {
	case 3:
		// The END of a CASE never stands behind a semicolon.
		if st.atomic > 0 && st.depth == 0 && (st.last.kind == semicolon || s.is(st.last, "atomic")) && s.is(t, "end") {
			st.atomic--
		}
	case 6:
		if st.depth == 0 && s.is(t, "atomic") && s.is(st.last, "begin") && s.createsRoutine() {
			st.atomic++
		}
	case 12:
		st.concurrently = st.concurrently || s.is(t, "concurrently")
	}
}

// is reports whether a token is a certain unquoted word.
func (s *Scanner) is(t token, name string) bool {
	return t.kind == word && int(t.end-t.start) == len(name) && hasFolded(s.text[t.start:], name)
}

// word reports whether the token at index i, of the first ones, is a certain unquoted word.
func (s *Scanner) word(i int, name string) bool { return s.is(s.st.first[i], name) }

// createsRoutine reports whether the statement creates a function or a procedure.
func (s *Scanner) createsRoutine() bool {
	i := 1
	if s.word(1, "or") {
		i = 3
	}
	return s.word(0, "create") && (s.word(i, "function") || s.word(i, "procedure"))
}

// note adds to the statement's flags what a name or a literal mentions.
func (s *Scanner) note(k kind, start, end int) {
	for m, at := s.mentioned(start, end); m != nil; m, at = s.mentioned(at+1, end) {
		if k != other && m.counts(s.text, at, k == literal || k == escaped) {
			s.st.flags |= m.flags
		}
	}
}

// mentioned returns the next word with a meaning in the text from start to end, nil if there
// is none. It skips those before start, so the offsets must not go back.
func (s *Scanner) mentioned(start, end int) (m *mention, at int) {
	for s.nextAt < end {
		m, at = s.next, s.nextAt
		s.next, s.nextAt = allWords.next(s.text, at+1)
		if at >= start {
			return m, at
		}
	}
	return nil, 0
}

// finish adds the statement that is being read, if there is one, to the result.
func (s *Scanner) finish() {
	st := &s.st
	if st.n == 0 {
		return
	}
	out := Statement{Start: st.first[0].start, End: st.last.end}
	class, flags := s.classify()
	out.Class, out.Flags = class, flags|st.flags
	if s.word(0, "deallocate") {
		name := 1
		if s.word(1, "prepare") && st.n > 2 {
			name = 2
		}
		out.nameFrom(st.first[name], s.text)
	}
	s.result.Statements = append(s.result.Statements, out)
	s.st = state{}
}

// nameFrom sets the name in a DEALLOCATE.
func (st *Statement) nameFrom(t token, text []byte) {
	start, end := t.start, t.end
	if t.kind == quoted {
		start, end = start+1, end-1
	} else if t.kind != word {
		return
	}
	for _, c := range text[start:end] {
		if c >= 0x80 || c == '"' || t.kind == quoted && c != lower[c] {
			return
		}
	}
	st.NameStart, st.NameEnd = start, end
}
