package session

import (
	"errors"
	"fmt"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/ledger"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A refusal of the proxy's own is raised by the server: in the place of the
// client's message goes a text that PostgreSQL can't parse, and the error that
// comes back is replaced by ours. So the transaction is aborted, the rest of a
// pipeline is skipped and the refusal takes its place among the answers exactly
// as with any other error.

// bait returns the text that is sent in the place of a refused one. It is what
// the server's log shows.
func bait(e *wire.Error) string {
	return "wirefence refused this statement: " + e.Code + " " + fence.SQLState(e.Code).Condition()
}

// refuseQuery puts the bait in the place of a Query.
func (s *Session) refuseQuery(e *wire.Error, out *Out) {
	s.answer, s.answerErr, s.hold.retried = policy.NoAnswer, nil, false
	mark := len(out.own)
	out.own = wire.AppendQuery(out.own, bait(e))
	out.put(mark)
	n := &s.q.Push(ledger.Query).Note
	n.refusal, n.trace = e, s.tracing
}

// refuseBatch puts the bait into an extended batch, of which the server discards the
// rest.
func (s *Session) refuseBatch(e *wire.Error, out *Out) {
	s.answer, s.answerErr, s.hold.retried = policy.NoAnswer, nil, false
	mark := len(out.own)
	out.own = wire.AppendParse(out.own, refusalName, bait(e))
	out.put(mark)
	n := &s.q.Push(ledger.Parse).Note
	n.refusal, n.trace = e, s.tracing
	s.skipping = true
}

// shadowed reports a refusal that the mode lets pass.
func (s *Session) shadowed(e *wire.Error) bool {
	if s.cfg.Mode != Shadow {
		return false
	}
	s.refused(Refusal{State: fence.SQLState(e.Code), Message: e.Message, Detail: e.Detail, Shadow: true}, s.tracing)
	return true
}

// shadowedEarly lets a Parse or Bind pass where the mode does. It tells of a fence that
// can't be read; the rest is told when the statement is executed.
func (s *Session) shadowedEarly(e *wire.Error) bool {
	if e.Code == string(fence.MalformedToken) {
		return s.shadowed(e)
	}
	return s.cfg.Mode == Shadow
}

// refusal words what policy has refused. body is the text of the message, nil where
// it isn't at hand.
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
	if a.Refusal.Reason == policy.ByTake && s.answerErr != nil {
		return s.answerErr
	}
	e := &wire.Error{Severity: "ERROR", Code: string(fence.CannotBeFenced)}
	switch a.Refusal.Reason {
	case policy.NoSchema:
		return s.noSchema()
	case policy.NotFirst:
		e.Message = command + " cannot be fenced behind other messages of a batch"
		e.Detail = "It needs a hold, which can only be taken while nothing is outstanding."
		e.Hint = "Send a Sync before it."
	case policy.StoredFence:
		e.Message = "a fence in a comment does not hold for what " + command + " stores"
		e.Hint = "Put the comment into the message with EXECUTE or FETCH, or set wirefence.token."
	case policy.HiddenFence:
		e.Message = command + " may run a statement that was prepared with a fence in a comment"
		e.Detail = "The fence of such a statement counts only where it is bound and executed by the extended protocol, under an ASCII name."
		e.Hint = "Put the fence into a comment of this message, too."
	case policy.TransactionKept:
		e.Message = "PREPARE TRANSACTION cannot be fenced"
		e.Detail = "A prepared transaction would keep a takeover out for as long as it stays prepared."
		e.Hint = "Run it in a session, and a transaction, that carry no fence."
	case policy.CommitsUnseen:
		e.Message = "COMMIT PREPARED cannot be fenced"
		e.Detail = "The transaction that it commits was written by another session."
		e.Hint = "Run it in a session that carries no fence, and need not."
	case policy.OpensReadOnly:
		e.Message = "a statement that names transaction_read_only cannot be fenced"
		e.Detail = fmt.Sprintf("PostgreSQL %d lets it take back that a transaction without a fence may only read.", s.major)
		e.Hint = "Use BEGIN READ ONLY, or SET TRANSACTION."
	case policy.PooledVariable:
		e.Message = "this way to set wirefence.token does not hold behind a transaction pooler"
		e.Detail, e.Hint = pooledDetail, pooledHint
	case policy.UnknownSettings:
		e.Message = "cannot read a statement whose meaning depends on a setting that the same batch may change"
		e.Detail = "It holds a backslash in a plain literal, or characters beyond ASCII, and comes behind messages without a Sync."
		e.Hint = "Send a Sync before it."
	default:
		e.Message = command + " cannot be fenced"
		e.Detail = "It can't run in the transaction of a check, and this session can't hold its fence."
		e.Hint = "Holds need WIREFENCE_HOLD above 0, a primary server without a transaction pooler in between, resources with reuse = allow, and no code in the database that sets wirefence.token or releases advisory locks."
	}
	return e
}

