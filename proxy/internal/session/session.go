// Package session is the protocol core of one client's session: a state machine
// that is given the bytes of either side and says what to send to which side. It
// does no I/O, starts no goroutines and reads no clock but the one it is given, so
// that it can be driven by whatever reads and writes the sockets, and tested and
// fuzzed without a server.
//
//	client ─► FromClient: frame, read, policy.Decide, apply ─► server
//	                      │ entries in the ledger's queue
//	client ◄─ FromServer: match, swallow, translate ◄─ server
//
// Judging changes nothing, so a message that has to wait is judged anew when an
// answer has come. What a message changes is in apply.go.
package session

import (
	"errors"
	"fmt"
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
	database  string    // as the client has named it
	reached   string    // as the database names itself, once it has said so
	db        *database // what is known of it; nil until then
	phase     phase
	tracked   bool // messages are judged: not in mode off, not on a physical replication connection
	walsender bool // a replication connection that runs SQL, by simple queries alone

	q     ledger.Queue[note]
	freed []*ledger.Woven
	// toward is bytes for the server that FromServer or Tick made.
	toward []byte

	// What the server told.
	tx       byte // status of the last ReadyForQuery
	major    int
	options  sqltext.Options
	schema   bool   // the database had wirefence's functions at login
	standby  bool   // the server is in recovery
	password bool   // it waits for the client's answer to an Authentication message
	proved   bool   // the client has proved who it is already
	key      string // process id and cancel key, as in BackendKeyData
	failed   bool   // a FATAL has passed: the server closes by itself
	farewell *wire.Error

	loginError *wire.Error // with which the server has refused the login

	// The client's direction.
	scanner  sqltext.Scanner
	facts    policy.Facts         // scratch of judge
	checks   []int                // scratch of judge
	single   [1]sqltext.Statement // scratch of judge
	skip     int                  // bytes of the current message that pass unread
	drop     int                  // bytes of the current message that are read and dropped
	over     oversize
	held     bool // input waits for replies
	full     bool // it waits for room in the queue
	skipping bool // after an error the server discards what comes before the next Sync
	done     bool // the client sent Terminate

	// The server's direction.
	skipBack int
	dropBack bool

	batch    batch
	prepared ledger.Names[statement]
	portals  ledger.Names[statement]
	check    preparedCheck
	hold     hold
	own      exchange

	pooled     bool // a transaction pooler may stand between
	localSet   bool // and the client has set the variable in the open transaction
	startup    bool // the startup packet carries a fence
	armed      bool // the session variable may hold a fence
	fresh      bool // the last text to be forwarded ended a transaction and began this one
	chains     bool // the client ends transactions by texts that begin the next
	namedFence bool // a statement or portal has a name, and a fence in its comments
	fenced     bool // a group of the open transaction ran under a fence
	parsed     sqltext.Flags
	stored     sqltext.Flags // of what PREPARE and DECLARE have stored
	last       policy.Carrier
	lastAt     time.Time
	answer     policy.Answer  // of the last exchange, for the message that waits for it
	asked      policy.Carrier // what that was about
	answerErr  *wire.Error

	// startupFence is the fence of the startup packet, while nothing may have set the
	// variable to another.
	startupFence string
	// unknown is an *sqltext.UnknownSettingError if the startup packet names such a setting.
	unknown error

	tracing    *trace // of the message that is being judged
	spareTrace *trace // for the next one

	readOnly   bool // a check has made the transaction READ ONLY
	unfenced   bool // in shadow mode: it would have
	callFailed bool // the check ahead of a FunctionCall did
	streaming  bool // a replication stream is under way

	activity, transactions uint32 // see Standing
	answers                uint32 // ReadyForQuery that have come

	tally  Tally
	timing timing
}

type phase uint8

const (
	login   phase = iota // until the server's first ReadyForQuery
	asking               // the proxy's own questions before the client's first
	serving              // the client's
)

// batch is what was sent since the last Sync.
type batch struct {
	id    uint32
	ended bool // a transaction of the client's
	under cover
	timed bool // it is a sample of timing
	policy.Batch
}

// statement is what the name of a prepared statement or a portal means.
type statement struct {
	text  sqltext.Statement
	empty bool // there is no statement in its text
	doubt bool // SQL may have given its name to another
	fence string
	trace *trace
}

