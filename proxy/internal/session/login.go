package session

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/sqltext"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// needsPassword reports whether the server's Authentication message msg demands an answer
// (documentation, "Message Formats", Authentication*).
func needsPassword(msg []byte) bool {
	const ok, saslFinal = 0, 12
	kind := wire.AuthKind(msg)
	return len(msg) >= wire.HeaderSize+4 && kind != ok && kind != saslFinal
}

// noteParameter records the ParameterStatus settings that the session depends on.
func (s *Session) noteParameter(msg []byte) {
	name, value := wire.Parameter(msg)
	switch name {
	case "standard_conforming_strings":
		s.options.EscapeStrings = value == "off"
	case "client_encoding":
		s.options.Encoding = sqltext.ParseEncoding(value)
	case "application_name":
		if s.phase == loggingIn {
			s.variable.named = strings.HasPrefix(value, "wirefence:")
		}
	case "in_hot_standby":
		s.standby = value == "on"
	}
}

// beginServing handles the server's first ReadyForQuery. Before the client gets it, the
// proxy sends loginSQL, and once in a while asks for functions that release advisory locks behind it.
func (s *Session) beginServing() bool {
	if !s.tracked {
		s.phase = serving
		return true
	}
	s.phase = asking
	s.toServer = s.appendExchange(s.toServer, asksLogin, trimmed(loginSQL))
	return false
}

// learnLogin reads the row of loginSQL.
func (s *Session) learnLogin(columns [][]byte) {
	s.variable.login = string(columns[0])
	s.variable.set = s.variable.login != ""
	s.login.fenced = s.variable.set
	if len(columns) < 4 {
		return
	}
	s.schema = schemaState(columns[1])
	s.pooled = s.cfg.Pooling == PoolingTransaction || s.cfg.Pooling == PoolingUnknown && !s.isOwnBackend(string(columns[2]))
	s.db = s.databases.join(databaseName(columns[3]))
	s.db.citus.Store(len(columns) > 4 && columns[4] != nil)
	if len(columns) > 5 && !s.pooled {
		s.address, _ = netip.ParseAddr(string(columns[5])) // none by a Unix socket
	}
	if s.schema != denied {
		s.db.schema.Store(s.schema == usable)
	}
}

// databaseName returns the name in a column of loginSQL; "" if it has other characters than
// those of ASCII, so that nothing depends on an encoding.
func databaseName(column []byte) string {
	name, err := hex.DecodeString(string(column))
	if err != nil || bytes.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
		return ""
	}
	return string(name)
}