const (
	pooledDetail = "There is a connection pooler between Wirefence and PostgreSQL, and under transaction pooling the next transaction may have another server connection."
	pooledHint   = "Carry the fence in a comment, or by SET LOCAL in each transaction. If the pooler leaves a server connection to one client until it goes, say pooling=session in WIREFENCE_UPSTREAM."
)

func malformed(err error) *wire.Error {
	if unknown := (*sqltext.UnknownSettingError)(nil); errors.As(err, &unknown) {
		return unknownSetting(unknown)
	}
	detail := err.Error()
	if syntax := (*fence.SyntaxError)(nil); errors.As(err, &syntax) {
		detail = syntax.Reason
	}
	return &wire.Error{
		Severity: "ERROR", Code: string(fence.MalformedToken),
		Message: "malformed fencing token in an SQL comment",
		Detail:  "The fence can't be read: " + detail + ".",
		Hint:    "A fence is resource=token[@source][,resource=token[@source]...], as in /*wirefence.token='orders=34'*/.",
	}
}

// unknownSetting words the refusal of a setting that would be taken for a fence and never
// checked.
func unknownSetting(e *sqltext.UnknownSettingError) *wire.Error {
	return &wire.Error{
		Severity: "ERROR", Code: e.SQLState(),
		Message: e.Error(),
		Detail:  "Nothing reads it, so a fence in it would not be checked. The fence is wirefence.token; wirefence.reason is what the history gives as the reason for a change.",
		Hint:    "Set the fence as in SET wirefence.token = 'orders=34'.",
	}
}

// noFence words the refusal of a write that carries no fence: the policy wants one,
// or the proxy's own lease isn't held.
func (s *Session) noFence() *wire.Error {
	if s.cfg.Lease != nil {
		return s.unheld()
	}
	return &wire.Error{
		Severity: "ERROR", Code: string(fence.TokenRequired),
		Message: "a fencing token is required to write",
		Detail:  "The transaction carries no fence, so it may only read.",
		Hint:    "Set wirefence.token before the transaction, or put a comment such as /*wirefence.token='orders=34'*/ into its first statement.",
	}
}

// unheldForm is the message of a refusal for want of the lease of a resource.
const unheldForm = "the lease of %q is not held here"

// UnheldResource is the resource of such a message, "" of another text.
func UnheldResource(message string) (resource string) {
	if _, err := fmt.Sscanf(message, unheldForm, &resource); err != nil {
		return ""
	}
	return resource
}

// unheld words the refusal of a write that carries no fence while the proxy has
// none for it.
func (s *Session) unheld() *wire.Error {
	lease := s.cfg.Lease
	e := &wire.Error{
		Severity: "ERROR", Code: string(fence.LeaseNotHeld),
		Message: fmt.Sprintf(unheldForm, lease.Resource()),
		Detail:  "This Wirefence is on standby: it passes reads, and writes that carry a fence of their own.",
		Hint:    "Write by way of the one that holds the lease; its /readyz?role=leader answers 200.",
	}
	if holder := lease.Holder(); holder != "" {
		e.Detail += fmt.Sprintf(" The lease was last seen held by %q.", holder)
	}
	return e
}

// noSchema words the refusal of a fence that the database can't check.
func (s *Session) noSchema() *wire.Error {
	return &wire.Error{
		Severity: "ERROR", Code: string(fence.CannotBeFenced),
		Message: fmt.Sprintf("the fence cannot be checked in database %q", s.database),
		Detail:  "The schema wirefence, or its function check, is not there.",
		Hint:    "Run `wirefence migrate` on this database.",
	}
}

// longName words the refusal of a Bind whose names nobody has read.
func (s *Session) longName() *wire.Error {
	e := s.tooLarge()
	e.Message = "the names in a Bind are too long to be read"
	e.Detail = fmt.Sprintf("They have more than %d bytes, of which PostgreSQL keeps 63 each.", s.cfg.MaxStatement)
	e.Hint = "Use shorter names."
	return e
}

// tooLarge words the refusal of a text that is too large to be read.
func (s *Session) tooLarge() *wire.Error {
	return &wire.Error{
		Severity: "ERROR", Code: string(fence.CannotBeFenced),
		Message: "the statement is too large to be fenced",
		Detail:  fmt.Sprintf("It carries a fence, or may carry one, and has more than %d bytes.", s.cfg.MaxStatement),
		Hint:    "Raise WIREFENCE_MAX_STATEMENT, or send the data as parameters or by COPY.",
	}
}
