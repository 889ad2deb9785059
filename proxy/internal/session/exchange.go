package session

import (
	_ "embed"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// An exchange is a query of the proxy's own, with its own ReadyForQuery. The proxy sends
// it only while nothing is outstanding, so its Sync ends no batch of the client. It is an
// extended query under the proxy's own names: a simple query would drop the client's
// unnamed statement.

// loginSQL reads what the proxy must know of a session: the session variable, whether the
// schema is complete, which the function that is created last tells, the backend's process
// id, and the database. Its name is in hexadecimal, since it may have no form in the client's
// encoding. In a new backend each catalog that a query needs costs some 100 µs.
//
//go:embed login.sql
var loginSQL string

// declaredSQL asks, behind a pooler, whether the session variable is set for the role or the
// database: its value may be another client's.
//
//go:embed declared.sql
var declaredSQL string

const (
	// askCarriedSQL asks for the fence in the session variable, or in the name.
	askCarriedSQL  = "SELECT wirefence.carried()"
	askVariableSQL = "SELECT " + carriedSQL
	// askNamesSQL asks whether the fence in a name counts.
	askNamesSQL = "SELECT wirefence.carries_name()"
	// noTimeoutSQL precedes a question at login after the client's statement_timeout has ended it.
	noTimeoutSQL = "SET LOCAL statement_timeout = 0;"
)

// holdSettings precede a hold in its transaction. Its verdict outlives the transaction, so
// an older snapshot must not give it. SET LOCAL and SET TRANSACTION would warn in the
// server's log that there is no transaction block.
var holdSettings = []string{"SET transaction_isolation = 'read committed'", "SET transaction_read_only = off"}

// ownPrefix begins the names of the proxy's own statements and of its portal. They are
// never the unnamed ones, which belong to the client from one message to the next. The
// number of the session's hold follows.
const ownPrefix = "_wirefence_"

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
	asksDeclared
	asksUnlocks
	asksHold
	givesBack
	asksObserve
	asksVariable // the client's block may be open
	setsGuarded
)

// exchange is the state of the exchange that is under way.
type exchange struct {
	by       role // client for none
	began    time.Time
	awaited  bool // it says something about the client's next message, or its batch
	about    policy.Carrier
	answer   policy.Answer
	refusal  *wire.Error // the error behind the answer Fails or Stuck
	answered bool
	verdict  verdict
	keys     []lockKey // of the locks that are held
	unlocks  bool      // functions release advisory locks
	err      *wire.Error
	retries  int // how often the query was repeated
}

func (o *outstanding) push(kind ledger.Kind, by role) *note {
	e := o.q.Push(kind)
	e.Note.role = by
	return &e.Note
}

// appendExchange appends a query as an exchange, behind settings for its transaction.
func (s *Session) appendExchange(dst []byte, by role, sql string, settings ...string) []byte {
	if s.walsender { // which knows no extended queries
		return s.appendSimple(dst, by, sql)
	}
	s.exchange = exchange{by: by, began: s.cfg.Clock()}
	dst = s.appendCloses(dst) // a failed check may have left the portal open
	for _, setting := range settings {
		dst = s.appendCloses(s.appendRun(dst, ours, setting))
	}
	dst = s.appendCloses(s.appendRun(dst, by, sql))
	dst = wire.AppendSync(dst)
	s.push(ledger.Sync, by)
	return dst
}

// appendRun appends a statement under the proxy's names.
func (s *Session) appendRun(dst []byte, by role, sql string) []byte {
	dst = wire.AppendParse(dst, s.ownName, sql)
	s.push(ledger.Parse, by)
	dst = wire.AppendBind(dst, s.ownName, s.ownName)
	s.push(ledger.Bind, by)
	dst = wire.AppendExecute(dst, s.ownName)
	s.push(ledger.Execute, by)
	return dst
}

func (s *Session) appendCloses(dst []byte) []byte {
	for _, what := range []byte("PS") {
		dst = wire.AppendClose(dst, what, s.ownName)
		s.push(ledger.Close, ours)
	}
	return dst
}

// appendSimple appends an exchange as a simple query.
func (s *Session) appendSimple(dst []byte, by role, sql string) []byte {
	s.exchange = exchange{by: by, began: s.cfg.Clock()}
	dst = wire.AppendQuery(dst, sql)
	s.push(ledger.Query, by)
	return dst
}

// onlyExchangePending reports whether only an exchange outside of transaction blocks is
// outstanding. It leaves no block open.
func (o *outstanding) onlyExchangePending() bool {
	return o.exchange.by != client && o.exchange.by != asksVariable && o.q.Ready() == 1
}

