package session

import (
	_ "embed"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/weave"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Between the proxy and PostgreSQL there may be a connection pooler, and with
// transaction pooling each transaction may run on another server connection.
// What a client sets there beyond a transaction is lost to it, and left to
// whoever comes next. A pooler shows itself by the key it makes up for a client:
// its process id isn't the one that PostgreSQL tells. How it pools can't be told,
// since a lone client may get the same connection every time.
//
// So behind a pooler nothing is believed that another transaction has shown. The
// session remembers what the client has set, by the client's own words; a check
// that reads the session variable in a transaction that hasn't set it demands
// that value, and fails where the pooler has changed the connection. What can't
// be followed in this way is refused. Under session pooling all of it is always
// as it should be.

// Pooling says what stands between the proxy and PostgreSQL.
type Pooling uint8

// By default the session finds out whether there is a pooler, and trusts none.
// PoolingSession is for a pooler that leaves a server connection to one client
// until it goes, PoolingTransaction for one that doesn't.
const (
	PoolingUnknown Pooling = iota
	PoolingSession
	PoolingTransaction
)

//go:embed reset.sql
var resetSQL string

// pool is what a session behind a pooler knows of the session variable. The zero
// value is that of a session on a server connection of its own.
type pool struct {
	on       bool
	asked    bool   // what the session began with
	answered bool   // and that is known
	initial  string // it is this
	believed belief // what the client has set
	pending  belief // what it has set in the open transaction
	sets     bool   // there is such
	erred    bool   // an error has come since the last transaction ended
	keeps    bool   // what is being sent sets it beyond its transaction

	startup string // the value in the startup packet
	carries bool   // there is one
}

// belief is what the client believes the session variable to hold.
type belief struct {
	known bool
	value string
}

// outcome is what the statements of one message do to the belief, if they
// succeed.
type outcome struct {
	steps []effect
	at    int // results that have come
}

type effect struct {
	result int // the number of its result among the message's
	what   effectKind
	belief belief
}

type effectKind uint8

const (
	effectSets effectKind = iota
	effectUndoes
	effectEnds
)

// learnLogin takes in the answer to the question at login.
func (s *Session) learnLogin(columns [][]byte) {
	s.inherits = len(columns[0]) > 0
	if len(columns) > 1 {
		s.schema = columns[1] != nil
	}
	s.pool.on = s.pool.on && (len(columns) < 3 || !s.isOwnBackend(string(columns[2])))
	if len(columns) > 3 {
		s.reached = string(columns[3])
	}
}

// isOwnBackend reports whether the server's process id is the one that the
// client was given.
func (s *Session) isOwnBackend(pid string) bool {
	return s.cfg.Pooling == PoolingUnknown && len(s.key) >= 4 && strconv.FormatUint(uint64(binary.BigEndian.Uint32([]byte(s.key))), 10) == pid
}

// askInitial asks what the session variable is by default: another client may
// have left another value in it. ok is false if there is nothing to ask.
func (s *Session) askInitial() (ok bool) {
	if !s.pool.on || s.pool.asked {
		return false
	}
	s.pool.asked = true
	s.toward = s.appendCommand(s.toward, strings.TrimSpace(resetSQL), ours)
	s.toward = s.appendAside(s.toward, variableSQL, probeInitial)
	return true
}

func (s *Session) learnInitial(value []byte) {
	s.pool.answered, s.pool.initial = true, string(value)
	s.believe(belief{true, s.pool.initial})
}

// admit begins the client's part of a session behind a pooler. It ends one whose
// startup packet carried a fence that the pooler kept to itself.
func (s *Session) admit() {
	if !s.pool.on {
		return
	}
	if !s.pool.answered {
		s.believe(belief{})
	}
	s.inherits = s.variable == carries
	lost := s.pool.carries && (s.pool.startup != s.pool.initial || s.cfg.Pooling == PoolingTransaction)
	if e := s.refusalPooled("the fence in the startup packet did not reach the database"); lost && !s.shadowed(e) {
		s.events.Refused(Refusal{State: fence.CannotBeFenced, Message: e.Message, Detail: e.Detail})
		s.End(*e)
	}
}

func (s *Session) believe(b belief) {
	s.pool.believed = b
	s.variable = carries
	if b.known && b.value == "" {
		s.variable = empty
	}
}

// carrier returns what carries the fence of a message, or of a statement.
func (s *Session) carrier(comment string) weave.Carrier {
	by := weave.Carrier{Comment: comment, Variable: s.variable != empty}
	if s.cfg.Lease != nil {
		by.Leased, by.Stamp = true, s.cfg.Lease.Fence()
	}
	if s.pool.on {
		by.Pooled, by.Expect = true, s.pool.believed.value
		by.Lost = !s.pool.believed.known || s.pool.sets || s.pool.keeps
	}
	return by
}

// describePooled completes the description of a statement behind a pooler.
func (s *Session) describePooled(d *statement, st *sqlscan.Statement, body []byte) {
	if !s.pool.on {
		return
	}
	executed := d.executes && s.setterSQL
	d.step.Setter = false // what a trigger may do is not followed
	d.step.Saves = st.Verb == sqlscan.VerbSavepoint
	d.step.Undoes = st.LosesCheck && st.Verb == sqlscan.VerbRollback
	if !st.Setter && !executed {
		return
	}
	text := string(body[st.Start:st.End])
	set, ok := readSetting(text)
	switch {
	case ok && !executed:
		d.step.Setter, d.step.Sets, d.step.Keeps = true, true, !set.local
		d.keeps = belief{!set.unclear, set.value}
		if set.reset {
			d.keeps = belief{s.pool.answered, s.pool.initial}
		}
		if d.step.Keeps && !set.reset && s.cfg.Pooling == PoolingTransaction {
			d.obscure = "a fence that is set beyond a transaction"
		}
	case executed || !leavesAlone(st, text):
		d.obscure = "this way to set wirefence.token"
	}
}

// follow notes with an entry what a statement does, of whose message it brings
// the result with this number.
func (s *Session) follow(e *replies.Entry[note], d *statement, result int) {
	if !s.pool.on {
		return
	}
	step := effect{result: result, belief: d.keeps}
	switch {
	case d.step.Keeps:
	case d.step.EndsTx:
		step.what = effectEnds
	case d.step.Undoes:
		step.what = effectUndoes
	default:
		return
	}
	if e.Note.outcome == nil {
		e.Note.outcome = &outcome{}
	}
	e.Note.outcome.steps = append(e.Note.outcome.steps, step)
}

// followAll notes with a Query what its statements do. What comes behind it must
// be judged by the outcome.
func (s *Session) followAll(e *replies.Entry[note], plan *weave.Plan) {
	if !s.pool.on {
		return
	}
	for i := range s.stmts {
		s.follow(e, &s.stmts[i], plan.Result(i))
		s.pool.keeps = s.pool.keeps || s.stmts[i].step.Keeps
	}
	s.drained = s.drained || s.bound(plan.After)
	s.pool.keeps = false
}

// bound reports whether what comes next can be judged only by the outcome of
// what was sent.
func (s *Session) bound(covered weave.Coverage) bool {
	return s.pool.on && (s.pool.keeps || s.pool.sets || covered.Bound())
}

// followsSetters reports whether the catalog must be known to see which
// statement sets the variable by a function.
func (s *Session) followsSetters() bool {
	return s.pool.on && s.maySetUnseen()
}

// concluded takes in that a statement of a message has succeeded.
func (s *Session) concluded(o *outcome, msg []byte) {
	for _, step := range o.steps {
		if step.result != o.at {
			continue
		}
		switch step.what {
		case effectSets:
			s.pool.pending, s.pool.sets = step.belief, true
		case effectUndoes:
			s.pool.pending = belief{}
		case effectEnds:
			committed := msg != nil && !strings.HasPrefix(string(msg[wire.HeaderSize:]), "ROLLBACK")
			s.conclude(committed)
		}
	}
	o.at++
}

// conclude ends a transaction: what it has set beyond itself is believed now.
func (s *Session) conclude(committed bool) {
	if s.pool.sets && committed {
		s.believe(s.pool.pending)
	}
	s.pool.sets, s.pool.erred = false, false
}

// refusalPooled words the refusal of what a pooler makes impossible to follow.
func (s *Session) refusalPooled(what string) *wire.Error {
	return &wire.Error{
		Severity: "ERROR", Code: string(fence.CannotBeFenced),
		Message: what,
		Detail:  "There is a connection pooler between Wirefence and PostgreSQL, and under transaction pooling the next transaction may have another server connection.",
		Hint:    "Carry the fence in a comment, or by SET LOCAL in each transaction. If the pooler leaves a server connection to one client until it goes, say pooling=session in WIREFENCE_UPSTREAM.",
	}
}

// refusalElsewhere words the refusal of a write of which nobody can say which
// fence it carries.
func (s *Session) refusalElsewhere() *wire.Error {
	return s.refusalPooled("the session variable wirefence.token is not what this session has set")
}

// elsewhere reports whether an error says that a check has found another value
// in the session variable than the client has set.
func (s *Session) elsewhere(code string, ours bool) bool {
	return s.pool.on && ours && code == weave.VerifyState
}
