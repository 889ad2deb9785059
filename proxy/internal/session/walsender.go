package session

import (
	"bytes"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/replies"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// judgeWalsender judges a Query on a replication connection. Its commands are
// not SQL, and a check can't be put among them: what carries a fence is refused,
// the rest passes untouched. A connection that once came to carry a fence
// counts as one that does, until it ends.
func (s *Session) judgeWalsender(size, have, at int, out *Out) (used int, refused bool) {
	if size > s.cfg.MaxStatement {
		if s.shadowed(s.tooLarge()) {
			return 0, false
		}
		s.refuseQuery(0, s.tooLarge(), out)
		n := min(size, have)
		s.drop = size - n
		return n, true
	}
	if have < size {
		return 0, true
	}
	body, ok := text(out.in[at+wire.HeaderSize : at+size])
	if !ok || replicationCommand(body) {
		return 0, false
	}
	result := s.scanner.Scan(body, s.options, nil)
	for i := range result.Statements {
		s.fenced = s.fenced || result.Statements[i].Setter
	}
	var e *wire.Error
	switch {
	case result.FenceErr != nil:
		e = malformed(result.FenceErr)
	case !result.Fence.IsZero() || s.fenced && writes(result):
		e = s.refusal(fence.CannotBeFenced, "a write on a replication connection")
	case s.cfg.Lease != nil && writes(result):
		e = s.unstamped("a write on a replication connection")
	case s.cfg.RequireFence && writes(result):
		e = s.refusal(fence.TokenRequired, "")
	default:
		return 0, false
	}
	if s.shadowed(e) {
		return 0, false
	}
	return s.refuseQuery(size, e, out), true
}

// askWalsender asks at login what the session variable holds. A walsender knows
// no extended queries, and one without a database no SQL.
func (s *Session) askWalsender() {
	s.toward = wire.AppendQuery(s.toward, strings.TrimSpace(variableSQL))
	s.push(replies.Query, probeVar)
}

func writes(r *sqlscan.Result) bool {
	for i := range r.Statements {
		if r.Statements[i].Write {
			return true
		}
	}
	return false
}

// replicationCommand reports whether a text is one of the commands that only a
// walsender knows (documentation, "Streaming Replication Protocol").
func replicationCommand(text []byte) bool {
	word, _, _ := bytes.Cut(bytes.TrimLeft(text, " \t\r\n"), []byte(" "))
	switch string(bytes.ToUpper(bytes.TrimRight(word, "; \t\r\n"))) {
	case "IDENTIFY_SYSTEM", "TIMELINE_HISTORY", "CREATE_REPLICATION_SLOT", "DROP_REPLICATION_SLOT",
		"ALTER_REPLICATION_SLOT", "READ_REPLICATION_SLOT", "START_REPLICATION", "BASE_BACKUP", "UPLOAD_MANIFEST":
		return true
	}
	return false
}
