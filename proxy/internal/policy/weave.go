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
//
// A session that chains its transactions is never outside of one. There the hold is given
// back at the beginning of a transaction, in which nothing is open that COMMIT would run.
//
// A LOCK gets its check behind it: ahead of it, a check would take the snapshot of a
// REPEATABLE READ transaction, which must follow the LOCK.
func (f *Facts) weave(m *Message, by Carrier, setter int, inserts []Insert) Action {
	taken := f.Batch.Open && m.Kind != Query && f.Batch.Taken && f.Batch.By == by && !f.FenceMayChange && !f.HoldMayEnd
	counts := f.HoldCovers(by) || taken
	unsteady := f.FenceMayChange && by.Comment == "" // any statement may change the fence
	checked := f.Batch.Open && m.Kind != Query && f.Batch.Checked && f.Batch.By == by && !unsteady
	fenced := by.Comment != "" && f.FencedBy == by.Comment || by.Comment == "" && f.Fenced && !f.FenceChanged && !unsteady || counts || checked
	ran := f.CurrentBlock() != NoBlock || f.Batch.Open && f.Batch.Ran
	outside := f.CurrentBlock() == NoBlock && !f.Batch.Open
	failed := f.CurrentBlock() == FailedBlock
	unknown := f.CurrentBlock() == BlockUnknown && f.Outstanding > 0
	runs := m.Kind == Query || m.Kind == Execute
	locked := false // a LOCK has no check yet
	fresh, ended, varied := f.FreshChain, false, f.Varied
	if f.Pooled && by.Comment == "" {
		by.Variable = f.Variable // before the text sets it, it is another client's
	}
	a := Action{By: by, Inserts: inserts[:0], Held: counts}
	check := func(before int) {
		a.Inserts = append(a.Inserts, Insert{Before: before, By: by})
		checked, fenced, locked = true, true, false
	}
	for i := range m.Statements {
		st := &m.Statements[i]
		lost := endsHold(st, by) || f.HoldMayEnd
		need := locked
		switch {
		case st.Class == sqltext.Ends && st.Flags.Has(sqltext.Commits):
			// COMMIT runs deferred triggers, of statements that carried no fence, or a check
			// that found none.
			need = !fenced && !checked && ran && runs
			if need && unknown {
				return Action{Do: Wait} // if the transaction has failed, it only rolls back
			}
		case st.Class == sqltext.Ends, st.Class == sqltext.Precedes:
			need = false // one releases the lock of a LOCK, the other may precede the snapshot
		case st.Class.Controls():
		case outside && st.Class == sqltext.Savepoint, st.Class == sqltext.Lock && len(m.Statements) == 1 && (outside || m.Kind == Query && f.CurrentBlock() == NoBlock):
			// It fails outside of a block.
		case st.Class == sqltext.Lock:
			locked = locked || runs && !checked && !(counts && !lost)
			if need = false; locked && unknown {
				return Action{Do: Wait} // outside of a block it fails
			}
		case st.Class == sqltext.Free, st.Class == sqltext.Discards:
			// Writes under the hold need another protection before the hold ends.
			need = counts && lost && ran && runs && !checked
		default:
			// The end of a subtransaction releases the locks of a check in it, so a
			// SAVEPOINT needs a check ahead even under a hold.
			need = !checked && (locked || !counts || runs && (lost || st.Class == sqltext.Savepoint))
			if need && m.Kind == Describe && unknown {
				return Action{Do: Wait} // a failed block lets what returns no rows be described
			}
		}
		if need && !failed && (i > setter || f.Required) && (by.Carries() || f.Required) {
			if fresh && f.Hold.State != NoHold {
				a.Inserts = append(a.Inserts, Insert{Before: i, By: by, GivesBack: true})
			}
			check(i)
		}
		chains := st.Flags.Has(sqltext.Chains) || ended && st.Class == sqltext.Begins
		fresh = chains || fresh && (st.Class == sqltext.Free || st.Class == sqltext.Precedes || st.Class == sqltext.Lock)
		ended = ended || st.Class == sqltext.Ends
		counts = counts && !chains
		if st.Class.Controls() {
			checked, outside = false, false
			locked = locked && st.Class == sqltext.Precedes
			counts = counts && !taken
			failed = failed && !endsClass(st.Class)
		}
		if f.Pooled && by.Comment == "" { // there only SET LOCAL counts
			by.Variable = (by.Variable || st.Flags.Has(sqltext.SetsVariable)) && st.Class != sqltext.Ends
		}
		counts = counts && !lost && !st.Flags.Has(sqltext.Imports) && !unsteady
		steady := !unsteady && !(by.Comment == "" && changesFence(st))
		varied = varied || changesFence(st)
		fenced = fenced && steady && !(st.Class == sqltext.Undoes && (varied || by.Comment != ""))
		checked = checked && steady && !st.Flags.Has(sqltext.Imports)
		ran = true
	}
	if locked && !failed && (by.Carries() || f.Required) {
		check(len(m.Statements))
	}
	return a
}

func endsClass(c sqltext.Class) bool {
	return c == sqltext.Ends || c == sqltext.Undoes || c == sqltext.PreparesTransaction
}
