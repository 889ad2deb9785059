package policy

import (
	"slices"

	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// setGuarded places what sets the fences of the client's own locks for the transaction: ahead of its
// first statement that may write, and again behind what takes it back. A statement that can't share its
// transaction goes without.
func (f *Facts) setGuarded(m *Message, a *Action) {
	if m.Kind != Query && m.Kind != Execute || f.CurrentBlock() == FailedBlock && !endsBlock(m) {
		return
	}
	alone, set := f.standsAlone(m) && f.CurrentBlock() != InBlock, f.Guarded
	for i := range m.Statements {
		st := &m.Statements[i]
		if !set && !alone && (st.Class == sqltext.Ordinary || st.Class == sqltext.Alone) {
			a.Inserts = append(a.Inserts, Insert{Before: i, Guarded: true})
			set = true
		}
		set = set && keepsGuarded(st)
	}
	// Ahead of the checks of the same statement.
	slices.SortStableFunc(a.Inserts, func(x, y Insert) int {
		switch {
		case x.Before != y.Before:
			return x.Before - y.Before
		case x.Guarded == y.Guarded:
			return 0
		case x.Guarded:
			return -1
		}
		return 1
	})
}

// keepsGuarded reports whether what was set for the transaction still counts behind a statement.
func keepsGuarded(st *sqltext.Statement) bool {
	switch st.Class {
	case sqltext.Begins, sqltext.Ends, sqltext.Undoes, sqltext.PreparesTransaction:
		return false
	}
	return !st.Flags.Has(sqltext.Resets)
}

// BlockBehind returns the state of the transaction block behind a message that succeeds.
func (f *Facts) BlockBehind(m *Message) Block {
	block := f.CurrentBlock()
	for i := range m.Statements {
		block = block.behind(&m.Statements[i])
	}
	return block
}
