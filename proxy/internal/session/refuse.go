package session

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// The server raises the proxy's own refusals: the proxy sends a text that PostgreSQL can't
// parse instead of the client's message, and replaces the error that comes back. So the
// server aborts the transaction and skips the rest of a pipeline as after any other error,
// and the refusal has the right place among the answers.

// refusalText returns the text that the proxy sends instead of a refused one. The server's
// log shows it.
func refusalText(e *wire.Error) string {
	return "wirefence refused this statement: " + e.Code + " " + fence.SQLState(e.Code).Condition()
}

// refuse sends a text that fails instead of a message. Of a batch the server discards the rest.
func (s *Session) refuse(a *policy.Action, body []byte, m *policy.Message, out *Out) {
	e := s.refusal(*a, body, m)
	text := refusalText(e)
	prepares := m.PreparesTransaction() && s.facts.CurrentBlock() == policy.InBlock
	if prepares {
		// One that fails ends its block, so another one that fails takes its place: one with a
		// name that is too long.
		text = "PREPARE TRANSACTION '" + strings.Repeat("refused by wirefence ", 10) + "'"
	}
	if m.Kind == policy.Query || m.Kind == policy.FunctionCall {
		s.failQuery(e, text, out)
		return
	}
	mark := len(out.own)
	if prepares { // it fails when it runs
		out.own = s.appendRun(s.appendCloses(out.own), ours, text)
	} else {
		out.own = wire.AppendParse(out.own, s.ownName, text)
		s.q.Push(ledger.Parse)
	}
	out.put(mark)
	s.skipping = true
	n := &s.q.Back().Note
	n.refusal, n.trace = e, s.tracing
}

// failQuery sends a Query that fails, with this error for the client.
func (s *Session) failQuery(e *wire.Error, text string, out *Out) {
	s.batch.Open = false
	out.insert(wire.AppendQuery(nil, text))
	n := &s.q.Push(ledger.Query).Note
	n.refusal, n.trace = e, s.tracing
}

// refuseUnread refuses a Query or a FunctionCall of which only the head is read, once the rest
// has come. PostgreSQL answers no earlier, and a client that sends without blocking may take in
// an answer while it still sends, and then wait for one for ever. In a batch it waits for the
// answer to its Sync.
func (s *Session) refuseUnread(a *policy.Action, m *policy.Message, size, have int, out *Out) int {
	s.refused = s.refusal(*a, nil, m)
	n := s.drop(size, have)
	s.refuseDropped(out)
	return n
}

func (s *Session) refuseDropped(out *Out) {
	e := s.refused
	if e == nil || s.dropLeft > 0 {
		return
	}
	s.refused = nil
	if !s.skipping { // by now
		s.failQuery(e, refusalText(e), out)
	}
}

// reportShadow reports what shadow mode would have refused.
func (s *Session) reportShadow(e *wire.Error) {
	s.reportRefusal(verdictOf(e, true), s.tracing)
}

func verdictOf(e *wire.Error, shadow bool) Refusal {
	return Refusal{State: fence.SQLState(e.Code), Message: e.Message, Detail: e.Detail, Shadow: shadow}
}

// refusal returns the error for policy's refusal. body is the text of the message, nil if
// it isn't available.
func (s *Session) refusal(a policy.Action, body []byte, m *policy.Message) *wire.Error {
	command := "the statement"
	if i := a.Refusal.Statement; body != nil && i < len(m.Statements) {
		command = sqltext.Command(body[m.Statements[i].Start:m.Statements[i].End])
	} else if m.Kind == policy.FunctionCall {
		command = "a function call"
	}
	switch a.Refusal.State {
	case fence.MalformedToken:
		return malformed(m.FenceErr)
	case fence.TokenRequired:
		return s.noFence()
	}
	if a.Refusal.Reason == policy.ByExchange && s.exchange.refusal != nil {
		return s.exchange.refusal
	}
	e := refusalOf(fence.CannotBeFenced, "", "", "")
	switch a.Refusal.Reason {
	case policy.NoSchema:
		return s.noSchema()
	case policy.TooLarge:
		return s.tooLarge()
	case policy.NotFirst:
		e.Message = command + " cannot be fenced behind other messages of a batch"
		e.Detail = "The statement needs a hold, which the proxy can take only while no answer is outstanding."
		e.Hint = "Send a Sync before it."
	case policy.StoredFence:
		e.Message = "a fence in a comment does not hold for what " + command + " stores"
		e.Hint = "Put the comment into the message with EXECUTE or FETCH, or set wirefence.token."
	case policy.TransactionKept:
		e.Message = "PREPARE TRANSACTION cannot be fenced"
		e.Detail = "A prepared transaction would keep a takeover out for as long as it stays prepared."
		e.Hint = "Run it in a session, and a transaction, that carry no fence."
	case policy.EndsUnseen:
		e.Message = command + " cannot be fenced"
		e.Detail = "The transaction that it ends was written by another session."
		e.Hint = "Run it in a session without a fence, through a proxy that allows unfenced writes."
	case policy.CallUncovered:
		e.Message = "a function call by the protocol cannot be fenced here"
		e.Detail = "Nothing in its transaction was checked before it, and it can't share a message with a check."
		e.Hint = "Call the function by SQL, as in SELECT lo_creat(-1), or run a statement before it."
	case policy.PooledVariable:
		e.Message = "this way to set wirefence.token does not hold behind a transaction pooler"
		e.Detail, e.Hint = pooledDetail, pooledHint
	case policy.UnknownSettings:
		e.Message = "cannot read a statement whose meaning depends on a setting that the same batch may change"
		e.Detail = "The statement has a backslash in a plain literal, or characters beyond ASCII, and follows other messages without a Sync."
		e.Hint = "Send a Sync before it."
	default:
		e.Message = command + " cannot be fenced"
		e.Detail = "The statement cannot run in the transaction of a check, and this session cannot hold its fence."
		e.Hint = "Holds need WIREFENCE_HOLD above 0, a primary server without a transaction pooler in between, resources with reuse = allow, and no function in the database that names pg_advisory_unlock_all or pg_advisory_unlock_shared."
	}
	return e
}

