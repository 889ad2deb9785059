// Package session is the protocol core of one client's session: a state machine that
// takes the bytes of either side and returns the bytes for either side. It does no I/O,
// starts no goroutines and reads only the clock in its Config, so that tests and fuzzers
// need no server, and its driver can change.
//
//	client ─► FromClient: frame, read, policy.Decide, apply ─► server
//	                      │ entries in the ledger's queue
//	client ◄─ FromServer: match, swallow, translate ◄─ server
//
// policy.Decide changes nothing, so a message that has to wait is decided again when an
// answer has come. apply.go has the changes that a forwarded message makes, server.go those
// that an answer makes.
package session

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Session is one client's session from the startup packet on. It is not safe
// for concurrent use; its driver calls it under a lock.
type Session struct {
	cfg       *Config
	databases *Databases
	events    Events
	db        *database // that it is in, nil before the login's answer; a pooler may choose another
	phase     phase
	tracked   bool                                       // messages are judged: not in mode off, not on a physical replication connection
	walsender bool                                       // a replication connection that runs SQL, by simple queries alone
	ownName   string                                     // of the proxy's portal, and the beginning of its statements' names
	at        time.Time                                  // when the driver last called
	fatal     *wire.Error                                // with which the session ends
	confirmed func(at time.Time, server netip.Addr) bool // see RequireLeader; nil without a witness

	login login
	serverState
	outstanding
	protection
	input
	output
	judging

	activity, transactions uint32 // see Standing
	readyCount             uint32 // ReadyForQuery messages so far
	tally                  Tally
	timing                 timing
}

// serverState is what the server has told of itself.
type serverState struct {
	options   sqltext.Options
	schema    schemaState
	standby   bool          // it is in recovery
	pooled    bool          // a transaction pooler may stand between
	address   netip.Addr    // at its end of the connection; zero if it isn't known
	key       string        // process id and cancel key, as in BackendKeyData
	fatalSeen bool          // it has sent a FATAL, and closes the connection
	streaming bool          // a replication stream is under way
	roundTrip time.Duration // the shortest one so far, 0 for none
}

// outstanding is what was sent, and what the server has of it.
type outstanding struct {
	q          ledger.Queue[note]
	spareWoven []*ledger.Woven
	toServer   []byte // made by FromServer or ReleaseHold
	batch      batch
	names      names
	check      preparedCheck
	exchange   exchange
}

// protection is what the session carries, and what covers it.
type protection struct {
	tx             openTransaction
	hold           hold
	variable       variable
	guarded        guarded
	locks          looks // of the client's own advisory locks
	callsFunctions bool  // the client has sent a FunctionCall
	lastCarrier    policy.Carrier
	lastAt         time.Time // of the last group under a fence
	fenced         bool      // a message has run under a fence, or may have
}

// input is the client's direction.
type input struct {
	passLeft   int         // bytes of the current message that are still to be forwarded
	rest       remainder   // how they are read
	dropLeft   int         // bytes of the current message that are still to be discarded
	refused    *wire.Error // why the current message is refused behind that, if it is
	inputWaits bool        // the client's next message waits for replies
	queueFull  bool        // it waits for room in the queue alone
	skipping   bool        // after an error the server discards messages until the next Sync
	terminated bool        // the client sent Terminate
}

// output is the server's direction.
type output struct {
	serverLeft int  // bytes of the current message that are still to come
	dropServer bool // they are not for the client
}

// judging is memory for the message that is being decided.
type judging struct {
	scanner    sqltext.Scanner
	plain      sqltext.Result // of the last text that needed no lexing
	facts      policy.Facts
	inserts    []policy.Insert
	single     [1]sqltext.Statement
	tracing    *trace
	spareTrace *trace // for the next one
}

// login is what the session knows of its login.
type login struct {
	awaitsPassword bool        // the server waits for the client's answer to an Authentication message
	authenticated  bool        // the proxy has authenticated the client
	err            *wire.Error // the server's ErrorResponse
	fenced         bool        // the session variable, or maybe the name, held a fence, which RESET brings back
	fenceAtStartup bool        // the startup packet sets a fence, or the role or the database does
}

// openTransaction is what the session knows of the open transaction.
type openTransaction struct {
	policy.Transaction
	status         byte // of the last ReadyForQuery
	localSet       bool // with a pooler: the client has set the variable in it
	localWasSet    bool // the same, and a statement was sent that ends it
	madeReadOnly   bool // a check has made it READ ONLY
	shadowReadOnly bool // in shadow mode a check would have
}

// variable is what the session knows of the session variable.
type variable struct {
	set    bool   // the client has sent what sets it, or it held a fence at login
	named  bool   // the client has named it, by which a function may set it; or its name looks like a fence
	login  string // its fence at login, "" once that may have changed
	resets bool   // since then the client has sent a text that resets, outside of a transaction
	reset  bool   // the same, and the transaction of the last such text is over
}

// guarded is what the session knows of wirefence.lease, which guards read.
type guarded struct {
	by   string // its value
	lost bool   // that may have changed
}