// setsFence reports whether a startup packet sets a fence, by name or in its options, where a
// backslash escapes a character.
func setsFence(params map[string]string) bool {
	options := strings.ToLower(strings.ReplaceAll(params["options"], `\`, ""))
	if _, value, found := strings.Cut(options, fence.Variable+"="); found && value != "" && strings.IndexByte(" \t\n\v\f\r", value[0]) < 0 {
		return true
	}
	for name, value := range params {
		if value != "" && strings.EqualFold(name, fence.Variable) {
			return true
		}
	}
	return false
}

// isOwnBackend reports whether the backend's process id is the one in BackendKeyData. A
// pooler's differs.
func (t *serverState) isOwnBackend(pid string) bool {
	return len(t.key) >= 4 && strconv.FormatUint(uint64(binary.BigEndian.Uint32([]byte(t.key))), 10) == pid
}

// asksAgain repeats a question at login without the client's statement_timeout, if that has
// cancelled it.
func (s *Session) asksAgain(by role, sql string) bool {
	const tries = 5 // the timeout still counts for the SET
	x := s.exchange
	if x.err == nil || x.retries == tries || x.err.Code != queryCanceled {
		return false
	}
	s.toServer = s.appendSimple(s.toServer, by, noTimeoutSQL+trimmed(sql))
	s.exchange.retries = x.retries + 1
	return true
}

// queryCanceled is the SQLSTATE of a statement that was cancelled, by a timeout too.
const queryCanceled = "57014"

// loginAnswered handles the end of loginSQL. Like the others of these, it reports whether the
// client now gets the ReadyForQuery.
func (s *Session) loginAnswered() bool {
	if s.asksAgain(asksLogin, loginSQL) {
		return false
	}
	x := s.exchange
	if s.db == nil {
		s.db = s.databases.join("")
	}
	if x.err != nil || !x.answered {
		s.variable.set = true // its checks ask, and nothing is refused where the answer is none
		s.pooled = s.cfg.Pooling != PoolingSession
	}
	if (s.pooled || s.variable.named && s.schema == usable) && x.err == nil {
		s.toServer = s.appendExchange(s.toServer, asksDeclared, s.askDeclared())
		return false
	}
	return s.declaredAnswered()
}

// declaredAnswered handles the end of declaredSQL, or of loginSQL if that was the only
// question.
func (s *Session) declaredAnswered() bool {
	if s.asksAgain(asksDeclared, s.askDeclared()) {
		return false
	}
	if s.schema == usable && s.db.due() {
		s.toServer = s.appendExchange(s.toServer, asksUnlocks, trimmed(UnlocksSQL))
		return false
	}
	return s.finishLogin()
}

// unlocksAnswered handles the end of UnlocksSQL. After an error it isn't repeated, since it may
// take long: the sessions of the database don't hold until a later login asks again.
func (s *Session) unlocksAnswered() bool {
	x := s.exchange
	failed := x.err != nil || !x.answered
	s.db.learn(x.unlocks || failed, x.began)
	if failed {
		s.db.asked.Store(0) // the next session asks
	}
	return s.finishLogin()
}

// askDeclared returns the question for a session whose startup packet, role or database may set a
// fence: in its name, or behind a pooler in the variable, too.
func (s *Session) askDeclared() string {
	switch {
	case !s.pooled:
		return askNamesSQL
	case s.variable.named && s.schema == usable:
		return trimmed(declaredSQL) + " OR wirefence.carries_name()"
	}
	return trimmed(declaredSQL)
}

// learnDeclared reads the answer.
func (s *Session) learnDeclared(yes bool) {
	if s.pooled {
		s.login.fenceAtStartup = s.login.fenceAtStartup || yes
		return
	}
	s.variable.named = yes
	s.login.fenced = s.login.fenced || yes
}

func (s *Session) finishLogin() bool {
	s.phase = serving
	carried := s.variable.set
	if s.pooled {
		s.variable = variable{} // the value may be another client's
	}
	s.checkStartupFence(carried)
	return s.fatal == nil
}

// checkStartupFence ends a session behind a transaction pooler whose startup packet, role or
// database sets a fence: the next transaction may run without it, and the pooler may have
// dropped startup options. In shadow mode it only reports that.
func (s *Session) checkStartupFence(carried bool) {
	if !s.login.fenceAtStartup || !s.pooled && carried {
		return
	}
	e := refusalOf(fence.CannotBeFenced, "a fence in the startup packet, or set for a role or database, does not reach each transaction", pooledDetail, pooledHint)
	s.events.Refused(verdictOf(e, s.cfg.Mode == Shadow))
	if s.cfg.Mode != Shadow {
		s.End(*e)
	}
}

// schemaState is what the login has found of the schema wirefence.
type schemaState string

const (
	absent     schemaState = ""
	usable     schemaState = "usable"
	incomplete schemaState = "incomplete" // it isn't Wirefence's, or not whole
	denied     schemaState = "denied"     // the role has no right to use it
)

// hasSchema reports whether the session can call wirefence's functions: it has found them at its
// login, or another one has since. Several databases have none in common.
func (s *Session) hasSchema() bool {
	return (s.schema == usable || s.schema != denied && s.db.schema.Load()) && !s.db.sharded.Load()
}
