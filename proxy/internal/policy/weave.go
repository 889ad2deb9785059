package policy

import "github.com/wirefence/wirefence/proxy/internal/sqltext"

// endsHold reports whether a hold for by doesn't count after a statement: it may release
// the lock, or change the fence.
func endsHold(st *sqltext.Statement, by Carrier) bool {
	return st.Flags.Has(sqltext.Unlocks) || by.Comment == "" && changesFence(st)
}

// changesFence reports whether a statement may change what the session variable holds.
func changesFence(st *sqltext.Statement) bool {
	return st.Flags&(sqltext.SetsVariable|sqltext.Resets) != 0
}

// guard finds the statement that needs a check of the hold's own fence ahead, in a message
// with another fence or none: in a transaction that ran under the hold, a SAVEPOINT or a
// statement that ends the hold.
func (f *Facts) guard(m *Message, by Carrier) (statement int, guards bool) {
	// An unanswered hold may be the only protection of the open batch or its transaction.
	if m.Kind != Query && m.Kind != Execute && m.Kind != FunctionCall || f.Hold.State != Held && !f.Hold.State.Asked() || !f.Fenced || f.Hold.By == by || f.BeginsTransaction() {
		return 0, false
	}
	for i := range m.Statements {
		if st := &m.Statements[i]; st.Class == sqltext.Savepoint || endsHold(st, f.Hold.By) {
			return i, true
		}
	}
	return 0, false
}

// weave places the checks: ahead of the first statement that isn't transaction control, and
// again after each that is, unless the hold covers the message. In the extended protocol a
// Parse, a Bind and a Describe count as statements, since they evaluate constants and
// check domains. Statements up to the index setter carry no fence.
//
// A client that sends FunctionCalls gets a check behind BEGIN, since one may follow at once.
//
// A LOCK gets its check behind it: ahead of it, a check would take the snapshot of a
// REPEATABLE READ transaction, which must follow the LOCK.
func (f *Facts) weave(m *Message, by Carrier, setter int, inserts []Insert) Action {
	if f.Pooled && by.Comment == "" {
		by.Variable = f.Variable // before the text sets it, it is another client's
	}
	c := f.coverage(m, by)
	a := Action{By: by, Inserts: inserts[:0], Held: c.counts}
	for i := range m.Statements {
		st := &m.Statements[i]
		need, wait := c.needs(m, st)
		if wait {
			return Action{Do: Wait}
		}
		if need && c.mayCheck(f) && (i > setter || f.Required) {
			a.Inserts = append(a.Inserts, Insert{Before: i, By: c.by})
			c.checked, c.fenced, c.locked, c.begun = true, true, false, false
		}
		c.pass(f, st)
	}
	if (c.locked || c.begun && f.CallsFunctions && !c.counts) && c.mayCheck(f) {
		a.Inserts = append(a.Inserts, Insert{Before: len(m.Statements), By: c.by})
	}
	return a
}

// coverage is what covers the next statement of a message.
type coverage struct {
	by      Carrier
	counts  bool // the hold does
	taken   bool // the batch has just asked for that hold
	checked bool // a check of the transaction does
	fenced  bool // COMMIT needs no check of its own
	varied  bool // the variable may have changed in the transaction
	locked  bool // a LOCK has no check yet
	runs    bool // the message runs its statements
	ran     bool // something has run in the transaction
	noBlock bool // no block was open at the message
	outside bool // no block and no batch is open
	failed  bool // the open block has failed
	unknown bool // an answer is outstanding that tells the block
	begun   bool // the message has begun a block, and nothing has run in it
}

// coverage returns what covers the first statement of a message.
func (f *Facts) coverage(m *Message, by Carrier) coverage {
	batch := f.Batch.Open && m.Kind != Query && f.Batch.By == by
	c := coverage{
		by: by, varied: f.Varied,
		taken:   batch && f.Batch.Taken,
		runs:    m.Kind == Query || m.Kind == Execute,
		ran:     f.CurrentBlock() != NoBlock || f.Batch.Open && f.Batch.Ran,
		noBlock: f.CurrentBlock() == NoBlock,
		outside: f.CurrentBlock() == NoBlock && !f.Batch.Open,
		failed:  f.CurrentBlock() == FailedBlock,
		unknown: f.CurrentBlock() == BlockUnknown && f.Outstanding > 0,
	}
	c.counts = f.HoldCovers(by) || c.taken
	c.checked = batch && f.Batch.Checked
	c.fenced = by.Comment != "" && f.FencedBy == by.Comment || by.Comment == "" && f.Fenced && !f.FenceChanged || c.counts || c.checked
	return c
}

