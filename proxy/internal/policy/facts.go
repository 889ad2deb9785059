// Package policy decides on a client's message: whether to forward, delay or refuse it,
// where to insert checks, and whether to take or give back the session's hold ahead of it.
// Decide is a pure function of the session's facts and the message; package session
// applies the result.
//
// The rule is: a session that carries a fence runs everything under it, by a check for one
// transaction or by a hold for the session. The package doesn't ask what a statement does.
// It imports only sqltext and fence.
package policy

import (
	"slices"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// Carrier is the source of a message's fence. The zero value carries none.
type Carrier struct {
	// Comment is the text of the fence in the message's comments. It overrides the
	// rest, which is then zero.
	Comment string
	// Variable says that the session variable may hold a fence.
	Variable bool
	// Stamp is the fence of the proxy's own lease. It counts if the variable holds none.
	Stamp string
}

// Carries reports whether there may be a fence.
func (c Carrier) Carries() bool { return c != Carrier{} }

// Block says whether a transaction block is open.
type Block uint8

// The states of a transaction block.
const (
	BlockUnknown Block = iota
	NoBlock
	InBlock
	FailedBlock // the server runs nothing until it ends
)

// Answer is the outcome of an exchange of the proxy's own.
type Answer uint8

// The answers.
const (
	NoAnswer Answer = iota
	Granted         // the fence is held, for this message at least
	Empty           // the session variable holds no fence
	Unheld          // there is a fence, and no hold for it
	Observed        // the proxy or the resources are in shadow mode; the refusal was reported
	Fails           // the exchange raised an error
	Stuck           // the one that was to give the hold back did
)

// HoldState is the state of the session's hold.
type HoldState uint8

// The states of a hold. Only Held counts; in all states but NoHold the server may have the
// locks.
const (
	NoHold   HoldState = iota
	Taking             // asked for, not answered
	Doubted            // the same, and a message behind the question may end it
	Held               // answered, and nothing that was sent since may have ended it
	Doubtful           // to be given back
)

// Asked reports whether the answer to the question for the hold is outstanding.
func (s HoldState) Asked() bool { return s == Taking || s == Doubted }

// HoldEvent is what changes the state of a hold.
type HoldEvent uint8

// The events.
const (
	Asks          HoldEvent = iota // a call that takes the hold is sent, or takes it anew
	Grants                         // the server has answered that it is held
	Declines                       // the server has answered that nothing is held
	AskFails                       // the call raised an error, or was skipped
	Doubts                         // a message is sent that may release it or change the fence
	GivesBack                      // a call that gives it back is sent
	GiveBackFails                  // that call has failed
)

// nextStates has the state behind each event, by the state before.
var nextStates = [...][Doubtful + 1]HoldState{
	// in the order NoHold, Taking, Doubted, Held, Doubtful
	Asks:          {Taking, Taking, Taking, Taking, Taking},
	Grants:        {NoHold, Held, Doubtful, Held, Doubtful},
	Declines:      {NoHold, NoHold, NoHold, Held, Doubtful},
	AskFails:      {NoHold, Doubtful, Doubtful, Held, Doubtful},
	Doubts:        {NoHold, Doubted, Doubted, Doubtful, Doubtful},
	GivesBack:     {NoHold, NoHold, NoHold, NoHold, NoHold},
	GiveBackFails: {Doubtful, Taking, Doubted, Held, Doubtful},
}

// Next returns the state behind an event.
func (s HoldState) Next(e HoldEvent) HoldState { return nextStates[e][s] }

// Hold is the session's hold.
type Hold struct {
	State HoldState
	By    Carrier
	// Over says that a takeover wants a resource of it, or that nobody has said lately that
	// none does.
	Over bool
}

// Batch is the state of the extended protocol since the last Sync.
type Batch struct {
	Open bool
	// Ran says that it has an Execute.
	Ran   bool
	Block Block
	// Checked says that its current transaction has a check for By.
	Checked bool
	// Taken says that proxy_hold for By went ahead of its first statement, and that no
	// later message may have ended the hold or the check.
	Taken bool
	// TakenHere says that this batch asked for the hold; the answers come with its Sync.
	TakenHere bool
	By        Carrier
}

// Pass records that a statement of it is sent.
func (b *Batch) Pass(st *sqltext.Statement) {
	if st.Class.Controls() || changesFence(st) && b.By.Comment == "" {
		b.Checked, b.Taken = false, false
	}
	if st.Flags&(sqltext.Unlocks|sqltext.Imports) != 0 {
		b.Taken = false
	}
	b.Block = b.Block.behind(st) // if it fails, the server skips the rest of the batch
}

// behind returns the state behind a statement that succeeds.
func (b Block) behind(st *sqltext.Statement) Block {
	switch {
	case st.Class == sqltext.Begins, st.Class == sqltext.Undoes, st.Class == sqltext.Ends && st.Flags.Has(sqltext.Chains):
		return InBlock
	case st.Class == sqltext.Ends, st.Class == sqltext.PreparesTransaction:
		return NoBlock
	}
	return b
}

// Transaction is what is known of the open transaction.
type Transaction struct {
	// Fenced says that a group of it ran under a fence. FencedBy is the last one, if it was in a
	// comment and no subtransaction has ended since: ROLLBACK TO takes a check back.
	Fenced   bool
	FencedBy string
	// Judged says that one of them, which was answered, did have a fence.
	Judged bool
	// Checked says that a check of this very transaction, for CheckedBy, covers a message that
	// can't have one.
	Checked   bool
	CheckedBy Carrier
	// Varied says that the session variable may have changed in it, and FenceChanged that this was
	// behind the last check of it. The end of a subtransaction may bring an earlier value back.
	Varied, FenceChanged bool
	// Guarded says that the fences of the client's own locks are set in it.
	Guarded bool
}

// Cover records that it goes on under a check for this carrier, or a hold.
func (t *Transaction) Cover(by Carrier) {
	t.Fenced, t.FencedBy, t.FenceChanged = true, by.Comment, t.FenceChanged && by.Comment != ""
}

// Check records a check in it.
func (t *Transaction) Check(by Carrier) { t.Checked, t.CheckedBy = true, by }

// Insert records what was inserted into it.
func (t *Transaction) Insert(in *Insert) {
	if in.Guarded {
		t.Guarded = true
		return
	}
	t.Check(in.By)
}

// Pass records that a statement is sent in it. first says that nothing has run before.
func (t *Transaction) Pass(st *sqltext.Statement, first bool) {
	t.Checked = t.Checked && !changesFence(st) && (!st.Class.Controls() || st.Class == sqltext.Precedes)
	t.Guarded = t.Guarded && keepsGuarded(st)
	switch {
	case st.Class == sqltext.Ends:
		// If a statement ahead of it fails, the transaction goes on, so what may have
		// changed counts up to the next boundary.
		t.FencedBy = ""
	case st.Class == sqltext.Undoes:
		t.FencedBy, t.FenceChanged = "", t.FenceChanged || t.Varied
	case changesFence(st) && !first:
		t.FenceChanged, t.Varied = true, true
	}
}

// Facts are the session's state when a message comes.
type Facts struct {
	// Shadow says that the proxy only reports refusals.
	Shadow bool
	// Required says that a transaction without a fence may not write.
	Required bool
	// Pooled says that a transaction pooler may stand behind the proxy.
	Pooled bool
	// Schema says that the database has wirefence's functions.
	Schema bool
	// CanHold says that this session can take a hold.
	CanHold bool
	// HoldsIfNeeded says that it takes one only for what a check can't cover.
	HoldsIfNeeded bool
	// HoldNeedsExchange says that only an exchange can take a hold, not a message's own
	// group.
	HoldNeedsExchange bool
	// CallsFunctions says that the client has sent a FunctionCall, as libpq's functions for
	// large objects do, right behind BEGIN.
	CallsFunctions bool

	// Variable and Stamp are those of the Carrier of a message without a comment.
	Variable bool
	Stamp    string
	// SetsGuarded says that each transaction is to have the fences of the client's own locks,
	// for guards.
	SetsGuarded bool

	// Outstanding is the number of outstanding ReadyForQuery. Quiet says that no answer is
	// outstanding and no batch is open.
	Outstanding int
	Quiet       bool
	// OnlyExchangePending says that only an exchange of the proxy's own is outstanding, which
	// leaves no block open.
	OnlyExchangePending bool
	// Block is the state by the last ReadyForQuery.
	Block Block
	Batch Batch
	Transaction

	Hold Hold
	// Last is the carrier of the group before, if that was less than H ago.
	Last Carrier
	// Answer is the outcome of the exchange about the carrier About that was sent ahead of the
	// message, or of its batch.
	Answer Answer
	About  Carrier
}

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages. OtherFirst is another message, if it is the first of its batch.
const (
	Query Kind = iota
	Parse
	Bind
	Describe
	Execute
	FunctionCall
	OtherFirst
)

// Message is a message of the client.
type Message struct {
	Kind Kind
	// Statements are those of a Query, or the one of a Parse, Bind, Describe or Execute.
	Statements []sqltext.Statement
	// Fence is the fence in its comments; FenceErr is set if it can't be read.
	Fence    string
	FenceErr error
	// BySettings says that its text may read differently under other settings.
	BySettings bool
	// TooLarge says that its text isn't read: Statements and Fence are empty.
	TooLarge bool
}

// Carrier returns the carrier of a message with this fence in its comments.
func (f *Facts) Carrier(comment string) Carrier {
	if comment != "" {
		return Carrier{Comment: comment}
	}
	return Carrier{Variable: f.Variable, Stamp: f.Stamp}
}

// answer returns what the exchange ahead of the message has told of this carrier.
func (f *Facts) answer(by Carrier) Answer {
	if f.About != by {
		return NoAnswer
	}
	return f.Answer
}

// HoldCovers reports whether the hold covers messages with this carrier.
func (f *Facts) HoldCovers(by Carrier) bool { return f.Hold.State == Held && f.Hold.By == by }

// Do is what the session does with a message.
type Do uint8

// Take, GiveBack, Observe and Ask are exchanges of the proxy's own ahead of the message; after
// one the session calls Decide again.
const (
	Forward  Do = iota
	Wait        // until an answer has come
	Refuse      // with Refusal
	Take        // take the hold for By, anew if there is one
	GiveBack    // give the hold back
	Observe     // ask what a fence of By would get
	Ask         // ask whether the session variable holds a fence, in the open transaction
)

// Action is the decision on a message.
type Action struct {
	Do Do
	// By is the carrier of the message, or of the exchange.
	By Carrier
	// Needed says that only a hold can cover the message.
	Needed bool
	// Inserts are the checks to insert, by their places.
	Inserts []Insert
	// Held says that the hold covers the message from its beginning.
	Held    bool
	Refusal Refusal
}

// Covers reports whether the message runs under its fence. A check for the hold's own is none.
func (a *Action) Covers() bool {
	return a.Held || slices.ContainsFunc(a.Inserts, func(in Insert) bool { return in.By == a.By && !in.Guarded })
}

// Checks reports whether a check is among its inserts.
func (a *Action) Checks() bool {
	return slices.ContainsFunc(a.Inserts, func(in Insert) bool { return !in.Guarded })
}

// Insert is a check ahead of the statement with an index. Behind the last one is the number
// of statements.
type Insert struct {
	Before int
	By     Carrier
	// Holds says that it asks for the hold, and checks if that can't be had.
	Holds bool
	// Guarded says that it is no check: it sets the fences of the client's own locks for guards.
	Guarded bool
}

// Refusal says why the proxy refuses a message.
type Refusal struct {
	State  fence.SQLState
	Reason Reason
	// Statement is the index of the refused statement.
	Statement int
}

// Reason distinguishes refusals with the same SQLSTATE.
type Reason uint8

// The reasons.
const (
	Plain           Reason = iota
	ByExchange             // taking the hold has raised an error
	NoSchema               // the database can't check a fence
	NotShared              // the statement can't share a transaction with a check
	NotFirst               // it would have to be first in its batch
	StoredFence            // a PREPARE or DECLARE with a fence in its comments
	TransactionKept        // PREPARE TRANSACTION
	EndsUnseen             // COMMIT PREPARED, ROLLBACK PREPARED
	CallUncovered          // a FunctionCall in a transaction without a check
	PooledVariable         // a way to set the session variable that a pooler loses
	TooLarge               // a text above the limit
	UnknownSettings        // a text that reads differently under a setting of the same batch
)
