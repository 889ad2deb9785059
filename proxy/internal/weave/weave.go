// Package weave decides where a check goes: before which of a client's
// statements the proxy lets PostgreSQL test the fence. The decisions are pure
// functions; nothing here reads or writes a connection.
//
// The rule behind all of them: every write that carries a fence, or must carry
// one, runs in a transaction in which its fence has been checked, and the check
// still counts. A check stands directly before the first write that needs it,
// never at the head of the text: a SELECT ahead of BEGIN ISOLATION LEVEL
// SERIALIZABLE would make PostgreSQL refuse the BEGIN. What sets the session
// variable and writes, all in one statement, has a second check behind it.
package weave

import "github.com/wirefence/wirefence/fence"

// Step is what a plan must know of one statement.
type Step struct {
	At          int    // byte offset of its first token in the message's text
	Write       bool   // must be checked
	Read        bool   // must be checked as a read, if it carries a fence
	Unfenceable string // the command's name, if no check can cover it
	EndsTx      bool   // what follows is another transaction
	Uncovers    bool   // an earlier check may no longer count
	Setter      bool   // may change the session variable
	Behind      bool   // and may write by what it has set, unchecked: a check stands behind it

	// What matters behind a connection pooler only; else they are false.
	Sets   bool // sets the variable for certain, for this transaction at least
	Keeps  bool // and beyond it
	Saves  bool // a savepoint
	Undoes bool // goes back to one
}

// Carrier is where a message's fence comes from.
type Carrier struct {
	// Comment is the text of the fence in the message's comments, which
	// overrides the session variable.
	Comment string
	// Variable says that the session variable may carry a fence.
	Variable bool

	// Leased says that what carries nothing itself is stamped with Stamp, the fence
	// of the proxy's own lease, which is "" while the lease isn't held.
	Leased bool
	Stamp  string

	// Reads says that it is a read that is checked, which counts for reads only.
	Reads bool
	// Behind says that the check stands behind the statement, and tests nothing
	// where its transaction has written nothing: a function may just have set the
	// variable.
	Behind bool

	// Pooled says that each transaction may run on another server connection,
	// whose session variable is anybody's until the client has set it in the same
	// transaction. Expect is what the client believes it to hold, and Lost says
	// that this isn't known.
	Pooled bool
	Expect string
	Lost   bool
	own    bool // this client has set the variable in this transaction
}

// Carries reports whether there may be a fence at all.
func (c Carrier) Carries() bool { return c.Comment != "" || c.Variable || c.Stamp != "" }

// Unheld reports whether a write must be refused since it carries nothing itself
// and the proxy's own lease isn't held.
func (c Carrier) Unheld() bool { return c.Leased && !c.Carries() }

// In returns the carrier at a point of a transaction.
func (c Carrier) In(v Coverage) Carrier {
	if c.Pooled {
		c.own, c.Lost = v.own, c.Lost || v.lost
		c.Variable = c.own || c.Lost || c.Expect != ""
	}
	return c
}

// After returns the carrier after a statement.
func (c Carrier) After(s Step) Carrier {
	if !c.Pooled {
		c.Variable = c.Variable || s.Setter
	}
	c.Lost = c.Lost || c.Pooled && s.Keeps
	return c
}

// Unknown reports whether the fence is the session variable's, and nobody can
// say whether the one that a check would read is the client's.
func (c Carrier) Unknown() bool { return c.Pooled && c.Comment == "" && c.Lost && !c.own }

// demands reports whether a check must see first that the variable holds what
// the client believes. Where that is nothing, a stamp goes before whatever another
// client has left there.
func (c Carrier) demands() bool { return c.Pooled && c.Comment == "" && !c.own && c.Variable }

// Coverage says which fences the current transaction has been checked for. The
// zero value is none.
type Coverage struct {
	checked checked
	reads   checked // as a read

	// Behind a pooler: this client has set the variable in the transaction; no
	// savepoint stood before that; there is a savepoint; what it has set may have
	// been undone.
	own, solid, saved, lost bool
}

// checked says what checks of one kind have been made for.
type checked struct {
	variable bool   // the session variable was looked at
	stamp    string // what stood in for it, if it was empty
	comment  string
}

func (c checked) covers(by Carrier) bool {
	if by.Comment != "" {
		return c.comment == by.Comment
	}
	return c.stamp == by.Stamp && (c.variable || !by.Variable)
}

func (c *checked) add(by Carrier) {
	if by.Comment != "" {
		c.comment = by.Comment
	} else {
		c.variable, c.stamp = by.Variable, by.Stamp
	}
}

// Covers reports whether a check for this carrier has been made. One for writes
// covers reads, too.
func (c Coverage) Covers(by Carrier) bool {
	return c.checked.covers(by) || by.Reads && c.reads.covers(by)
}

// Add returns the coverage after a check for this carrier.
func (c Coverage) Add(by Carrier) Coverage {
	if by.Reads {
		c.reads.add(by)
	} else {
		c.checked.add(by)
	}
	return c
}

// After returns the coverage after a statement has run.
func (c Coverage) After(s Step) Coverage {
	switch {
	case s.EndsTx:
		return Coverage{}
	case s.Undoes:
		return c.undone()
	case s.Uncovers:
		return Coverage{own: c.own, solid: c.solid, saved: c.saved, lost: c.lost}
	case s.Setter:
		c.checked.variable, c.reads.variable = false, false
	}
	if s.Sets {
		c.own, c.solid, c.lost = true, c.solid || !c.saved, false
	}
	c.saved = c.saved || s.Saves
	return c
}