// unseen stands for a statement whose text never came by as one of the extended
// protocol: one that PREPARE or DECLARE has stored, or none. It has no fence in its
// comments, since those are refused, and can't run a statement that has.
func (s *Session) unseen() statement {
	return statement{text: sqltext.Statement{Class: sqltext.Ordinary, Flags: s.parsed | s.stored&(sqltext.SetsVariable|sqltext.Unlocks)}}
}

// odd stands for what has a name beyond ASCII. Which of these are one to PostgreSQL
// depends on two encodings, so it counts as whatever they may mean.
var odd = statement{doubt: true, text: sqltext.Statement{Class: sqltext.Alone, Flags: sqltext.Executes | sqltext.SetsVariable | sqltext.Unlocks}}

func isOdd(name []byte) bool {
	for _, c := range name {
		if c >= 0x80 {
			return true
		}
	}
	return false
}

// note is what a reply's entry remembers.
type note struct {
	role    role
	closes  byte // what a Close is of: 'S' or 'P'
	checked bool // a FunctionCall behind a check of its own
	takes   bool // its first result is that of a check that asks for the hold
	gives   bool // a Parse or Bind of which the ledger of names waits for the outcome
	timed   bool // its ReadyForQuery ends the sample of a group
	tested  bool // the answer to its check ends the sample of a check
	name    string
	woven   *ledger.Woven
	refusal *wire.Error
	trace   *trace
}

// New starts a session for a client's startup packet.
func New(cfg *Config, databases *Databases, startup *wire.Startup, events Events) *Session {
	s := &Session{
		cfg: cfg, databases: databases, events: events,
		database: startup.Database(), tx: wire.Idle,
	}
	s.options.DefaultResource = cfg.DefaultResource
	s.walsender = startup.Replication() && strings.EqualFold(startup.Params["replication"], "database")
	s.tracked = cfg.Mode != Off && (s.walsender || !startup.Replication())
	s.begin(startup.Params)
	return s
}

// LoggedIn reports whether the client has been told that it may send queries.
func (s *Session) LoggedIn() bool { return s.phase == serving }

// WantsPassword reports whether the login waits for a message of the client's,
// or for the rest of one.
func (s *Session) WantsPassword() bool { return s.phase == login && (s.password || s.skip > 0) }

// LoginError is the error with which the server has refused the login, nil if it has
// sent none.
func (s *Session) LoginError() *wire.Error { return s.loginError }

// Proved says that the proxy has authenticated the client and logged it in: the
// server may not ask it for anything more. Otherwise a man in the middle upstream
// could ask for a cleartext password.
func (s *Session) Proved() { s.proved = true }

// Held reports whether the client's input waits for replies of the server:
// the driver must not read on, but call FromClient again with what is left
// after FromServer has returned true.
func (s *Session) Held() bool { return s.held }

// Key returns the process id and the secret key by which a CancelRequest names
// this session, as the server sent them; "" if it sent none.
func (s *Session) Key() string { return s.key }

// Reached returns the name of the database that the session is in, which a pooler may
// have given another; "" before the login has ended, and where nothing has told it.
func (s *Session) Reached() string { return s.reached }

// Done reports whether the client has said goodbye.
func (s *Session) Done() bool { return s.done }

// TakeToServer returns bytes for the server that FromServer or Tick made, for a
// driver that isn't about to call FromClient. They are valid until the next call.
func (s *Session) TakeToServer() []byte {
	b := s.toward
	s.toward = s.toward[:0]
	return b
}

var errProtocol = errors.New("protocol violation")

func (s *Session) violation(format string, args ...any) {
	err := fmt.Errorf("%w: "+format, append([]any{errProtocol}, args...)...)
	s.events.Trouble(err)
	s.End(wire.Error{Code: "08P01", Message: err.Error()})
}

// newWoven returns an empty record, one used before if there is one.
func (s *Session) newWoven() *ledger.Woven {
	if n := len(s.freed); n > 0 {
		w := s.freed[n-1]
		s.freed = s.freed[:n-1]
		w.Reset()
		return w
	}
	return new(ledger.Woven)
}

func (s *Session) free(w *ledger.Woven) {
	if w != nil && len(s.freed) < 4 {
		s.freed = append(s.freed, w)
	}
}
