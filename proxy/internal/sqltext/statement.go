package sqltext

import "bytes"

// state is the state of the statement that is being read.
type state struct {
	start, end int
	n          int // tokens so far
	words      [4]leadingWord
	third      kind   // of the third token
	name       [2]int // offsets of the second token, if it is a word
	depth      int    // of parentheses
	atomic     int    // open BEGIN ATOMIC bodies
	prev       kind
	prevWord   leadingWord
	flags      Flags
	prepares   bool // a literal names PREPARE

	parenthesis  bool // the first token is an opening one
	concurrently bool
	chain        bool
	tablespace   bool
	escapes      bool  // it has a literal with escapes, whose text isn't known
	update       bool  // the word UPDATE
	settings     bool  // the name pg_settings
	setConfig    uint8 // 1 behind the name set_config, 2 behind its parenthesis, 3 behind a literal there, 4 behind the comma
	setting      settingStage
	calls        int  // of set_config
	opens        int  // parentheses
	other        bool // a token that SELECT set_config('…', …, …) doesn't have
	localCalls   int  // calls with true as the last argument, if certain
}

// maxWord is the length of the longest word that the package compares.
const maxWord = 16

// leadingWord is a folded unquoted word, "" for any other token.
type leadingWord struct {
	b [maxWord]byte
	n uint8
}

func (w *leadingWord) text() []byte        { return w.b[:w.n] }
func (w *leadingWord) is(word string) bool { return string(w.b[:w.n]) == word }

func fold(text []byte) (w leadingWord) {
	if len(text) > maxWord {
		return w
	}
	for i, c := range text {
		w.b[i] = lower[c]
	}
	w.n = uint8(len(text))
	return w
}

// word handles an unquoted name or keyword.
func (s *Scanner) word(start, end int) {
	st := &s.st
	w := fold(s.text[start:end])
	s.beginToken(word, start, end)
	if st.n < len(st.words) {
		st.words[st.n] = w
	}
	if st.n == 1 {
		st.name = [2]int{start, end}
	}
	switch string(w.text()) {
	case "concurrently":
		st.concurrently = true
	case "tablespace":
		st.tablespace = st.tablespace || st.prevWord.is("set")
	case "update":
		st.update = true
	case "execute":
		st.flags |= Executes
	case "chain":
		st.chain = st.prevWord.is("and")
	case "atomic":
		if st.prevWord.is("begin") && st.depth == 0 && st.createsRoutine() {
			st.atomic++
		}
	case "end":
		// The END of a CASE never stands behind a semicolon.
		if st.atomic > 0 && st.depth == 0 && (st.prev == semicolon || st.prevWord.is("atomic")) {
			st.atomic--
		}
	}
	st.other = st.other || !setConfigWords[string(w.text())]
	s.noteName(start, end)
	s.advance(word, w)
}

// setConfigWords are those of a statement that calls set_config and nothing else.
var setConfigWords = set("select", "pg_catalog", "set_config", "true", "false", "text")

// name handles a quoted name.
func (s *Scanner) name(k kind, start, end int) {
	s.beginToken(k, start, end)
	s.st.other = true
	if k == unicode {
		s.st.flags |= SetsVariable | Unlocks | Executes | NamesReadOnly // it may be any name
	}
	s.noteName(start, end)
	s.advance(k, leadingWord{})
}

// noteName records what a name mentions.
func (s *Scanner) noteName(start, end int) {
	if s.found == 0 {
		return
	}
	text := s.text[start:end]
	switch m := mentioned(text); {
	case m&mentionsSetConfig != 0 && (len(text) == len("set_config") || len(text) == len(`"set_config"`)):
		s.st.setConfig, s.st.calls = 1, s.st.calls+1
		s.noteMentions(m &^ mentionsSetConfig)
	default:
		s.noteMentions(m)
	}
}

// token handles a token that isn't a name.
func (s *Scanner) token(k kind, start, end int) {
	st := &s.st
	if k == semicolon && st.depth == 0 && st.atomic == 0 {
		s.finish()
		return
	}
	s.beginToken(k, start, end)
	switch k {
	case open, closing, comma, literal, param, cast, dot:
	default:
		st.other = true
	}
	switch k {
	case open:
		st.opens++
		st.parenthesis = st.parenthesis || st.n == 0
		st.depth++
	case closing:
		st.depth = max(st.depth-1, 0)
	case literal, escaped:
		st.escapes = st.escapes || k == escaped
		if s.found != 0 {
			m := mentioned(s.text[start:end])
			if m&mentionsSetConfig != 0 {
				st.flags |= SetsVariable // most likely the text of a function
			}
			st.prepares = st.prepares || m&mentionsPrepare != 0
			s.noteMentions(m)
		}
	}
	s.advance(k, leadingWord{})
}

