// Package policy decides what becomes of a client's message: whether it is
// forwarded, held back or refused, where checks are put beside it, and whether the
// session's hold is taken or given back ahead of it. Decide is a pure function of
// what is known and of what came; applying the result is the session's.
//
// The rule behind it: a session that carries a fence runs everything under it, by a
// check for one transaction or by a hold for the session. Nothing here asks what a
// statement does. The package imports sqltext and fence alone.
package policy

import (
	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
)

// Carrier is where the fence of a message comes from. The zero value carries none.
type Carrier struct {
	// Comment is the text of the fence in the message's comments. It overrides the
	// rest, which is then zero.
	Comment string
	// Variable says that the session variable may hold a fence.
	Variable bool
	// Stamp is the fence of the proxy's own lease, for where the variable holds none.
	Stamp string
}

// Carries reports whether there may be a fence.
func (c Carrier) Carries() bool { return c != Carrier{} }

// Block says whether a transaction block is open.
type Block uint8

// What may be known of a transaction block.
const (
	BlockUnknown Block = iota
	NoBlock
	InBlock
	FailedBlock // until it ends, the server runs nothing
)

// Answer is what an exchange of the proxy's own has told about the carrier of the
// message that waits for it.
type Answer uint8

// The answers.
const (
	NoAnswer   Answer = iota
	Granted           // the fence is held, for this message at least
	Empty             // the session variable holds no fence
	Filled            // it holds one
	Unheld            // the fence was not held
	Recorded          // a check has recorded it since
	Unholdable        // nor can it be: a resource has reuse = once
	Observed          // in shadow mode, or of resources that are: what there is to tell has been told
	TakeFails         // Facts.Err says why
)

// HoldState is what is known of the session's hold.
type HoldState uint8

// The states of a hold. It counts in Held alone; in all but NoHold the server may
// have the locks.
const (
	NoHold HoldState = iota
	Taking           // asked for, not answered
	Held
	Doubtful // to be given back
)

// Hold is the session's hold.
type Hold struct {
	State HoldState
	By    Carrier
	// Over says that H has passed since it was taken.
	Over bool
}

// Batch is what was sent of the extended protocol since the last Sync.
type Batch struct {
	Open bool
	// Ran says that a statement was executed in it.
	Ran   bool
	Block Block
	// Checked says that a check for By stands in its current transaction.
	Checked bool
	// Taken says that the hold for By was asked for ahead of its first statement, or a
	// check where that can't be had, and that nothing since may have ended either.
	Taken bool
	// Took says that it was asked for in this batch, whose answers come with its Sync.
	TakenHere bool
	By        Carrier
	// Answer is what was told ahead of its first message, about this carrier and no other.
	Answer Answer
	About  Carrier
}

// answer is what was told ahead of the batch about a carrier.
func (b *Batch) answer(by Carrier) Answer {
	if b.About != by {
		return NoAnswer
	}
	return b.Answer
}

// Facts are what is known when a message comes.
type Facts struct {
	// Shadow says that nothing is refused or changed, only told.
	Shadow bool
	// Required says that what carries no fence may not write.
	Required bool
	// Pooled says that a transaction pooler may stand behind the proxy.
	Pooled bool
	// Schema says that the database has wirefence's functions.
	Schema bool
	// Holds says that this session may hold.
	CanHold bool
	// Apart says that a hold must be asked for in an exchange of its own.
	HoldNeedsExchange bool
	// Unsteady says that any statement may set the session variable, by code that is
	// stored in the database or in the session.
	FenceMayChange bool
	// Releases says that any statement may release the hold, by code that is stored in
	// the database.
	HoldMayEnd bool
	// Major is the server's version; 0 is unknown.
	Major int

	// Variable says that the session variable may hold a fence, and Stamp is the
	// fence of the proxy's own lease.
	Variable bool
	Stamp    string

	// Outstanding is how many ReadyForQuery are; Quiet says that nothing at all is,
	// and no batch is open.
	Outstanding int
	Quiet       bool
	// Exchanging says that all that is outstanding is an exchange of the proxy's own,
	// which leaves no block open.
	OnlyExchangePending bool
	// Block is as of the last ReadyForQuery.
	Block Block
	Batch Batch
	// Fresh says that a text which ended the last transaction has begun this one, and
	// nothing has run in it.
	FreshChain bool
	// Fenced says that a group of the open transaction ran under a fence.
	Fenced bool

	Hold Hold
	// Last is the carrier that came with the group before, if that was less than H
	// ago.
	Last Carrier
	// Answer is what the last exchange has told for the message that waits for it.
	Answer Answer

	// NamedFence says that a statement or portal was given a name with a fence in its
	// comments.
	NamedFence bool
}