// names is what the names of statements and portals mean.
type names struct {
	prepared, portals ledger.Names[statement]
	// stored has the effects of all that a PREPARE or DECLARE has stored, and parsed those of all
	// that a Parse has: an EXECUTE may have any of them.
	stored, parsed sqltext.Flags
	prepares       bool // a text had a PREPARE, which may have given a name anew
}

type phase uint8

const (
	loggingIn phase = iota // until the server's first ReadyForQuery
	asking                 // until the answers to the proxy's own questions
	serving                // the client may send queries
)

// batch is the state of the extended protocol since the last Sync.
type batch struct {
	id    uint32
	under cover
	timed bool // it is a sample of timing
	policy.Batch
}

// statement is what a prepared statement's or portal's name stands for.
type statement struct {
	text  sqltext.Statement
	empty bool // its text has no statement
	fence string
	trace *trace
}

// unseen is what a name stands for that no message has given: a plain statement, or nothing, unless
// a text has prepared it.
var unseen = statement{text: sqltext.Statement{Class: sqltext.Ordinary}}

// note is the session's data in an entry of the queue.
type note struct {
	role        role
	takesHold   bool                     // its first result is that of proxy_hold
	behindReset bool                     // its check is behind a text that resets, and nothing between may set the variable
	gives       *ledger.Names[statement] // its outcome decides what name stands for, for a Parse or Bind
	drops       *ledger.Names[statement] // it drops name, by a Close or DEALLOCATE
	groupSample bool                     // its ReadyForQuery ends the timed group
	checkSample bool                     // the answer to its check ends the timed check
	name        string
	woven       *ledger.Woven
	refusal     *wire.Error
	trace       *trace
}

// New starts a session for a client's startup packet.
func New(cfg *Config, databases *Databases, startup *wire.Startup, events Events) *Session {
	s := &Session{cfg: cfg, databases: databases, events: events, at: cfg.Clock()}
	s.tx.status = wire.Idle
	for s.hold.number == 0 { // which marks the holds of direct clients
		s.hold.number = int32(rand.Uint32())
	}
	s.ownName = ownPrefix + strconv.FormatInt(int64(s.hold.number), 10)
	s.options.DefaultResource = cfg.DefaultResource
	s.walsender = startup.Replication() && strings.EqualFold(startup.Params["replication"], "database")
	s.tracked = cfg.Mode != Off && (s.walsender || !startup.Replication())
	s.login.fenceAtStartup = setsFence(startup.Params)
	return s
}

// LoggedIn reports whether the client has been told that it may send queries.
func (s *Session) LoggedIn() bool { return s.phase == serving }

// WantsPassword reports whether the login waits for a message of the client's,
// or for the rest of one.
func (s *Session) WantsPassword() bool {
	return s.phase == loggingIn && (s.login.awaitsPassword || s.passLeft > 0)
}

// LoginError is the error with which the server has refused the login, nil if it has
// sent none.
func (s *Session) LoginError() *wire.Error { return s.login.err }

// MarkAuthenticated says that the proxy has authenticated the client and logged in for
// it. From then on the server must not ask the client for a password: a man in the middle
// upstream could ask for one in clear.
func (s *Session) MarkAuthenticated() { s.login.authenticated = true }

// InputWaits reports whether the client's input waits for replies of the server. Then the
// driver must not read more of it, but call FromClient again with the unused bytes after
// FromServer has returned wake.
func (s *Session) InputWaits() bool { return s.inputWaits }

// Key returns the process id and the secret key by which a CancelRequest names
// this session, as the server sent them; "" if it sent none.
func (s *Session) Key() string { return s.key }

// ActualDatabase returns the name of the session's database. A pooler may map the
// client's name to another. It is "" before the end of the login, and if it isn't known.
func (s *Session) ActualDatabase() string {
	if s.db == nil {
		return ""
	}
	return s.db.name
}

// Terminated reports whether the client has sent Terminate.
func (s *Session) Terminated() bool { return s.terminated }

// TakeToServer returns the bytes for the server that FromServer or ReleaseHold made, for
// a driver that doesn't call FromClient next. They are valid until the next call.
func (s *Session) TakeToServer() []byte {
	b := s.toServer
	s.toServer = s.toServer[:0]
	return b
}

// errProtocol begins the errors of violation.
var errProtocol = errors.New("protocol violation")

// violation ends the session for a protocol violation of either side.
func (s *Session) violation(format string, args ...any) {
	err := fmt.Errorf("%w: "+format, append([]any{errProtocol}, args...)...)
	s.events.Trouble(err)
	s.End(wire.Error{Code: "08P01", Message: err.Error()})
}

// newWoven returns an empty record, one used before if there is one.
func (o *outstanding) newWoven() *ledger.Woven {
	if n := len(o.spareWoven); n > 0 {
		w := o.spareWoven[n-1]
		o.spareWoven = o.spareWoven[:n-1]
		w.Reset()
		return w
	}
	return new(ledger.Woven)
}

func (o *outstanding) recycle(w *ledger.Woven) {
	if w != nil && len(o.spareWoven) < 4 {
		o.spareWoven = append(o.spareWoven, w)
	}
}