// exchangeFor sends the exchange of an action ahead of the message.
func (s *Session) exchangeFor(a policy.Action, out *Out) {
	mark, before := len(out.own), s.exchange
	s.timeExchange()
	switch {
	case a.Do == policy.Take:
		out.own = s.appendTake(out.own, a.By, a.Needed)
	case a.Do == policy.GiveBack:
		out.own = s.appendGiveBack(out.own)
	case !s.hasSchema():
		out.own = s.appendExchange(out.own, asksVariable, askVariableSQL)
	case a.Do == policy.Ask:
		out.own = s.appendExchange(out.own, asksVariable, askCarriedSQL)
	case s.cfg.Mode == Shadow || s.standby:
		out.own = s.appendExchange(out.own, asksObserve, string(s.cfg.call.appendCheck(nil, fullCheck, &a.By)))
		s.events.Checked()
	default:
		out.own = s.appendExchange(out.own, asksObserve, string(s.cfg.call.appendProxyHold(nil, s.hold.number, &a.By, literalOrNull(&holdsNothing), observing)), holdSettings...)
		s.events.Checked()
	}
	out.put(mark)
	s.exchange.awaited, s.exchange.about = true, a.By
	if a.Do == policy.GiveBack && before.awaited && before.about == a.By {
		s.exchange.answer, s.exchange.refusal = before.answer, before.refusal // why it couldn't be held
	}
}

// The values of proxy_hold's parameter for what the session holds already.
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
	h.by, h.asked = by, s.at
	h.change(policy.Asks)
	s.events.Checked()
	return has
}

// appendTake appends the exchange that takes the hold. The server gives back an earlier
// one.
func (s *Session) appendTake(dst []byte, by policy.Carrier, needed bool) []byte {
	manner := exchanging
	if needed {
		manner = needing
	}
	has := literalOrNull(s.beginTake(by))
	return s.appendExchange(dst, asksHold, string(s.cfg.call.appendProxyHold(nil, s.hold.number, &by, has, manner)), holdSettings...)
}

// appendGiveBack appends the exchange that gives the hold back. From here on the session
// counts as without.
func (s *Session) appendGiveBack(dst []byte) []byte {
	sql := appendUnhold(nil, s.hold.number, s.hold.locks)
	s.hold.asked = s.at
	s.hold.change(policy.GivesBack)
	return s.appendExchange(dst, givesBack, string(sql))
}

// handleExchangeRow handles the row of an exchange.
func (s *Session) handleExchangeRow(by role, msg []byte) {
	var room [6][]byte
	row := pgproto3.DataRow{Values: room[:0]}
	if err := row.Decode(msg[wire.HeaderSize:]); err != nil || len(row.Values) == 0 {
		return
	}
	columns := row.Values
	x := &s.exchange
	x.answered = true
	switch by {
	case asksLogin:
		s.learnLogin(columns)
	case asksDeclared:
		s.learnDeclared(string(columns[0]) == "t")
	case asksUnlocks:
		x.unlocks = string(columns[0]) == "t"
	case asksVariable:
		if len(columns[0]) == 0 {
			x.verdict = none
		}
	case asksHold, asksObserve:
		x.verdict, x.keys = s.readVerdict(msg)
	}
}

// finishExchange handles the ReadyForQuery of an exchange. It reports whether the client
// gets the message, as the end of its login.
func (s *Session) finishExchange(by role) bool {
	s.exchange.by = client
	s.noteRoundTrip(s.exchange.began)
	s.finishExchangeSample()
	switch by {
	case asksHold:
		s.finishTake()
	case givesBack:
		s.finishGiveBack()
	case asksObserve, asksVariable:
		s.finishAsk()
	case setsGuarded:
		s.guarded.lost = s.guarded.lost || s.exchange.err != nil
	case asksLogin:
		return s.loginAnswered()
	case asksDeclared:
		return s.declaredAnswered()
	case asksUnlocks:
		return s.unlocksAnswered()
	}
	return false
}

// noteRoundTrip records the time from a question to its answer. The shortest one counts,
// since the server may be busy, or have a takeover to wait for.
func (s *Session) noteRoundTrip(began time.Time) {
	if took := s.at.Sub(began); s.roundTrip == 0 || took < s.roundTrip {
		s.roundTrip = took
	}
}

// trimmed returns an embedded query without the white space around it.
func trimmed(sql string) string { return strings.TrimSpace(sql) }
