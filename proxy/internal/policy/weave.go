package policy

import "github.com/wirefence/wirefence/proxy/internal/sqltext"

// endsHold reports whether a hold for by doesn't count after a statement: it may release
// the lock, or change the fence.
func endsHold(st *sqltext.Statement, by Carrier) bool {
	return st.Flags.Has(sqltext.Unlocks) || st.Class == sqltext.Discards || by.Comment == "" && changesFence(st)
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
	if m.Kind != Query && m.Kind != Execute && m.Kind != FunctionCall || f.Hold.State != Held && f.Hold.State != Taking || !f.Fenced || f.Hold.By == by || f.block() == NoBlock && !(f.Batch.Open && f.Batch.Ran) {
		return 0, false
	}
	for i := range m.Statements {
		if st := &m.Statements[i]; st.Class == sqltext.Savepoint || endsHold(st, f.Hold.By) || f.HoldMayEnd {
			return i, true
		}
	}
	return 0, m.Kind == FunctionCall
}

// weave places the checks: ahead of the first statement that isn't transaction control, and
// again after each that is, unless the hold covers the message. In the extended protocol a
// Parse, a Bind and a Describe count as statements, since they evaluate constants and
// check domains. Statements up to the index setter carry no fence.
func (f *Facts) weave(m *Message, by Carrier, setter int, checks []int) Action {
	taken := f.Batch.Open && m.Kind != Query && f.Batch.Taken && f.Batch.By == by && !f.FenceMayChange && !f.HoldMayEnd
	counts := f.HoldCovers(by) || taken
	unsteady := f.FenceMayChange && by.Comment == "" // any statement may change the fence
	checked := f.Batch.Open && m.Kind != Query && f.Batch.Checked && f.Batch.By == by && !unsteady
	fenced := f.Fenced || counts || checked
	ran := f.block() != NoBlock || f.Batch.Open && f.Batch.Ran
	outside := f.block() == NoBlock && !f.Batch.Open
	failed := f.block() == FailedBlock
	runs := m.Kind == Query || m.Kind == Execute
	a := Action{By: by, Checks: checks[:0], Covers: counts}
	for i := range m.Statements {
		st := &m.Statements[i]
		lost := endsHold(st, by) || f.HoldMayEnd
		need := false
		switch {
		case st.Class == sqltext.Ends && st.Flags.Has(sqltext.Commits):
			// COMMIT runs deferred triggers, of statements that carried no fence.
			need = !fenced && !checked && ran && runs
			if need && f.block() == BlockUnknown && f.Outstanding > 0 {
				return Action{Do: Wait} // if the transaction has failed, it only rolls back
			}
		case st.Class.Controls():
		case st.Class == sqltext.Savepoint && outside:
			// SAVEPOINT fails outside of a block.
		case st.Class == sqltext.Free, st.Class == sqltext.Discards:
			// Writes under the hold need another protection before the hold ends.
			need = counts && lost && ran && runs && !checked
		default:
			// The end of a subtransaction releases the locks of a check in it, so a
			// SAVEPOINT needs a check ahead even under a hold.
			need = !checked && (!counts || runs && (lost || st.Class == sqltext.Savepoint))
			if need && m.Kind == Describe && f.block() == BlockUnknown && f.Outstanding > 0 {
				return Action{Do: Wait} // a failed block lets what returns no rows be described
			}
		}
		if need && !failed && (i > setter || f.Required) {
			a.Checks = append(a.Checks, i)
			a.Covers, checked, fenced = true, true, true
		}
		if st.Class.Controls() {
			checked, outside = false, false
			counts = counts && !taken
			failed = failed && !endsClass(st.Class)
		}
		counts = counts && !lost && !st.Flags.Has(sqltext.Imports) && !unsteady
		checked = checked && !unsteady && !st.Flags.Has(sqltext.Imports) && !(by.Comment == "" && changesFence(st))
		ran = true
	}
	return a
}

func endsClass(c sqltext.Class) bool {
	return c == sqltext.Ends || c == sqltext.Undoes || c == sqltext.PreparesTransaction
}