// undone returns the coverage behind the way back to a savepoint: what was set
// behind it is undone.
func (c Coverage) undone() Coverage {
	return Coverage{own: c.solid, solid: c.solid, saved: true, lost: !c.solid && (c.own || c.lost)}
}

// Aborted returns what counts in a transaction that has failed, when it comes
// back to a savepoint. c was the coverage before the message that failed, and
// sent what would have been behind it.
func (c Coverage) Aborted(sent Coverage) Coverage {
	c.own = c.own || sent.own
	c.lost = c.lost || sent.lost
	return c.undone()
}

// Unchecked returns the coverage without its checks.
func (c Coverage) Unchecked() Coverage {
	c.checked, c.reads = checked{}, checked{}
	return c
}

// Unseen is the coverage of a transaction behind a pooler in which something has
// run that nobody has looked at, or has answered yet: there may be a savepoint.
func Unseen() Coverage { return Coverage{saved: true} }

// Bound reports whether the fence depends on what the client has set in the
// transaction, behind a pooler.
func (c Coverage) Bound() bool { return c.own || c.lost }

// Plan says what becomes of a simple query.
type Plan struct {
	// Inserts are the byte offsets before which a check is put, ascending; the last
	// may be End.
	Inserts []int
	// After is the coverage behind the message, if its transaction goes on.
	After Coverage
	// Refuse is the condition under which nothing of the message may run, and
	// Command the command it is about. Unknown says that the reason is a session
	// variable of which nobody can say whose it is.
	Refuse  fence.SQLState
	Command string
	Unknown bool

	carriers []Carrier // of the checks
	ours     []int     // indexes of the checks among the woven text's results
	chars    []int     // Inserts in characters
	widths   []int     // characters of the checks
	results  int       // results that have come
}

// Query plans a simple query. covered is what the transaction has been checked
// for so far; with required, a write without a fence is refused.
func (p *Plan) Query(steps []Step, by Carrier, covered Coverage, required bool) {
	*p = Plan{Inserts: p.Inserts[:0], carriers: p.carriers[:0], ours: p.ours[:0], chars: p.chars[:0], widths: p.widths[:0]}
	for i, s := range steps {
		if s.Write || s.Read || s.Unfenceable != "" {
			by := by.In(covered)
			by.Reads = !s.Write && s.Unfenceable == ""
			switch {
			case by.Unknown():
				p.Refuse, p.Unknown = fence.CannotBeFenced, true
				return
			case s.Unfenceable != "" && by.Carries():
				p.Refuse, p.Command = fence.CannotBeFenced, s.Unfenceable
				return
			case by.Unheld() && !by.Reads:
				p.Refuse = fence.LeaseNotHeld
				return
			case required && !by.Carries() && !by.Reads:
				p.Refuse = fence.TokenRequired
				return
			case by.Carries() && !covered.Covers(by):
				p.insert(i, s.At, by)
				covered = covered.Add(by)
			}
		}
		covered = covered.After(s)
		by = by.After(s)
		if s.Behind && by.Comment == "" && !by.Pooled {
			behind, at := by, End
			behind.Behind = true
			if i+1 < len(steps) {
				at = steps[i+1].At
			}
			p.insert(i+1, at, behind)
		}
	}
	p.After = covered
}

// insert puts a check before the i-th step, which begins there.
func (p *Plan) insert(i, at int, by Carrier) {
	p.ours = append(p.ours, i+len(p.Inserts))
	p.Inserts = append(p.Inserts, at)
	p.carriers = append(p.carriers, by)
}

// End is where a check stands that comes behind the whole text.
const End = -1

// Rewrite appends text with the checks put in. count counts the characters of a
// part of the text, as PostgreSQL counts them in the position of an error.
func (p *Plan) Rewrite(dst, text []byte, call Call, count func([]byte) int) []byte {
	from := 0
	for i, at := range p.Inserts {
		end := at == End
		if end {
			at = len(text)
		}
		before := 0
		if n := len(p.chars); n > 0 {
			before = p.chars[n-1]
		}
		p.chars = append(p.chars, before+count(text[from:at]))
		dst = append(dst, text[from:at]...)
		start := len(dst)
		if end { // the text may end in a comment, or without a semicolon
			dst = append(dst, "\n;"...)
		}
		dst = call.appendSimple(dst, p.carriers[i])
		p.widths = append(p.widths, len(dst)-start)
		from = at
	}
	return append(dst, text[from:]...)
}

// Ours reports whether the result that comes next is a check's.
func (p *Plan) Ours() bool {
	for _, i := range p.ours {
		if i >= p.results {
			return i == p.results
		}
	}
	return false
}

// Result is the number, among the results of the woven text, of that of the
// client's i-th statement.
func (p *Plan) Result(i int) int {
	n := i
	for k, at := range p.ours {
		if at-k <= i {
			n++
		}
	}
	return n
}

// NextResult notes that a result is complete.
func (p *Plan) NextResult() { p.results++ }

// Position moves an error's position in the woven text back to the client's
// text, both in characters from 1. It returns 0 for a position inside a check.
func (p *Plan) Position(woven int) int {
	back := 0
	for k, at := range p.chars {
		start, width := at+back, p.widths[k] // start: characters before the check
		if woven <= start {
			break
		}
		if woven <= start+width {
			return 0
		}
		back += width
	}
	return woven - back
}