// beginToken records a token's offsets.
func (s *Scanner) beginToken(k kind, start, end int) {
	st := &s.st
	if st.n == 0 {
		st.start = start
	}
	if st.n == 2 {
		st.third = k
	}
	st.end = end
	if st.setConfig != 0 {
		s.setConfigNext(k, s.text[start:end])
	}
	if s.found&mentionsFence != 0 {
		s.settingNext(k, s.text[start:end])
	}
}

func (s *Scanner) advance(k kind, w leadingWord) {
	s.st.prev, s.st.prevWord = k, w
	s.st.n++
}

// setConfigNext handles a token behind the name set_config. Only a plain literal as the
// first argument tells the variable.
func (s *Scanner) setConfigNext(k kind, text []byte) {
	st := &s.st
	switch {
	case st.setConfig == 1 && k == open:
		st.setConfig = 2
	case st.setConfig == 2 && k == literal && bytes.IndexByte(text, '\\') < 0:
		if mentioned(text)&mentionsFence != 0 {
			st.flags |= SetsVariable
		}
		s.setting = append(s.setting[:0], bytes.Trim(text, "'")...)
		st.setConfig = 3
	case st.setConfig == 3 && k == comma:
		s.checkSettingName(s.setting)
		st.setConfig = 4
	case st.setConfig == 3 && k == cast: // 'wirefence.token'::text, as drivers write it
		s.checkSettingName(s.setting)
		st.flags |= SetsVariable
		st.setConfig = 0
	case st.setConfig == 4:
		if k == closing {
			st.setConfig = 0
			if st.prevWord.is("true") {
				st.localCalls++
			}
		} else if k == open {
			st.setConfig = 0 // an expression; the scanner doesn't follow its arguments
		}
	default:
		st.flags |= SetsVariable
		st.setConfig = 0
	}
}

func (s *Scanner) noteMentions(m mention) {
	st := &s.st
	if m&(mentionsFence) != 0 {
		st.flags |= SetsVariable
	}
	st.settings = st.settings || m&mentionsSettings != 0
	if m&mentionsUnlock != 0 {
		st.flags |= Unlocks
	}
	if m&mentionsReadOnly != 0 {
		st.flags |= NamesReadOnly
	}
	if m&mentionsExecute != 0 {
		st.flags |= Executes
	}
}

// createsRoutine reports whether the statement creates a function or a procedure.
func (st *state) createsRoutine() bool {
	i := 1
	if st.words[1].is("or") {
		i = 3
	}
	return st.words[0].is("create") && (st.words[i].is("function") || st.words[i].is("procedure"))
}

// finish adds the statement that is being read, if there is one, to the result.
func (s *Scanner) finish() {
	st := &s.st
	if st.setting != noSetting {
		s.checkSettingName(s.setting)
	}
	if st.n > 0 {
		class := st.class()
		if st.words[0].is("select") && st.calls == 1 && st.opens == 1 && !st.other {
			class = Free // SET, in another form
		}
		st.addFlags(class)
		out := Statement{Start: st.start, End: st.end, Class: class, Flags: st.flags}
		if st.flags.Has(Stores) {
			out.NameStart, out.NameEnd = st.name[0], st.name[1]
		}
		s.result.Statements = append(s.result.Statements, out)
	}
	s.st = state{}
}

// addFlags adds the flags that depend on the whole statement.
func (st *state) addFlags(class Class) {
	first := &st.words[0]
	all := st.words[1].is("all") || st.words[1].is("prepare") && st.words[2].is("all")
	switch {
	case class == Discards:
		if st.words[1].is("all") {
			st.flags |= Resets | DropsPrepared | Unlocks
		}
	case first.is("reset") && all:
		st.flags |= Resets
	case first.is("create"), first.is("alter"):
		st.flags |= Defines
	case first.is("deallocate") && all:
		st.flags |= DropsPrepared
	case first.is("fetch"), first.is("move"):
		st.flags |= Executes
	case first.is("declare"), first.is("prepare") && class == Ordinary:
		st.flags |= Stores
	case class == Ends:
		if first.is("commit") || first.is("end") {
			st.flags |= Commits
		}
		if st.chain {
			st.flags |= Chains
		}
	case first.is("do") && st.prepares:
		st.flags |= Renames
	case class == Precedes && (st.words[2].is("snapshot") || st.words[3].is("snapshot")):
		st.flags |= Imports
	case first.is("do") && st.escapes:
		st.flags |= SetsVariable | Unlocks // its text isn't as written
	}
	if st.settings && st.update || st.setConfig != 0 {
		st.flags |= SetsVariable
	}
	if first.is("set") && st.words[1].is("local") || first.is("select") && st.calls == 1 && st.localCalls == 1 {
		st.flags |= Local
	}
}