// mayCheck reports whether a check can go ahead here, and has something to check.
func (c *coverage) mayCheck(f *Facts) bool { return !c.failed && (c.by.Carries() || f.Required) }

// ends reports whether the hold doesn't count behind a statement.
func (c *coverage) ends(st *sqltext.Statement) bool { return endsHold(st, c.by) }

// needs reports whether a statement needs a check ahead, or has to wait for the answer that
// tells.
func (c *coverage) needs(m *Message, st *sqltext.Statement) (need, wait bool) {
	switch {
	case st.Class == sqltext.Ends && st.Flags.Has(sqltext.Commits):
		// COMMIT runs deferred triggers, of statements that carried no fence, or a check that
		// found none, and releases a LOCK. If the transaction has failed, it only rolls back.
		need = (!c.fenced || c.locked) && !c.checked && c.ran && c.runs
		return need, need && c.unknown
	case st.Class == sqltext.Ends, st.Class == sqltext.Precedes:
		return false, false // one releases the lock of a LOCK, the other may precede the snapshot
	case st.Class.Controls(), st.Class == sqltext.Savepoint && (c.outside || !c.runs):
		return c.locked, false // a SAVEPOINT fails outside of a block, and its Parse does nothing
	case st.Class == sqltext.Lock:
		if len(m.Statements) == 1 && (c.outside || m.Kind == Query && c.noBlock) {
			return c.locked, false // it fails outside of a block
		}
		c.locked = c.locked || c.runs && !c.checked && !(c.counts && !c.ends(st))
		return false, c.locked && c.unknown
	case st.Class == sqltext.Free, st.Class == sqltext.Discards:
		// Writes under the hold need another protection before the hold ends, and a LOCK its check
		// before the fence changes.
		return c.locked && c.by.Comment == "" && changesFence(st) || c.counts && c.ends(st) && c.ran && c.runs && !c.checked, false
	}
	// The end of a subtransaction releases the locks of a check in it, so a SAVEPOINT needs a
	// check ahead even under a hold. A failed block lets what returns no rows be described.
	need = !c.checked && (c.locked || !c.counts || c.runs && (c.ends(st) || st.Class == sqltext.Savepoint))
	return need, need && m.Kind == Describe && c.unknown
}

// pass goes behind a statement.
func (c *coverage) pass(f *Facts, st *sqltext.Statement) {
	lost := c.ends(st)
	c.begun = c.runs && st.Class == sqltext.Begins || c.begun && (st.Class == sqltext.Free || st.Class == sqltext.Precedes)
	if st.Class.Controls() {
		c.checked, c.outside = false, false
		c.locked = c.locked && st.Class == sqltext.Precedes
		c.counts = c.counts && !c.taken
		c.failed = c.failed && !endsFailure(*st)
	}
	if f.Pooled && c.by.Comment == "" { // there only SET LOCAL counts
		c.by.Variable = (c.by.Variable || st.Flags.Has(sqltext.Sets)) && st.Class != sqltext.Ends
	}
	steady := !(c.by.Comment == "" && changesFence(st))
	c.varied = c.varied || changesFence(st)
	c.counts = c.counts && !lost && !st.Flags.Has(sqltext.Imports)
	c.fenced = c.fenced && steady && !(st.Class == sqltext.Undoes && (c.varied || c.by.Comment != ""))
	c.checked = c.checked && steady && !st.Flags.Has(sqltext.Imports)
	c.ran = true
}

// endsFailure reports whether a block that has failed goes on, or is over, behind a statement.
func endsFailure(st sqltext.Statement) bool {
	return st.Class == sqltext.Ends || st.Class == sqltext.Undoes || st.Class == sqltext.PreparesTransaction
}
