package session

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/model"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// backend is a model of PostgreSQL and of wirefence's functions in it, as far as the
// alphabet of the traffic goes: the messages of both protocols, transactions and
// savepoints, COPY, prepared statements, portals and cursors, the session variable,
// the locks of checks and of holds, READ ONLY, and takeovers, which come at any
// moment at which no lock keeps them out. It answers what it is sent, and judges:
// see judge_test.go.
type backend struct {
	dice     *dice
	major    int
	policy   terms
	violated string // what was wrong; "" is nothing
	in, out  []byte
	emitted  int    // messages that were answered
	log      []took // what it took
	refusals []told // what it is to refuse, see compare_test.go
	unlike   bool   // what comes next can't be compared
	doubted  bool   // what happened to the unnamed statement depends on how a call was refused

	dead     bool // the session is over
	skipping bool // after an error, up to the next Sync
	copying  bool
	// failsCopy says that the next error is that of a CopyFail.
	failsCopy bool
	ran       bool     // an Execute has run since the last Sync
	extended  bool     // the message under way is of the extended protocol
	rest      []string // statements of the Query under way that are still to run
	multi     bool     // that Query has several statements
	carried   []string // the fences in that Query's comments
	called    bool     // by a FunctionCall
	checkable bool     // one of its statements is a LOCK or BEGIN, which may have a check behind

	tx         transaction
	token      setting // wirefence.token
	initial    string  // what RESET makes of it
	escapes    bool    // standard_conforming_strings is off
	reported   bool    // as the client was told
	statements map[string]preparedText
	portals    map[string]*portal
	cursors    map[string]cursor // SQL's
	gid        bool              // there is a prepared transaction

	id      string   // in steps
	primary *primary // shared with other backends; nil: takeovers come by the dice
	resume  func()   // goes on with a message that waits for a lock

	held       map[mark]bool   // what wirefence.proxy_hold has passed
	lingering  map[string]bool // resources of a hold that was cancelled
	superseded map[string]bool // resources whose token 2 is stale
}

// mark is a pair that a proxy holds, by its number.
type mark struct{ by, pair string }

// terms are what the model has to know of the configuration and of the database.
type terms struct {
	enforced  bool // else no statement is judged
	required  bool // a write without a fence is wrong
	leased    bool // so is one that isn't covered by the fence of the proxy's lease
	schema    bool // wirefence's functions are there
	unlockers bool // there is a function that releases advisory locks
	failing   bool // the proxy's own questions fail now and then
	snapshots bool // default_transaction_isolation is repeatable read
}

// setting is a variable's value: SET LOCAL's, if there is one, hides the other.
type setting struct {
	value string
	local *string
}

func (s setting) now() string {
	if s.local != nil {
		return *s.local
	}
	return s.value
}

// transaction is what a rollback undoes, and what a check is good for.
type transaction struct {
	began    bool
	block    byte // 0, 'T' or 'E'
	piped    bool // an Execute has run in it
	queried  bool // its first snapshot is taken
	snapshot bool // or a check may have taken it: ahead of a Parse, or behind LOCK
	frozen   bool // every statement has the first one's snapshot
	version  int  // of the rows of resource_locks in that
	current  bool // it was made READ COMMITTED
	token    setting
	escapes  bool
	saves    []savepoint
	state
}

// state is what ROLLBACK TO takes back, too.
type state struct {
	checked  map[string]bool // pairs of fences
	wrote    []string        // pairs that it has written by
	locked   []string        // the same of LOCK
	deferred bool            // a trigger will write at its end
	stamped  bool            // it has written under the lease's fence
	readOnly bool
}

func (s state) clone() state {
	s.checked, s.wrote, s.locked = maps.Clone(s.checked), slices.Clone(s.wrote), slices.Clone(s.locked)
	return s
}

type savepoint struct {
	token   setting
	escapes bool
	state   state
	cursors map[string]cursor
}

// cursor is one of SQL's, over a query that writes. Its fence is the one under which
// it was declared.
type cursor struct {
	hold    bool
	carried []string
}

type preparedText struct {
	text    string
	carried []string
}

type portal struct {
	preparedText
	parameters []*string
	ran        bool
	left       int // rows
	tag        string
}

func newBackend(d *dice, major int, p terms, token string) *backend {
	return &backend{
		dice: d, major: major, policy: p, token: setting{value: token}, initial: token,
		statements: map[string]preparedText{}, portals: map[string]*portal{}, cursors: map[string]cursor{},
		held: map[mark]bool{}, lingering: map[string]bool{}, superseded: map[string]bool{},
	}
}

