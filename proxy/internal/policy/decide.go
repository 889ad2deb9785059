package policy

import (
	"slices"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// Decide decides on a message. It changes nothing; inserts is scratch memory for
// Action.Inserts.
func Decide(f *Facts, m *Message, inserts []Insert) Action {
	a := f.decide(m, inserts)
	if f.SetsGuarded && a.Do == Forward {
		f.setGuarded(m, &a)
	}
	return a
}

func (f *Facts) decide(m *Message, inserts []Insert) Action {
	if m.BySettings {
		switch {
		case f.Batch.Open && f.Batch.Ran:
			return refuse(fence.CannotBeFenced, UnknownSettings, 0)
		case f.Outstanding > 0:
			return Action{Do: Wait}
		}
	}
	by, setter := f.carrier(m)
	if r, refused := f.forbidden(m, by); refused {
		if m.PreparesTransaction() && f.CurrentBlock() == BlockUnknown && f.Outstanding > 0 {
			return Action{Do: Wait} // how to refuse it depends on the block
		}
		return Action{Do: Refuse, By: by, Refusal: r}
	}
	if a, ahead := f.uncoverable(m, by, setter); ahead {
		return a
	}
	a, ahead := f.beforeGroup(m, by)
	if ahead && a.Do == Take && f.canJoinGroup(m, by) {
		return Action{By: by, Inserts: append(inserts[:0], Insert{By: by, Holds: true})}
	}
	if ahead {
		return a
	}
	if f.Shadow && !f.Schema || m.Kind == OtherFirst {
		return Action{By: by}
	}
	guard, guards := f.guard(m, by)
	if guards && f.Outstanding > 0 && f.CurrentBlock() == BlockUnknown {
		return Action{Do: Wait} // the transaction may have ended
	}
	switch {
	case f.CurrentBlock() == FailedBlock && !endsBlock(m):
		return Action{By: by} // the server runs nothing
	case m.Kind == FunctionCall && (guards || by.Carries() || f.Required):
		return f.decideFunctionCall(m, by, guards)
	case !by.Carries() && !f.Required:
		a = Action{By: by, Inserts: inserts[:0]}
	case cleans(m) && f.CurrentBlock() == BlockUnknown && f.Outstanding > 0:
		return Action{Do: Wait} // in a transaction it may need a check
	case cleans(m) && f.BeginsTransaction():
		return Action{By: by}
	case f.standsAlone(m) && f.CurrentBlock() != InBlock:
		if f.Batch.Open && m.Kind != Query && m.Kind != Execute {
			return f.decideBeforeAlone(m, by, inserts)
		}
		return f.decideAlone(m, by)
	default:
		a = f.weave(m, by, setter, inserts)
	}
	if guards && a.Do == Forward {
		a.insertAhead(Insert{Before: guard, By: f.Hold.By})
	}
	return a
}

// insertAhead inserts ahead of the other inserts of the same statement.
func (a *Action) insertAhead(in Insert) {
	i := len(a.Inserts)
	a.Inserts = append(a.Inserts, in)
	for ; i > 0 && a.Inserts[i-1].Before >= in.Before; i-- {
		a.Inserts[i], a.Inserts[i-1] = a.Inserts[i-1], a.Inserts[i]
	}
}

func refuse(state fence.SQLState, reason Reason, statement int) Action {
	return Action{Do: Refuse, Refusal: Refusal{state, reason, statement}}
}

// carrier returns the carrier of a message. If a statement of a Query may set the session
// variable, setter is its index: the variable carries the fence of later statements, and
// the statements up to it carry none. Otherwise setter is -1.
func (f *Facts) carrier(m *Message) (by Carrier, setter int) {
	by = f.Carrier(m.Fence)
	if m.Kind != Query || by.Comment != "" || by.Variable {
		return by, -1
	}
	for i := 0; i < len(m.Statements)-1; i++ {
		if flags := m.Statements[i].Flags; flags.Has(sqltext.Sets) || flags.Has(sqltext.SetsVariable) && f.Schema {
			by.Variable = true
			return by, i
		}
	}
	return by, -1
}

// forbidden refuses messages that neither a check nor a hold can cover.
func (f *Facts) forbidden(m *Message, by Carrier) (Refusal, bool) {
	if m.FenceErr != nil {
		return Refusal{State: fence.MalformedToken}, true
	}
	if m.Fence != "" && !f.Schema {
		return Refusal{State: fence.CannotBeFenced, Reason: NoSchema}, true
	}
	for i := range m.Statements {
		st := &m.Statements[i]
		switch {
		case st.Flags.Has(sqltext.Stores) && m.Fence != "":
			return Refusal{fence.CannotBeFenced, StoredFence, i}, true
		case f.Pooled && st.Flags.Has(sqltext.Sets) && !st.Flags.Has(sqltext.Local):
			return Refusal{fence.CannotBeFenced, PooledVariable, i}, true
		}
	}
	return Refusal{}, false
}

// uncoverable decides on PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED and texts that aren't
// read, which no check can cover: they need a session, and a transaction, without a fence. If only the
// session variable knows, it is asked.
func (f *Facts) uncoverable(m *Message, by Carrier, setter int) (Action, bool) {
	i := slices.IndexFunc(m.Statements, func(st sqltext.Statement) bool {
		return st.Class == sqltext.PreparesTransaction || st.Class == sqltext.EndsPrepared
	})
	if !m.TooLarge && (i < 0 || f.CurrentBlock() == FailedBlock && !slices.ContainsFunc(m.Statements[:i], endsFailure)) {
		return Action{}, false
	}
	reason, suspected := EndsUnseen, by.Variable
	certain := by.Comment != "" || by.Stamp != "" || f.Required || setter >= 0
	switch {
	case m.TooLarge:
		reason, i = TooLarge, 0
		certain = certain || f.Fenced || f.Hold.State != NoHold
	case m.PreparesTransaction():
		reason, suspected = TransactionKept, by.Variable || f.Fenced
		certain = certain || f.Judged || f.FencedBy != ""
	}
	answer := f.answer(by)
	switch {
	case !certain && (!suspected || answer == Empty):
		return Action{}, false
	case m.PreparesTransaction() && f.CurrentBlock() == BlockUnknown && f.Outstanding > 0:
		return Action{Do: Wait}, true
	case !certain && f.Quiet && answer == NoAnswer:
		return Action{Do: Ask, By: by}, true
	case !certain && !f.Batch.Open && f.Outstanding > 0:
		return Action{Do: Wait}, true
	}
	return Action{Do: Refuse, By: by, Refusal: Refusal{fence.CannotBeFenced, reason, i}}, true
}

// beforeGroup decides on an exchange ahead of the first message of a group. The proxy takes
// and gives back a hold only while no answer is outstanding and no transaction is open.
func (f *Facts) beforeGroup(m *Message, by Carrier) (Action, bool) {
	if f.Batch.Open || cleans(m) {
		return Action{}, false
	}
	alone := f.standsAlone(m)
	target := by
	if len(m.Statements) > 0 && m.Statements[0].Class == sqltext.Begins && !by.Carries() {
		target = f.Last // most likely the transaction's fence
	}
	if !f.Quiet || f.Block != NoBlock {
		// A client that pipelines without a pause is held back for a round trip, so that its
		// hold can be given back.
		wait := f.Hold.State == Held && f.Hold.Over || f.Hold.State == Doubtful
		return Action{Do: Wait}, wait && f.Outstanding > 0 && f.Block == NoBlock
	}
	answer := f.answer(target)
	counts := f.HoldCovers(target) && (!f.Hold.Over || answer == Granted)
	needs := alone && by.Carries()
	takes := f.CanHold && answer == NoAnswer && target.Carries() && (needs || target == f.Last && !f.HoldsIfNeeded)
	switch {
	case setsVariable(m):
		// The message may seal or revoke what this session holds, or change the fence.
		if f.Hold.State != NoHold && answer != Granted && answer != Stuck {
			return Action{Do: GiveBack, By: target}, true
		}
		if needs && takes {
			return Action{Do: Take, By: target, Needed: true}, true
		}
	case counts && target.Carries():
	case takes:
		return Action{Do: Take, By: target, Needed: needs}, true
	case f.Hold.State != NoHold && answer != Stuck && (by.Carries() || f.Required || f.Hold.Over || f.Hold.State == Doubtful):
		return Action{Do: GiveBack, By: target}, true
	}
	// Without a hold such a message runs only if it carries no fence, or in shadow mode.
	asks := answer == NoAnswer && alone && !f.HoldCovers(by) && (by.Carries() || f.Shadow && f.Required)
	return Action{Do: Observe, By: by}, asks && (f.Schema || !f.Shadow)
}

// canJoinGroup reports whether proxy_hold can go ahead of the message's first statement,
// in its own group: if it raises, the server skips the group. No statement of the message
// may end the hold or the check.
func (f *Facts) canJoinGroup(m *Message, by Carrier) bool {
	if f.HoldNeedsExchange || !by.Carries() || m.Kind == FunctionCall || m.Kind == OtherFirst || len(m.Statements) == 0 {
		return false
	}
	return !slices.ContainsFunc(m.Statements, func(st sqltext.Statement) bool {
		return st.Class != sqltext.Ordinary || endsHold(&st, by) || changesFence(&st) || st.Flags.Has(sqltext.Imports)
	})
}

// setsVariable reports whether a message may set the session variable; it names wirefence
// or a function that may.
func setsVariable(m *Message) bool {
	return slices.ContainsFunc(m.Statements, func(st sqltext.Statement) bool { return st.Flags.Has(sqltext.SetsVariable) })
}

// cleans reports whether a message is nothing but what pools send between two users, such
// as DISCARD ALL: nothing can go ahead of it.
func cleans(m *Message) bool {
	return len(m.Statements) > 0 && !slices.ContainsFunc(m.Statements, func(st sqltext.Statement) bool { return !st.Flags.Has(sqltext.Cleans) })
}

// PreparesTransaction reports whether a message has a PREPARE TRANSACTION, which ends its
// block even if it fails.
func (m *Message) PreparesTransaction() bool {
	return slices.ContainsFunc(m.Statements, func(st sqltext.Statement) bool { return st.Class == sqltext.PreparesTransaction })
}

func endsBlock(m *Message) bool {
	return slices.ContainsFunc(m.Statements, endsFailure)
}

// standsAlone reports whether a message can't share a transaction with a check. Several
// statements in one text share one in any case.
func (f *Facts) standsAlone(m *Message) bool {
	return m.Kind == FunctionCall || len(m.Statements) == 1 && m.Statements[0].Class == sqltext.Alone
}

// BeginsTransaction reports whether nothing has run in the transaction that the message runs
// in.
func (f *Facts) BeginsTransaction() bool {
	return f.CurrentBlock() == NoBlock && !(f.Batch.Open && f.Batch.Ran)
}

// CurrentBlock returns the state of the transaction block at the message.
func (f *Facts) CurrentBlock() Block {
	switch {
	case f.Batch.Open && f.Batch.Block != BlockUnknown:
		return f.Batch.Block
	case f.Outstanding > 0 && !f.OnlyExchangePending:
		return BlockUnknown
	case f.Batch.Open && f.Batch.Ran:
		return BlockUnknown
	}
	return f.Block
}

// decideAlone decides on a message that can't share a transaction with a check and isn't
// known to be in a block: it needs a hold.
func (f *Facts) decideAlone(m *Message, by Carrier) Action {
	answer := f.answer(by)
	unlocks := len(m.Statements) == 1 && m.Statements[0].Flags.Has(sqltext.Unlocks)
	switch {
	case f.HoldCovers(by) && f.Outstanding > 0 && len(m.Statements) == 1 && endsHold(&m.Statements[0], by):
		return Action{Do: Wait} // in a block it needs a check, for what ran there under the hold
	case f.HoldCovers(by) && unlocks:
		return refuse(fence.CannotBeFenced, NotShared, 0) // it would release what covers it
	case f.HoldCovers(by):
		return Action{By: by, Held: true}
	case f.Outstanding > 0 || f.Hold.State.Asked() && !(f.Batch.Open && f.Batch.TakenHere):
		return Action{Do: Wait}
	case !by.Carries() || answer == Empty:
		if f.Required {
			return refuse(fence.TokenRequired, Plain, 0)
		}
		return Action{By: by}
	case answer == Observed || f.Shadow:
		return Action{By: by}
	case answer == Fails, answer == Stuck:
		return refuse(fence.CannotBeFenced, ByExchange, 0)
	case f.Batch.Open && f.CanHold:
		return refuse(fence.CannotBeFenced, NotFirst, 0)
	}
	return refuse(fence.CannotBeFenced, NotShared, 0)
}

// decideBeforeAlone decides on a Parse, Bind or Describe, within a batch, of a statement
// that can't share a transaction with a check. If its Execute will be refused, a check goes
// ahead, since PostgreSQL evaluates the arguments of a CALL before the Execute.
func (f *Facts) decideBeforeAlone(m *Message, by Carrier, inserts []Insert) Action {
	a := f.decideAlone(m, by)
	switch {
	case a.Do != Refuse:
		return a
	case f.Shadow, f.HoldCovers(by), f.Batch.Checked && f.Batch.By == by:
		return Action{By: by}
	}
	return Action{By: by, Inserts: append(inserts[:0], Insert{By: by})}
}

// decideFunctionCall decides on a FunctionCall, which can't share a message with a check. In a
// block an earlier check of its transaction covers it.
func (f *Facts) decideFunctionCall(m *Message, by Carrier, guards bool) Action {
	switch {
	case guards, f.CurrentBlock() == InBlock && slices.ContainsFunc(m.Statements, func(st sqltext.Statement) bool { return f.HoldCovers(by) && endsHold(&st, by) }):
		return refuse(fence.CannotBeFenced, NotShared, 0) // it would need a check ahead
	case f.HoldCovers(by), f.CurrentBlock() != InBlock && !f.Batch.Open:
		return f.decideAlone(m, by)
	case f.Batch.Open:
		return refuse(fence.CannotBeFenced, NotFirst, 0)
	case f.Outstanding > 0:
		return Action{Do: Wait}
	case f.Checked && f.CheckedBy == by, f.Shadow:
		return Action{By: by}
	}
	return refuse(fence.CannotBeFenced, CallUncovered, 0)
}
