package session

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// noticeTag looks for what changes the ground under the session.
func (s *Session) noticeTag(msg []byte) {
	tag := msg[wire.HeaderSize:]
	if len(tag) < 3 || !s.tracked {
		return
	}
	switch tag[0] {
	case 'C', 'A', 'D':
	default:
		return
	}
	name := string(bytes.TrimRight(tag, "\x00"))
	verb, what, _ := strings.Cut(name, " ")
	switch {
	case name == "DISCARD ALL" || name == "DEALLOCATE ALL":
		s.check.ready = [kinds]bool{}
		if e := s.q.Front(); e != nil {
			s.prepared.clear(e.Note.before)
		}
		return
	case verb != "CREATE" && verb != "ALTER" && verb != "DROP" && verb != "DO":
		return
	case verb != "ALTER":
		switch what {
		case "TABLE", "INDEX", "SEQUENCE", "ROLE", "DATABASE", "TABLE AS", "MATERIALIZED VIEW", "STATISTICS":
			return // nothing that decides what a read is
		}
	}
	s.catalogs.invalidate(s.database)
	s.ddl = true // others see it from the commit on only
}

// parameter takes in a ParameterStatus that decides how texts are read.
func (s *Session) parameter(msg []byte) {
	name, rest, ok := wire.CString(msg[wire.HeaderSize:])
	value, _, ok2 := wire.CString(rest)
	if !ok || !ok2 {
		return
	}
	switch string(name) {
	case "standard_conforming_strings":
		s.options.EscapeStrings = string(value) == "off"
	case "client_encoding":
		s.db = s.catalogs.database(s.database, string(value))
		s.options.Encoding = sqlscan.ParseEncoding(string(value))
	case "server_version":
		digits := string(value)
		if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
			digits = digits[:i]
		}
		s.major, _ = strconv.Atoi(digits)
	}
}

// needsPassword reports whether the login message msg, which the server sent,
// waits for an answer of the client's (documentation, "Message Formats",
// Authentication*).
func needsPassword(msg []byte) bool {
	if len(msg) < wire.HeaderSize+4 || msg[0] != wire.Authentication {
		return false
	}
	const ok, saslFinal = 0, 12
	kind := binary.BigEndian.Uint32(msg[wire.HeaderSize:])
	return kind != ok && kind != saslFinal
}

// beginServing handles the end of the login: before the client hears of it the
// proxy asks what it must know of the session.
func (s *Session) beginServing() bool {
	switch {
	case s.logical:
		s.phase = asking
		s.askWalsender()
		return false
	case !s.tracked:
		s.phase = serving
		return true
	}
	s.phase = asking
	s.toward = s.appendAside(s.toward, loginSQL, probeLogin)
	return false
}

// nextQuestion handles the end of one of the questions at login: the session
// begins to serve when the catalog is known, or can't be had right now.
func (s *Session) nextQuestion() bool {
	if s.q.Len() > 0 {
		return false
	}
	s.fenced = s.fenced || s.variable == carries
	s.changes = s.db.changes.Load()
	if s.tracked && s.askInitial() {
		return false
	}
	if s.tracked && s.loginAsked < 2 {
		if q, ok := s.db.ask(s.cfg.everyWrite); ok {
			s.loginAsked++
			s.toward = s.appendQuestion(s.toward, q)
			return false
		}
	}
	s.phase = serving
	s.admit()
	return s.farewell == nil
}