// greet is what a server says up to its first ReadyForQuery.
func (b *backend) greet() {
	b.say(wire.Authentication, "\x00\x00\x00\x00")
	b.say(wire.ParameterStatus, "client_encoding\x00UTF8\x00")
	b.say(wire.ParameterStatus, "standard_conforming_strings\x00on\x00")
	b.say(wire.ParameterStatus, fmt.Sprintf("server_version\x00%d.1\x00", b.major))
	b.say(wire.BackendKeyData, "pid.key.")
	b.say(wire.ReadyForQuery, "I")
}

// tale is what the server took, for a failure's text.
func (b *backend) tale() string {
	text := "\nthe server took"
	for _, m := range b.log[1+slices.Index(b.log, loggedIn):] { // the login is always the same
		text += fmt.Sprintf("\n\t%c %.120q", m.typ, m.body)
	}
	return text
}

// took is a message that the server took, or a remark.
type took struct {
	typ  byte
	body string
}

var loggedIn = took{'-', "logged in"}

func (b *backend) say(typ byte, body string) {
	b.emitted++
	b.out = append(b.out, message(typ, body)...)
}

func (b *backend) complain(severity, code string) {
	routine := ""
	if b.failsCopy {
		routine, b.failsCopy = "R"+copyFailed+"\x00", false
	}
	b.say(wire.ErrorResponse, "S"+severity+"\x00V"+severity+"\x00C"+code+"\x00Mfailed\x00"+routine+"\x00")
}

func (b *backend) warn(code string) {
	b.say(wire.NoticeResponse, "SWARNING\x00VWARNING\x00C"+code+"\x00Mwarned\x00\x00")
}

// feed takes bytes that were sent to the server.
func (b *backend) feed(bytes []byte) {
	b.in = append(b.in, bytes...)
	for len(b.in) >= wire.HeaderSize && !b.dead && b.violated == "" && b.resume == nil {
		size := int(int32(binary.BigEndian.Uint32(b.in[1:]))) + 1
		if size < wire.HeaderSize || size > 1<<20 || !strings.ContainsRune("QPBDECHSFXdcf", rune(b.in[0])) {
			b.violated = fmt.Sprintf("what reaches the server is no message: %.20q", b.in)
			return
		}
		if len(b.in) < size {
			return
		}
		typ, body := b.in[0], string(b.in[wire.HeaderSize:size])
		b.log = append(b.log, took{typ, body})
		b.in = b.in[size:]
		b.take(typ, body)
	}
}

func (b *backend) take(typ byte, body string) {
	b.takeover()
	b.called = b.called || typ == wire.FunctionCall
	if b.copying {
		b.takeCopy(typ, body)
		return
	}
	if b.skipping && typ != wire.Sync && typ != wire.Terminate {
		return
	}
	b.extended = strings.ContainsRune("PBDEC", rune(typ))
	if (b.extended || typ == wire.Query || typ == wire.FunctionCall) && len(b.refusals) > 0 && b.refuses(b.firstOf(typ, body)) {
		if typ == wire.Query {
			b.dropUnnamed()
		}
		b.doubted = b.doubted || typ == wire.FunctionCall
		return
	}
	switch typ {
	case wire.Query:
		b.query(body)
	case wire.Parse:
		b.parse(body)
	case wire.Bind:
		b.bind(body)
	case wire.Describe:
		b.describe(body)
	case wire.Execute:
		b.execute(body)
	case wire.Close:
		b.close(body)
	case wire.FunctionCall:
		b.call(body)
	case wire.Sync:
		b.skipping, b.ran = false, false
		b.endImplicit()
		b.ready()
	case wire.Terminate:
		b.dead = true
	}
}

// takeCopy takes a message in copy-in mode.
func (b *backend) takeCopy(typ byte, body string) {
	switch typ {
	case wire.CopyData:
		if body == "bad" {
			b.copying = false
			b.fail("22P04")
		}
	case wire.CopyDone:
		b.copying = false
		b.say(wire.CommandComplete, "COPY 1\x00")
		if b.extended {
			b.tx.piped, b.ran = true, true
		} else {
			b.goOn()
		}
	case wire.CopyFail:
		b.copying, b.failsCopy = false, true
		b.fail(queryCanceled)
	case wire.Flush, wire.Sync:
	case wire.Terminate:
		b.dead = true
	default:
		b.complain("ERROR", "08P01")
		b.complain("FATAL", "08P01")
		b.dead = true
	}
}

// fail ends a message with an error.
func (b *backend) fail(code string) {
	b.complain("ERROR", code)
	switch {
	case b.tx.block == 0:
		b.rollback()
	case len(b.tx.saves) == 0:
		b.tx.block = 'E'
		b.restore(state{checked: map[string]bool{}})
	default:
		b.tx.block = 'E'
		b.restore(b.tx.saves[len(b.tx.saves)-1].state.clone())
	}
	b.rest, b.multi = nil, false
	if b.extended {
		b.skipping = true
	} else {
		b.ready()
	}
}

