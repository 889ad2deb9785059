package session

import (
	"errors"
	"fmt"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
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

func (s *Session) refuseQuery(size int, e *wire.Error, out *Out) int {
	mark := len(out.own)
	out.own = wire.AppendQuery(out.own, bait(e))
	out.put(mark)
	s.q.Push(replies.Query).Note.refusal = e
	return size
}

// refuseBatch puts the bait of a refusal into an extended batch.
func (s *Session) refuseBatch(e *wire.Error, out *Out) {
	mark := len(out.own)
	out.own = wire.AppendParse(out.own, refusalName, bait(e))
	out.put(mark)
	s.q.Push(replies.Parse).Note.refusal = e
}

// shadowed reports a refusal that the mode lets pass.
func (s *Session) shadowed(e *wire.Error) bool {
	if s.cfg.Mode != Shadow {
		return false
	}
	s.events.Refused(Refusal{State: fence.SQLState(e.Code), Message: e.Message, Detail: e.Detail, Shadow: true})
	return true
}

var errUnclearPrepare = &fence.SyntaxError{Reason: "the name in PREPARE can't be read, and the statement carries a fence"}

func malformed(err error) *wire.Error {
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

// refusal words a refusal that the proxy makes without asking the database.
func (s *Session) refusal(state fence.SQLState, command string) *wire.Error {
	e := &wire.Error{Severity: "ERROR", Code: string(state)}
	switch {
	case state == fence.TokenRequired:
		e.Message = "a fencing token is required to write"
		e.Detail = "The proxy rejects writes that carry no fence."
		e.Hint = "Set wirefence.token, or put a comment such as /*wirefence.token='orders=34'*/ into the statement."
	case command != "":
		e.Message = command + " cannot be fenced"
		e.Detail = "It can't run in the transaction of a check, and the session carries a fence."
		e.Hint = "Run it in a session that carries no fence."
		if s.cfg.Lease != nil && s.variable == empty {
			e.Detail = "It can't run in the transaction of a check, and every write is checked here with the fence of the proxy's lease."
			e.Hint = "Run it past this Wirefence."
		}
	default:
		e.Message = "the fence cannot be checked in database " + fmt.Sprintf("%q", s.database)
		e.Detail = "The schema wirefence, or its function check(text, text, boolean), is not there."
		e.Hint = "Run `wirefence migrate` on this database."
	}
	return e
}

// unreadable reports whether what a text of an open batch means depends on a
// setting that may be under way in it, and whether that matters.
func (s *Session) unreadable(r *sqlscan.Result, carries bool, body []byte) bool {
	return s.lexPending && r.HasBackslashInPlainString && (carries || s.cfg.everyWrite || mayCarry(body))
}

func (s *Session) unreadableText() *wire.Error {
	return s.refusal(fence.CannotBeFenced, "a text whose meaning depends on a setting of the same batch")
}

// longName words the refusal of a Bind whose names nobody has read.
func (s *Session) longName() *wire.Error {
	e := s.tooLarge()
	e.Message = "the names in a Bind are too long to be read"
	e.Detail = fmt.Sprintf("They have more than %d bytes, of which PostgreSQL keeps %d each.", s.cfg.MaxStatement, maxName)
	e.Hint = "Use shorter names."
	return e
}

// tooLarge words the refusal of a text that is too large to be scanned.
func (s *Session) tooLarge() *wire.Error {
	return &wire.Error{
		Severity: "ERROR", Code: string(fence.CannotBeFenced),
		Message: "the statement is too large to be fenced",
		Detail:  fmt.Sprintf("It carries a fence, or may carry one, and has more than %d bytes.", s.cfg.MaxStatement),
		Hint:    "Raise WIREFENCE_MAX_STATEMENT, or send the data as parameters or by COPY.",
	}
}