const (
	pooledDetail = "There is a connection pooler between Wirefence and PostgreSQL, and under transaction pooling the next transaction may have another server connection."
	pooledHint   = "Carry the fence in a comment, or by SET LOCAL in each transaction. If a client of the pooler keeps its server connection until it disconnects, set pooling=session in WIREFENCE_UPSTREAM."
)

func malformed(err error) *wire.Error {
	detail := err.Error()
	if syntax := (*fence.SyntaxError)(nil); errors.As(err, &syntax) {
		detail = syntax.Reason
	}
	return refusalOf(fence.MalformedToken, "malformed fencing token in an SQL comment", "The fence can't be read: "+detail+".",
		"A fence is resource=token[@source][,resource=token[@source]...], as in /*wirefence.token='orders=34'*/.")
}

func refusalOf(state fence.SQLState, message, detail, hint string) *wire.Error {
	return &wire.Error{Severity: "ERROR", Code: string(state), Message: message, Detail: detail, Hint: hint}
}

// noFence returns the refusal of a write without a fence: RequireFence is set, or the
// proxy's own lease isn't held, or can't be checked.
func (s *Session) noFence() *wire.Error {
	if s.stamp() != "" && !s.hasSchema() {
		return s.noSchema()
	}
	if s.cfg.Lease != nil {
		return s.unheld()
	}
	return refusalOf(fence.TokenRequired, "a fencing token is required to write", "The transaction carries no fence, so it may only read.",
		"Set wirefence.token before the transaction, or put a comment such as /*wirefence.token='orders=34'*/ into its first statement: wirefence lock has it in WIREFENCE_FENCE.")
}

// unheldForm is the format of the refusal's message while the lease isn't held.
const unheldForm = "the lease of %q is not held here"

// UnheldResource returns the resource in such a message, "" for another text.
func UnheldResource(message string) (resource string) {
	if _, err := fmt.Sscanf(message, unheldForm, &resource); err != nil {
		return ""
	}
	return resource
}

// unheld returns the refusal of a write without a fence while the proxy's own lease isn't
// held.
func (s *Session) unheld() *wire.Error {
	lease := s.cfg.Lease
	e := refusalOf(fence.LeaseNotHeld, fmt.Sprintf(unheldForm, lease.Resource()),
		"This Wirefence is on standby: it passes reads, and writes that carry a fence of their own.",
		"Write through the proxy that holds the lease: its /readyz?role=leader answers 200.")
	if holder := lease.Holder(); holder != "" {
		e.Detail += fmt.Sprintf(" The lease was last seen held by %q.", holder)
	}
	return e
}

// noSchema returns the refusal of a fence in a database without wirefence's functions.
func (s *Session) noSchema() *wire.Error {
	e := refusalOf(fence.CannotBeFenced, fmt.Sprintf("the fence cannot be checked in database %q", s.db.name),
		"The schema wirefence or its function check does not exist.", "Run `wirefence migrate` on this database.")
	switch {
	case s.schema == incomplete:
		e.Detail = "The schema wirefence isn't Wirefence's, or lacks some of its functions."
	case s.schema == denied:
		e.Detail = "The role has no right to use the schema wirefence and its functions."
		e.Hint = "Grant USAGE on the schema, and EXECUTE on its functions, as `wirefence migrate` does to PUBLIC."
	case s.db.sharded.Load():
		e.Detail = "A router leads the connection to several databases: a check may be answered by another one than the write."
		e.Hint = "Put a proxy between the router and each database: see `wirefence doctor`."
	case s.db.citus.Load():
		e.Detail += " The server is a node of Citus, of which only the coordinator has the schema by default."
		e.Hint = "Name the coordinator in WIREFENCE_UPSTREAM. If this is the coordinator, or all nodes take fenced clients, run `wirefence migrate`."
	}
	return e
}

// tooLarge returns the refusal of a text above MaxStatement.
func (s *Session) tooLarge() *wire.Error {
	return refusalOf(fence.CannotBeFenced, "the statement is too large to be fenced",
		fmt.Sprintf("It carries a fence, or may carry one, and has more than %d bytes, or with its checks more than %d.", s.cfg.MaxStatement, maxSwelling*s.cfg.MaxStatement),
		"Raise WIREFENCE_MAX_STATEMENT, or send the data as parameters or by COPY.")
}