func (b *backend) ready() {
	b.judgeLocks()
	if b.escapes != b.reported {
		b.reported = b.escapes
		b.say(wire.ParameterStatus, "standard_conforming_strings\x00"+map[bool]string{true: "off", false: "on"}[b.escapes]+"\x00")
	}
	status := b.tx.block
	if status == 0 {
		status = 'I'
	}
	b.say(wire.ReadyForQuery, string(status))
}

// looks takes the transaction's first snapshot.
func (b *backend) looks() {
	if !b.tx.queried && b.primary != nil {
		b.tx.version = b.primary.version
	}
	b.tx.queried = true
}

// begin starts a transaction, where there is none.
func (b *backend) begin() {
	if !b.tx.began {
		b.tx = transaction{began: true, token: b.token, escapes: b.escapes, state: state{checked: map[string]bool{}}}
	}
}

func (b *backend) commit() {
	b.judgeCommit()
	b.token.local = nil
	b.endTransaction()
}

func (b *backend) rollback() {
	if b.tx.began {
		b.token, b.escapes = b.tx.token, b.tx.escapes
	}
	b.endTransaction()
}

func (b *backend) endTransaction() {
	if b.tx.began {
		b.step(model.Ended, "")
	}
	b.tx = transaction{}
	clear(b.portals)
	maps.DeleteFunc(b.cursors, func(_ string, c cursor) bool { return !c.hold })
}

// endImplicit commits what is in no block.
func (b *backend) endImplicit() {
	if b.tx.began && b.tx.block == 0 {
		b.commit()
	}
}

func (b *backend) dropUnnamed() {
	delete(b.statements, "")
	delete(b.portals, "")
	b.doubted = false
}

func (b *backend) query(body string) {
	b.dropUnnamed()
	text, ok := strings.CutSuffix(body, "\x00")
	if !ok || strings.Contains(text, "\x00") {
		b.fail("08P01")
		return
	}
	statements, carried := b.split(text)
	for _, sql := range statements {
		if !b.known(sql) {
			b.fail("42601")
			return
		}
	}
	b.rest, b.carried, b.multi = statements, carried, len(statements) > 1
	b.checkable = slices.ContainsFunc(statements, b.checkedBehind)
	if len(statements) == 0 {
		b.say(wire.EmptyQueryResponse, "")
	}
	b.goOn()
}

// goOn runs what is left of a Query.
func (b *backend) goOn() {
	for len(b.rest) > 0 {
		sql := b.rest[0]
		if b.refuses(sql) {
			return
		}
		b.begin()
		r := b.run(preparedText{sql, b.carried}, nil)
		if r.code == waiting {
			b.resume = b.goOn
			return
		}
		b.rest = b.rest[1:]
		switch {
		case r.code != "":
			b.fail(r.code)
			return
		case r.copyIn:
			b.say(wire.CopyInResponse, "\x00\x00\x00")
			b.copying = true
			return
		}
		if r.columns {
			b.say(wire.RowDescription, "\x00\x00")
		}
		b.rows(r, len(r.rows))
		b.say(wire.CommandComplete, r.tag+"\x00")
		if r.ends {
			b.endImplicit()
		}
		b.takeover()
	}
	if b.checkable && b.refuses("") {
		return
	}
	b.multi = false
	b.endImplicit()
	b.ready()
}

// checkedBehind reports whether a statement may have a check behind it.
func (b *backend) checkedBehind(sql string) bool {
	return sql == "LOCK TABLE t" || b.called && strings.HasPrefix(sql, "BEGIN")
}

// null is a last column that holds none.
const null = "NULL"

func (b *backend) rows(r result, n int) {
	for _, columns := range r.rows[:n] {
		body := string(row(columns...)[wire.HeaderSize:])
		if n := len(columns) - 1; columns[n] == null {
			body = "\x00" + string(rune(n+1)) + string(row(columns[:n]...)[wire.HeaderSize+2:]) + "\xff\xff\xff\xff"
		}
		b.say(wire.DataRow, body)
	}
}

// call is a FunctionCall. It writes, or sets the variable.
func (b *backend) call(body string) {
	b.begin()
	if b.tx.block == 'E' {
		b.fail("25P02")
		return
	}
	b.looks()
	b.judge("a function call", nil)
	switch {
	case strings.HasPrefix(body, setsByCall):
		b.token = setting{value: "a=3"}
	case b.write("a function call", nil) != "":
		b.fail("25006")
		return
	}
	b.say('V', "\xff\xff\xff\xff")
	b.endImplicit()
	b.ready()
}
