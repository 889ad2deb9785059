package session

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// needsPassword reports whether the login message msg, which the server sent,
// waits for an answer of the client's (documentation, "Message Formats",
// Authentication*).
func needsPassword(msg []byte) bool {
	const ok, saslFinal = 0, 12
	kind := wire.AuthKind(msg)
	return len(msg) >= wire.HeaderSize+4 && kind != ok && kind != saslFinal
}

// parameter takes in a ParameterStatus that the session goes by.
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
		s.options.Encoding = sqltext.ParseEncoding(string(value))
	case "in_hot_standby":
		s.standby = string(value) == "on"
	case "server_version":
		digits := string(value)
		if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
			digits = digits[:i]
		}
		s.major, _ = strconv.Atoi(digits)
	}
}

// beginServing handles the end of the login: before the client hears of it the
// proxy asks what it must know of the session. That is one question, and one round
// trip, but for the first session in a database.
func (s *Session) beginServing() bool {
	if !s.tracked {
		s.phase = serving
		return true
	}
	s.phase = asking
	era := s.databases.Era()
	sql, stored := trimmed(loginSQL), s.databases.due(s.database)
	if stored {
		sql += ", " + interferesSQL
	}
	s.toward = s.appendExchange(s.toward, sql, asksLogin)
	s.own.stored, s.own.era = stored, era
	return false
}

// learnLogin takes in the answer to the question at login.
func (s *Session) learnLogin(columns [][]byte) {
	s.armed = len(columns[0]) > 0
	if len(columns) < 5 {
		return
	}
	s.schema = columns[1] != nil
	s.pooled = s.cfg.Pooling == PoolingTransaction || s.cfg.Pooling == PoolingUnknown && !s.isOwnBackend(string(columns[2]))
	s.reached = string(columns[3])
	s.startup = s.startup || s.pooled && string(columns[4]) == "t"
	if len(columns) > 5 {
		s.own.outcome = string(columns[5])
	}
}

// isOwnBackend reports whether the server's process id is the one that the
// client was given.
func (s *Session) isOwnBackend(pid string) bool {
	return len(s.key) >= 4 && strconv.FormatUint(uint64(binary.BigEndian.Uint32([]byte(s.key))), 10) == pid
}

// askAgain repeats the question at login: without stored code, if that was a part of it,
// and without the client's statement_timeout, if that has ended it.
func (s *Session) askAgain() bool {
	const tries = 5 // the timeout still counts for the SET
	x := s.own
	if x.err == nil || x.again == tries || !x.stored && x.err.Code != queryCanceled {
		return false
	}
	if x.stored {
		s.databases.find(s.database).unask()
	}
	sql := trimmed(loginSQL)
	if x.err.Code == queryCanceled {
		sql = untimed + sql
	}
	s.toward = s.appendSimple(s.toward, sql, asksLogin)
	s.own.again = x.again + 1
	return true
}

// queryCanceled is the SQLSTATE of a statement that was cancelled, by a timeout too.
const queryCanceled = "57014"

// loginAnswered handles the end of the question at login, and loginTold what follows:
// each reports whether the client now hears of the end of its login.
func (s *Session) loginAnswered() bool {
	if s.askAgain() {
		return false
	}
	x := s.own
	s.db = s.databases.find(s.reached)
	if x.err != nil || !x.answered {
		s.armed = true // for all that is known
		s.pooled = s.cfg.Pooling != PoolingSession
		// In shadow mode a check that isn't there must not fail a statement.
		s.schema = s.cfg.Mode != Shadow
	}
	if x.err != nil && s.pooled && s.turnAway(wire.Error{
		Code: string(fence.CannotBeFenced), Message: "whether a fence is set for the role or the database could not be read", Detail: x.err.Message,
		Hint: "Log in again. If no pooler gives server connections to other clients, say pooling=session in WIREFENCE_UPSTREAM: then this isn't asked.",
	}) {
		return false
	}
	if x.stored && x.answered && s.schema {
		s.db.learn(x.outcome == "t", x.era)
	} else if s.schema && s.db.due() {
		era := s.databases.Era()
		s.toward = s.appendExchange(s.toward, "SELECT "+interferesSQL, asksStored)
		s.own.era = era
		return false
	}
	return s.loginTold()
}

// storedAnswered handles the end of the question about stored code, put by itself. Its
// answer is safe to assume, and can take long: it isn't asked again.
func (s *Session) storedAnswered() bool {
	if s.own.err == nil && s.own.answered {
		s.db.learn(s.own.outcome == "t", s.own.era)
	} else {
		s.db.suspect()
	}
	return s.loginTold()
}

func (s *Session) loginTold() bool {
	s.phase = serving
	carried := s.armed
	if s.pooled {
		s.armed = false // what the variable holds may be another client's
	}
	s.admit(carried)
	return s.farewell == nil
}

// admit ends a session that began with a fence which doesn't count: under a name that
// nothing reads; behind a transaction pooler its next transaction may run without; and a
// pooler may have kept startup options to itself.
func (s *Session) admit(carried bool) {
	if s.unknown != nil && s.turnAway(*malformed(s.unknown)) {
		return
	}
	if !s.startup || !s.pooled && carried {
		return
	}
	s.turnAway(wire.Error{
		Code: string(fence.CannotBeFenced), Message: "a fence in the startup packet, or set for a role or database, does not reach each transaction",
		Detail: pooledDetail, Hint: pooledHint,
	})
}

// turnAway ends a login with an error, except in shadow mode.
func (s *Session) turnAway(e wire.Error) bool {
	if s.shadowed(&e) {
		return false
	}
	s.events.Refused(Refusal{State: fence.SQLState(e.Code), Message: e.Message, Detail: e.Detail})
	s.End(e)
	return true
}

// hasSchema reports whether the database has wirefence's functions: it had them at
// login, or another session has found them since.
func (s *Session) hasSchema() bool { return s.schema || s.db.schema.Load() }