// Kind is the kind of a message.
type Kind uint8

// The kinds of messages that are judged. Opens is the first message of a batch that
// is none of the others.
const (
	Query Kind = iota
	Parse
	Bind
	Execute
	FunctionCall
	OtherFirst
)

// Message is a message of the client's, as far as it must be known.
type Message struct {
	Kind Kind
	// Statements are those of a Query; the one of a Parse, Bind or Execute.
	Statements []sqltext.Statement
	// Fence is the fence in its comments, and FenceErr why it can't be read.
	Fence    string
	FenceErr error
	// Doubtful says that its name may mean another statement by now.
	Doubtful bool
	// BySettings says that its text may read differently under other settings.
	BySettings bool
	// DropsUnnamed says that the server drops the unnamed statement as it comes.
	DropsUnnamed bool
}

// Carrier returns what carries the fence of a message with this fence in its
// comments.
func (f *Facts) Carrier(comment string) Carrier {
	if comment != "" {
		return Carrier{Comment: comment}
	}
	return Carrier{Variable: f.Variable, Stamp: f.Stamp}
}

// Counts reports whether the hold covers what carries by.
func (f *Facts) HoldCovers(by Carrier) bool { return f.Hold.State == Held && f.Hold.By == by }

// Do is what is to be done.
type Do uint8

// What can be done with a message. After Take, GiveBack, Ask and Observe, exchanges
// of the proxy's own that go ahead of the message, it is judged anew.
const (
	Forward  Do = iota
	Wait        // until an answer has come
	Refuse      // with Refusal
	Take        // take the hold for By, anew if there is one
	GiveBack    // give the hold back
	Ask         // ask whether the session variable holds a fence
	Observe     // check for By, in shadow mode
)

// Action is what becomes of a message.
type Action struct {
	Do Do
	// By is the carrier of the message, or of the exchange.
	By Carrier
	// Checks are the indexes of the statements ahead of which a check goes, ascending.
	Checks []int
	// Guards says that a check for the hold goes ahead of the statement with the index
	// Guard: the statement may release what has protected the transaction so far.
	Guards bool
	Guard  int
	// Takes says that the one check asks for the hold.
	TakesHold bool
	// Covers says that the message runs under a fence.
	Covers  bool
	Refusal Refusal
}

// Refusal is why a message is refused.
type Refusal struct {
	State  fence.SQLState
	Reason Reason
	// Statement is the index of the one that it is about.
	Statement int
}

// Reason tells refusals of one SQLSTATE apart.
type Reason uint8

// The reasons.
const (
	Plain           Reason = iota
	ByTake                 // what taking the hold has raised
	NoSchema               // the database can't check a fence
	NotShared              // the statement can't share a transaction with a check
	NotFirst               // it would have to be first in its batch
	StoredFence            // a PREPARE or DECLARE with a fence in its comments
	HiddenFence            // an EXECUTE or FETCH may run what was given a fence
	TransactionKept        // PREPARE TRANSACTION
	CommitsUnseen          // COMMIT PREPARED
	OpensReadOnly          // a text that names transaction_read_only
	PooledVariable         // a way to set the session variable that a pooler loses
	UnknownSettings        // a text that reads differently under a setting of the same batch
)
