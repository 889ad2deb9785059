package sqlscan

// aim is how far a statement is read on the way to the name of its Target.
type aim uint8

const (
	aimNext       aim = iota + 1 // the next token is the name
	aimDeallocate                // so it is, but for the word PREPARE before it
	aimLast                      // the last token is the name
	aimAs                        // CREATE: up to its first AS outside of parentheses
	aimExecute                   // right behind that AS
)

// aims says where the verbs that refer to something have its name.
var aims = [256]aim{
	VerbPrepare: aimNext, VerbExecute: aimNext, VerbDeclare: aimNext, VerbClose: aimNext,
	VerbDeallocate: aimDeallocate, VerbFetch: aimLast,
}

// aimFrom begins the search for the target at a statement's first token, or at
// that of what EXPLAIN explains, which refers to nothing but what it executes.
func (st *state) aimFrom(first token, explained bool) {
	switch {
	case first.id == kwExecute:
		st.out.Executes, st.aim = true, aimNext
	case first.id == kwCreate:
		st.aim = aimAs
	case !explained:
		st.aim = aims[st.verb]
	}
}

// aimAt takes the next token on the way to the target's name.
func (st *state) aimAt(t token) {
	switch st.aim {
	case aimAs:
		if t.id == kwAs && st.depth == 0 {
			st.aim = aimExecute
		}
		return
	case aimExecute:
		st.aim = 0
		if t.id == kwExecute {
			st.out.Executes, st.aim = true, aimNext
		}
		return
	case aimDeallocate:
		st.aim = 0
		if t.id == kwPrepare {
			st.aim = aimNext
		}
	case aimNext:
		st.aim = 0
	}
	switch {
	case t.kind == unicode: // an UESCAPE may follow
		st.target, st.aim = t, 0
	case isName(t.kind) && t.cat != reserved:
		st.target = t
	default:
		st.target = token{}
	}
}

// setTarget fills in the target whose name was found, if any.
func (s *Scanner) setTarget() {
	out := &s.st.out
	if s.st.target.kind == none || out.Verb == VerbPrepareTransaction {
		return
	}
	var buf [maxName]byte
	name, known := s.nameOf(s.st.target, &buf)
	if !known {
		out.TargetUnclear = true
		return
	}
	if string(name) != s.last.target {
		s.last.target = string(name)
	}
	out.Target = s.last.target
}
