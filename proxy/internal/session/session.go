// Package session is the protocol core of one client's session: a state machine
// that is given the bytes of either side and says what to send to which side. It
// does no I/O, starts no goroutines and reads no clock but through the catalog
// cache, so that it can be driven by whatever reads and writes the sockets, and
// tested and fuzzed without a server.
//
//	client ─► FromClient: frame, scan, weave ─► server
//	                      │ entries in the reply queue
//	client ◄─ FromServer: match, swallow, translate ◄─ server
package session

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/weave"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Session is one client's session from the startup packet on. It is not safe
// for concurrent use; its driver calls it under a lock.
type Session struct {
	cfg       *Config
	catalogs  *Catalogs
	events    Events
	database  string    // as the client has named it
	reached   string    // as the database names itself, once it has said so
	db        *database // the cache for this database and client_encoding
	phase     phase
	tracked   bool // statements are scanned: not in mode off, not for a walsender
	walsender bool // a replication connection, in another mode than off
	logical   bool // a replication connection to a database, which also runs SQL
	fenced    bool // a replication connection that carries a fence

	q      replies.Queue[note]
	freed  []*weave.Plan
	toward []byte // bytes for the server that FromServer made

	// What the server told.
	tx       byte // status of the last ReadyForQuery
	major    int
	options  sqlscan.Options
	schema   bool   // the database has wirefence's functions
	password bool   // it waits for the client's answer to an Authentication message
	proved   bool   // the client has proved who it is already
	key      string // process id and cancel key, as in BackendKeyData
	failed   bool   // a FATAL has passed: the server closes by itself
	farewell *wire.Error

	// The client's direction.
	scanner  sqlscan.Scanner
	stmts    []statement
	steps    []weave.Step
	skip     int // bytes of the current message that pass unread
	drop     int // bytes of the current message that are read and dropped
	over     oversize
	held     bool // input waits for replies
	skipping bool // after an error the server discards what comes before the next Sync
	drained  bool // hold all input until every reply has come
	begun    bool // the client's BEGIN has run since the last ReadyForQuery
	done     bool // the client sent Terminate

	// The server's direction.
	skipBack   int
	loginAsked int // questions about the catalog at login
	dropBack   bool

	batch      batch
	confirmed  weave.Coverage // as of the last ReadyForQuery
	variable   variable
	epoch      uint32   // counts what may have changed the variable
	changes    uint32   // of the catalog, that are accounted for
	probing    bool     // a probe of the variable is under way
	asked      int      // probes that brought no answer, in a row
	question   question // the catalog query that is under way
	answer     []byte   // what it has brought
	inquiring  bool     // its answer is outstanding
	lexPending bool     // a setting that changes lexing may be under way
	lexTx      bool     // the open transaction may have changed one, which its end or an error undoes
	inTx       bool     // the variable was asked for in the open transaction
	inherits   bool     // the session began with a value of the variable
	setterSQL  bool     // a PREPAREd statement may set the variable
	ddl        bool     // the open transaction changed functions or views
	check      preparedCheck
	prepared   registry // by Parse and PREPARE
	prepares   uint64   // how many PREPAREs there have been
	portals    registry
	cursors    map[string]bool // that DECLARE made, whose query has been seen
	pool       pool
	dirty      bool // a cursor that may write was declared without a fence of its own
	fastpath   bool // the check before a function call failed
	streaming  bool // a replication stream is under way

	activity, transactions uint32 // see Standing
}

type phase uint8

const (
	login   phase = iota // until the server's first ReadyForQuery
	asking               // the proxy's own questions before the client's first
	serving              // the client's
)

// variable is what is known of the session variable's value.
type variable uint8

const (
	unknown variable = iota
	empty
	carries
)

// batch is what was sent since the last Sync.
type batch struct {
	open      bool
	fresh     bool // nothing but what is being handled has been sent yet
	id        uint32
	known     bool // inBlock is certain unless something fails before
	inBlock   bool // in a transaction block
	dead      bool // in an aborted transaction: the server does nothing but end it
	ended     bool // the client has ended a transaction in it
	contained bool // the proxy has put a transaction block around what comes
	opened    bool // it has put one somewhere into it
	covered   weave.Coverage
	view      view // of the catalog, one for the whole batch
}

// note is what a reply's entry remembers.
type note struct {
	role    role
	contain bool // a failure before the Sync may have left a transaction block of the proxy's own
	closes  byte // what a Close is of: 'S' or 'P'
	sql     bool // an SQL DEALLOCATE of name
	name    string
	before  uint64 // PREPAREs that came before this message
	plan    *weave.Plan
	refusal *wire.Error
	covered weave.Coverage
	epoch   uint32
	outcome *outcome // behind a pooler
}

// role says whose message an entry stands for.
type role uint8

const (
	client          role = iota
	ours                 // put in by the proxy: its answer is swallowed
	oursParse            // Parse of the prepared check of writes
	oursParseRead        // and of reads
	oursParseBehind      // and of what stands behind a statement
	oursCheck            // Execute of the prepared check: errors are the client's
	probeVar             // reads the session variable
	probeLogin           // the same and more, before the client's first statement
	probeInitial         // reads what the session variable is by default
	probeStamp           // looks whether the catalog has changed
	probeCatalog         // reads the catalog
	oursEnd              // ReadyForQuery of a batch of the proxy's own
	fastBefore           // the check before a function call, simple protocol
	fastCall             // a function call in a block of the proxy's own
	fastAfter            // the COMMIT behind it
)

// New starts a session for a client's startup packet.
func New(cfg *Config, catalogs *Catalogs, startup *wire.Startup, events Events) *Session {
	s := &Session{
		cfg: cfg, catalogs: catalogs, events: events,
		database: startup.Database(), tx: wire.Idle, schema: true,
	}
	s.db = catalogs.database(s.database, "")
	s.options.DefaultResource = cfg.DefaultResource
	switch {
	case cfg.Mode == Off:
	case startup.Replication():
		s.walsender, s.logical = true, strings.EqualFold(startup.Params["replication"], "database")
		for name, value := range startup.Params {
			s.fenced = s.fenced || strings.EqualFold(name, fence.Variable) ||
				name == "options" && strings.Contains(strings.ToLower(value), fence.Variable)
		}
	default:
		s.tracked = true
		s.pool.on = cfg.Pooling != PoolingSession // until the server's process id is known
		s.pool.startup, s.pool.carries = startupFence(startup.Params)
	}
	return s
}

// LoggedIn reports whether the client has been told that it may send queries.
func (s *Session) LoggedIn() bool { return s.phase == serving }

// WantsPassword reports whether the login waits for a message of the client's,
// or for the rest of one.
func (s *Session) WantsPassword() bool { return s.phase == login && (s.password || s.skip > 0) }

// Proved says that the proxy has authenticated the client and logged it in: the
// server may not ask it for anything more. Whoever sits between the proxy and
// the server could else have its password in clear.
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

// TakeToServer returns bytes for the server that FromServer made, for a driver
// that isn't about to call FromClient. They are valid until the next call.
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

// plan returns a plan to fill, one used before if there is one.
func (s *Session) plan() *weave.Plan {
	if n := len(s.freed); n > 0 {
		p := s.freed[n-1]
		s.freed = s.freed[:n-1]
		return p
	}
	return new(weave.Plan)
}

func (s *Session) free(p *weave.Plan) {
	if p != nil && len(s.freed) < 4 {
		s.freed = append(s.freed, p)
	}
}
