package session

import (
	_ "embed"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// An exchange is a question of the proxy's own, with a ReadyForQuery of its own. It
// is put only where nothing is outstanding, so its Sync ends nothing of the client's.
// It is an extended query under names that the proxy keeps to itself: a simple query
// would drop the client's unnamed statement.

// loginSQL tells what the proxy must know of a session: the session variable, whether the
// schema is there, the backend, the database, and whether the variable is set for the
// role or the database, since behind a pooler another client may have left another value
// in it. A column can be put behind it.
//
//go:embed login.sql
var loginSQL string

const (
	giveBackSQL = "SELECT wirefence.unhold()" // whatever the session may hold
	askSQL      = "SELECT " + carriedSQL
	// interferesSQL is a column.
	interferesSQL = "wirefence.stored_code_interferes()"
	// inReadCommitted goes before a hold in one simple query.
	inReadCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;"
	// untimed goes before a question at login that took longer than the client lets a
	// statement take.
	untimed = "SET LOCAL statement_timeout = 0;"
)

// Names of the proxy's own statements and portal. They are never the unnamed
// ones, which belong to the client from one message to the next.
const (
	ownPrefix   = "_wirefence"
	refusalName = "_wirefence_refusal"
	asideName   = "_wirefence_aside"
	portalName  = "_wirefence"
)

// role says whose message an entry of the queue stands for.
type role uint8

const (
	client   role = iota
	ours          // put in by the proxy: its answer is swallowed
	oursFull      // Parse of a prepared check, by kind
	oursMissing
	oursReadOnly
	oursHolding
	oursCheck // Execute of a check: its error is the client's
	// Of exchanges.
	asksLogin
	asksStored
	asksVariable
	takes
	gives
	observes
	beforeCall // the check ahead of a FunctionCall
)

// exchange is what the one under way has brought so far.
type exchange struct {
	by       role // client: none is under way
	answered bool
	outcome  string
	filled   bool // the session variable holds a fence
	err      *wire.Error
	raised   bool   // by a function of the schema, which has counted it
	again    int    // how often the question was repeated
	stored   bool   // the question at login asks for stored code, too
	era      uint64 // in which stored code was asked for
}

func (s *Session) push(kind ledger.Kind, by role) *note {
	e := s.q.Push(kind)
	e.Note.role = by
	return &e.Note
}

// appendExchange appends a question with its Sync.
func (s *Session) appendExchange(dst []byte, sql string, by role) []byte {
	if s.walsender { // which knows no extended queries
		return s.appendSimple(dst, sql, by)
	}
	s.own = exchange{by: by}
	// A check that failed has left its portal to the aborted transaction.
	dst = wire.AppendClose(dst, 'P', portalName)
	s.push(ledger.Close, ours)
	dst = wire.AppendClose(dst, 'S', asideName)
	s.push(ledger.Close, ours)
	dst = wire.AppendParse(dst, asideName, sql)
	s.push(ledger.Parse, by)
	dst = wire.AppendBind(dst, portalName, asideName)
	s.push(ledger.Bind, by)
	dst = wire.AppendExecute(dst, portalName)
	s.push(ledger.Execute, by)
	dst = wire.AppendClose(dst, 'P', portalName)
	s.push(ledger.Close, ours)
	dst = wire.AppendClose(dst, 'S', asideName)
	s.push(ledger.Close, ours)
	dst = wire.AppendSync(dst)
	s.push(ledger.Sync, by)
	return dst
}

// appendSimple appends a question as a simple query.
func (s *Session) appendSimple(dst []byte, sql string, by role) []byte {
	s.own = exchange{by: by}
	dst = wire.AppendQuery(dst, sql)
	s.push(ledger.Query, by)
	return dst
}

// exchanging reports whether all that is outstanding is an exchange that was put where
// no transaction block is open. It leaves none open either.
func (s *Session) exchanging() bool {
	return s.own.by != client && s.own.by != beforeCall && s.q.Ready() == 1
}

// exchangeFor puts the exchange that an action asks for ahead of the message.
func (s *Session) exchangeFor(a policy.Action, out *Out) {
	mark := len(out.own)
	s.asked = a.By
	s.timeExchange()
	switch a.Do {
	case policy.Take:
		out.own = s.appendTake(out.own, a.By)
	case policy.GiveBack:
		out.own = s.appendGiveBack(out.own)
	case policy.Ask:
		out.own = s.appendExchange(out.own, askSQL, asksVariable)
	case policy.Observe:
		out.own = s.appendExchange(out.own, string(s.appendObserve(nil, &a.By)), observes)
		s.events.Checked()
	}
	out.put(mark)
}

// What the session is known to hold, as wirefence.hold wants to be told.
var holdsNothing, holdsSame = "nothing", "same"

// beginTake notes that the hold is asked for. It returns what the session holds until
// then, nil for whatever pg_locks says.
func (s *Session) beginTake(by policy.Carrier) (has *string) {
	h := &s.hold
	switch {
	case h.state == policy.NoHold:
		has = &holdsNothing
	case h.state == policy.Held && h.by == by:
		has = &holdsSame
	}
	h.state, h.by, h.spoiled, h.since = policy.Taking, by, false, s.cfg.Clock()
	s.events.Checked()
	return has
}

// appendTake asks for the hold, which gives back one that the session has.
func (s *Session) appendTake(dst []byte, by policy.Carrier) []byte {
	has := s.beginTake(by)
	if !s.hold.simple {
		return s.appendExchange(dst, string(s.cfg.call.appendHold(nil, &by, has)), takes)
	}
	return s.appendSimple(dst, inReadCommitted+string(s.cfg.call.appendHold(nil, &by, has)), takes)
}

// appendGiveBack gives the hold back. From here on the session holds nothing.
func (s *Session) appendGiveBack(dst []byte) []byte {
	sql := giveBackSQL
	if s.hold.state == policy.Held {
		sql = string(s.cfg.call.appendGiveBack(nil, &s.hold.by))
	}
	s.hold.state = policy.NoHold
	return s.appendExchange(dst, sql, gives)
}

// told takes in a row of an exchange.
func (s *Session) told(by role, msg []byte) {
	columns := wire.Columns(msg)
	if len(columns) == 0 {
		return
	}
	x := &s.own
	x.answered, x.outcome = true, string(columns[0])
	switch by {
	case takes:
		x.filled = len(columns) > 1 && len(columns[1]) > 0
	case asksVariable:
		x.filled = x.outcome != ""
	case asksLogin:
		s.learnLogin(columns)
	case observes:
		s.checked(msg)
	case beforeCall:
		s.checked(msg)
	}
}

// exchanged handles the ReadyForQuery of an exchange. It reports whether the
// client is to see it: that is the end of its login.
func (s *Session) exchanged(by role) bool {
	s.own.by = client
	s.exchangeEnds()
	switch by {
	case takes:
		s.taken()
	case gives:
		s.givenBack()
	case asksVariable:
		s.answer = policy.Filled
		if s.own.err == nil && !s.own.filled {
			s.answer = policy.Empty
		}
	case observes:
		s.observed()
	case asksLogin:
		return s.loginAnswered()
	case asksStored:
		return s.storedAnswered()
	}
	if !s.held {
		s.answer, s.answerErr = policy.NoAnswer, nil // no message waits for it
	}
	return false
}

// trimmed is the text of an embedded question.
func trimmed(sql string) string { return strings.TrimSpace(sql) }
