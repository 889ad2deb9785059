package session

import (
	_ "embed"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// An exchange is a query of the proxy's own, with its own ReadyForQuery. The proxy sends
// it only while nothing is outstanding, so its Sync ends no batch of the client. It is an
// extended query under the proxy's own names: a simple query would drop the client's
// unnamed statement.

// loginSQL reads what the proxy must know of a session: the session variable, whether the
// schema exists, the backend's process id, the database, and whether the variable is set
// for the role or the database, since behind a pooler it may hold another client's value.
// More columns can be appended.
//
//go:embed login.sql
var loginSQL string

const (
	giveBackSQL    = "SELECT wirefence.unhold()" // all that the session may hold
	askVariableSQL = "SELECT " + carriedSQL
	// interferesSQL is a column.
	interferesSQL = "wirefence.stored_code_interferes()"
	// readCommittedSQL precedes a hold in one simple query.
	readCommittedSQL = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;"
	// noTimeoutSQL precedes loginSQL after the client's statement_timeout has ended it.
	noTimeoutSQL = "SET LOCAL statement_timeout = 0;"
)

// Names of the proxy's own statements and portal. They are never the unnamed
// ones, which belong to the client from one message to the next.
const (
	ownPrefix   = "_wirefence"
	refusalName = "_wirefence_refusal"
	asideName   = "_wirefence_aside"
	portalName  = "_wirefence"
)

// role tells the client's messages in the queue from the proxy's own.
type role uint8

const (
	client   role = iota
	ours          // inserted by the proxy: its answer is swallowed
	oursFull      // Parse of a prepared check, by kind
	oursMissing
	oursReadOnly
	oursHolding
	oursCheck // Execute of a check: the client gets its error
	// Of exchanges.
	asksLogin
	asksStored
	asksVariable
	asksHold
	givesBack
	asksObserve
	beforeCall // the check ahead of a FunctionCall
)

// exchange is the state of the exchange that is under way.
type exchange struct {
	by             role // client for none
	answered       bool
	outcome        string
	variableFilled bool // the session variable holds a fence
	err            *wire.Error
	raised         bool   // a function of the schema has raised and counted err
	retries        int    // how often the query was repeated
	withStored     bool   // the query at login asks for stored code, too
	era            uint64 // of Databases, when stored code was asked for
}

func (s *Session) push(kind ledger.Kind, by role) *note {
	e := s.q.Push(kind)
	e.Note.role = by
	return &e.Note
}

// appendExchange appends a query as an exchange.
func (s *Session) appendExchange(dst []byte, sql string, by role) []byte {
	if s.walsender { // which knows no extended queries
		return s.appendSimple(dst, sql, by)
	}
	s.exchange = exchange{by: by}
	// A failed check may have left the portal open.
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

// appendSimple appends an exchange as a simple query.
func (s *Session) appendSimple(dst []byte, sql string, by role) []byte {
	s.exchange = exchange{by: by}
	dst = wire.AppendQuery(dst, sql)
	s.push(ledger.Query, by)
	return dst
}

// onlyExchangePending reports whether only an exchange outside of transaction blocks is
// outstanding. It leaves no block open.
func (s *Session) onlyExchangePending() bool {
	return s.exchange.by != client && s.exchange.by != beforeCall && s.q.Ready() == 1
}

// exchangeFor sends the exchange of an action ahead of the message.
func (s *Session) exchangeFor(a policy.Action, out *Out) {
	mark := len(out.own)
	s.answerAbout = a.By
	s.timeExchange()
	switch a.Do {
	case policy.Take:
		out.own = s.appendTake(out.own, a.By)
	case policy.GiveBack:
		out.own = s.appendGiveBack(out.own)
	case policy.Ask:
		out.own = s.appendExchange(out.own, askVariableSQL, asksVariable)
	case policy.Observe:
		out.own = s.appendExchange(out.own, string(s.appendObserve(nil, &a.By)), asksObserve)
		s.events.Checked()
	}
	out.put(mark)
}

// The values of wirefence.hold's parameter for what the session holds.
var holdsNothing, holdsSame = "nothing", "same"

// beginTake records that the hold is being taken. It returns what the session holds before
// that; with nil the server looks into pg_locks.
func (s *Session) beginTake(by policy.Carrier) (has *string) {
	h := &s.hold
	switch {
	case h.state == policy.NoHold:
		has = &holdsNothing
	case h.state == policy.Held && h.by == by:
		has = &holdsSame
	}
	h.state, h.by, h.invalidated, h.since = policy.Taking, by, false, s.cfg.Clock()
	s.events.Checked()
	return has
}

// appendTake appends the exchange that takes the hold. The server gives back an earlier
// one.
func (s *Session) appendTake(dst []byte, by policy.Carrier) []byte {
	has := s.beginTake(by)
	if !s.hold.bySimpleQuery {
		return s.appendExchange(dst, string(s.cfg.call.appendHold(nil, &by, has)), asksHold)
	}
	return s.appendSimple(dst, readCommittedSQL+string(s.cfg.call.appendHold(nil, &by, has)), asksHold)
}

// appendGiveBack appends the exchange that gives the hold back. From here on the session
// counts as without.
func (s *Session) appendGiveBack(dst []byte) []byte {
	sql := giveBackSQL
	if s.hold.state == policy.Held {
		sql = string(s.cfg.call.appendGiveBack(nil, &s.hold.by))
	}
	s.hold.state = policy.NoHold
	return s.appendExchange(dst, sql, givesBack)
}

// handleExchangeRow handles the row of an exchange.
func (s *Session) handleExchangeRow(by role, msg []byte) {
	columns := wire.Columns(msg)
	if len(columns) == 0 {
		return
	}
	x := &s.exchange
	x.answered, x.outcome = true, string(columns[0])
	switch by {
	case asksHold:
		x.variableFilled = len(columns) > 1 && len(columns[1]) > 0
	case asksVariable:
		x.variableFilled = x.outcome != ""
	case asksLogin:
		s.learnLogin(columns)
	case asksObserve:
		s.handleVerdict(msg)
	case beforeCall:
		s.handleVerdict(msg)
	}
}

// finishExchange handles the ReadyForQuery of an exchange. It reports whether the client
// gets the message, as the end of its login.
func (s *Session) finishExchange(by role) bool {
	s.exchange.by = client
	s.finishExchangeSample()
	switch by {
	case asksHold:
		s.finishTake()
	case givesBack:
		s.finishGiveBack()
	case asksVariable:
		s.answer = policy.Filled
		if s.exchange.err == nil && !s.exchange.variableFilled {
			s.answer = policy.Empty
		}
	case asksObserve:
		s.finishObserve()
	case asksLogin:
		return s.loginAnswered()
	case asksStored:
		return s.storedAnswered()
	}
	if !s.inputWaits {
		s.answer, s.answerErr = policy.NoAnswer, nil // no message waits for it
	}
	return false
}

// trimmed returns an embedded query without the white space around it.
func trimmed(sql string) string { return strings.TrimSpace(sql) }
