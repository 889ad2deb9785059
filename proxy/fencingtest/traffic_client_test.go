package fencingtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// unlockByKey releases the locks that the session holds, by the keys in pg_locks.
const unlockByKey = `SELECT pg_advisory_unlock_shared(classid::bigint << 32 | objid::bigint) FROM pg_locks
	WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 1`

// anothers is the fence of another resource, behind texts that write nothing.
const anothers = " /*wirefence.token='other=1'*/"

// trafficTexts are the statements that clients draw, by how often. {token} is a token; a
// text with a comment carries it as its fence.
var trafficTexts = []struct {
	weight int
	block  bool // outside of a block it fails, so there it is drawn less often
	texts  []string
}{
	{8, false, []string{plainWrite}},
	{3, false, []string{commentedWrite}},
	{1, false, []string{"SELECT write({token}, 'function with a comment') FROM generate_series(1, 2) /*wirefence.token='orders={token}'*/"}},
	{1, false, []string{"SELECT write(carried(), 'function')"}},
	{1, false, []string{"INSERT INTO delayed VALUES (carried(), 'deferred trigger')"}},
	{1, false, []string{"INSERT INTO delayed VALUES ({token}, 'deferred trigger behind a comment') /*wirefence.token='orders={token}'*/"}},
	{1, false, []string{"DO $$ BEGIN PERFORM write(carried(), 'block of code'); END $$"}},
	{1, false, []string{"CALL write_and_commit(3)"}},
	{1, true, []string{"DECLARE c CURSOR FOR SELECT write(carried(), 'cursor') FROM generate_series(1, 3)"}},
	{1, false, []string{"BEGIN; DECLARE h CURSOR WITH HOLD FOR SELECT write(carried(), 'cursor at COMMIT')", "DECLARE h CURSOR WITH HOLD FOR SELECT write({token}, 'cursor at COMMIT behind a comment') /*wirefence.token='orders={token}'*/"}},
	{1, true, []string{"FETCH c", "MOVE c", "CLOSE ALL", "FETCH ALL c"}},
	{3, false, []string{"BEGIN", "BEGIN ISOLATION LEVEL REPEATABLE READ", "BEGIN ISOLATION LEVEL SERIALIZABLE", "START TRANSACTION", "BEGIN READ ONLY", "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"}},
	{4, false, []string{"COMMIT", "COMMIT", "END"}},
	{2, false, []string{"ROLLBACK"}},
	{1, true, []string{"COMMIT AND CHAIN", "ROLLBACK AND CHAIN"}},
	{2, true, []string{"SAVEPOINT s"}},
	{2, true, []string{"ROLLBACK TO s", "RELEASE s"}},
	{5, false, []string{"SET wirefence.token = 'orders={token}'"}},
	{1, false, []string{"SET LOCAL wirefence.token = 'orders={token}'"}},
	{1, false, []string{"SET wirefence.token = ''", "SET LOCAL wirefence.token = ''"}},
	{1, true, []string{"SAVEPOINT s" + anothers, "SELECT pg_advisory_unlock_all()" + anothers, unlockByKey + anothers}},
	{1, false, []string{"SELECT set_config('wirefence.token', 'orders={token}', false)", "SELECT set_config('wirefence.token', 'orders={token}', true)"}},
	{1, false, []string{"RESET wirefence.token", "RESET ALL", "DISCARD ALL", "DEALLOCATE ALL"}},
	{2, false, []string{"SELECT pg_advisory_unlock_all()", unlockByKey}},
	{1, false, []string{"SELECT pg_sleep(0.01)", "SELECT pg_sleep(0.03)", "SELECT pg_sleep(0.08)"}},
	{1, true, []string{"LOCK TABLE delayed IN ROW EXCLUSIVE MODE", "LOCK TABLE delayed IN ROW EXCLUSIVE MODE", "LOCK TABLE delayed IN ACCESS EXCLUSIVE MODE", "LOCK TABLE delayed; COMMIT"}},
	{1, false, []string{"ANALYZE delayed", "VACUUM delayed"}},
	{1, false, []string{"SET TRANSACTION READ ONLY", "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "SET default_transaction_isolation = 'repeatable read'", "SET default_transaction_isolation = 'read committed'"}},
	{1, false, []string{"SELECT 1", "SELECT 1", "SELECT 1/0"}},
}

// sessionTexts are drawn beside them, where no pooler is behind the proxy: a session has
// none of them, those that check and release, or those that prepare statements. Behind the
// latter the proxy may take no more holds.
var sessionTexts = [][]string{nil, {
	"SELECT wirefence.check('orders={token}')", "SELECT wirefence.check()",
	unlockByKey, unlockByKey + " /*wirefence.token='orders={token}'*/", "SELECT pg_advisory_unlock_all() /*wirefence.token='orders={token}'*/",
	"SELECT set_config('wirefence.token', '', true)",
}, {
	prepareTraffic, "EXECUTE p", "EXECUTE p",
	"DO $$ BEGIN EXECUTE 'PREPARE x AS SELECT pg_advisory_unlock_all()'; END $$", "SELECT run('PREPARE x AS " + unlockByKey[:strings.Index(unlockByKey, "\n")] + "')",
	"SELECT run('PREPARE y AS SELECT set_config(''wirefence.token'', ''orders={token}'', false)')",
	"EXECUTE x", "EXECUTE x", "EXECUTE y", "EXECUTE y", "DEALLOCATE x", "DEALLOCATE y", "DEALLOCATE p", "DISCARD ALL",
	"PREPARE n2 AS SELECT 1", "DEALLOCATE n2",
}}

const prepareTraffic = "PREPARE p AS INSERT INTO written (token, how) VALUES (carried(), 'prepared statement')"

// trafficSession is one session of a client.
type trafficSession struct {
	*traffic
	*stack.Client
	draw    *rand.Rand
	own     []string // what it draws of sessionTexts
	refused bool     // the last answers were that its token is stale
	story   []string // the end of it
}

// session opens a session and sends groups of messages until it ends.
func (tr *traffic) session(ctx context.Context, t *testing.T, draw *rand.Rand) {
	params, exchanges := []string{"user", "app"}, 60
	options := ""
	if !tr.pooled && draw.IntN(2) == 0 {
		options = fmt.Sprintf("-c wirefence.token=orders=%d", tr.current.Load())
	}
	if !tr.pooled && draw.IntN(4) == 0 { // its first hold would have an older snapshot
		options += ` -c default_transaction_isolation=repeatable\ read`
		exchanges = 6
	}
	if options != "" {
		params = append(params, "options", options)
	}
	c, err := stack.TryLogin(t, tr.addr, tr.Name, params...)
	if err != nil {
		// Behind another proxy, a stale fence in the startup packet fails the first one's
		// question at the login.
		if !tr.chained || !strings.Contains(err.Error(), "WF006") {
			tr.fault("login: %v", err)
		}
		return
	}
	defer func() { _ = c.Conn.Close() }()
	s := &trafficSession{traffic: tr, Client: c, draw: draw}
	if !tr.pooled {
		s.own = sessionTexts[draw.IntN(len(sessionTexts))]
	}
	defer func() {
		pid, _ := c.Key()
		tr.mu.Lock()
		defer tr.mu.Unlock()
		tr.stories[pid] = append(tr.stories[pid], s.story...)
	}()
	for range exchanges {
		if ctx.Err() != nil || !s.exchange() {
			return
		}
		tr.answered.Add(1)
		if draw.IntN(6) == 0 {
			think(ctx, time.Duration(draw.IntN(60))*time.Millisecond)
		}
	}
	c.Send(&pgproto3.Terminate{})
}

// think lets a client be idle, so that holds run out and transactions stay open.
func think(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (tr *traffic) fault(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if len(tr.faults) < 5 {
		tr.faults = append(tr.faults, fmt.Sprintf(format, args...))
	}
}

// exchange sends one to three groups of messages or runs a transaction. It reports whether the
// session lives.
func (s *trafficSession) exchange() bool {
	if s.draw.IntN(3) == 0 {
		return s.transaction()
	}
	var messages []pgproto3.FrontendMessage
	groups := 0
	if s.TxStatus() == 'E' && s.draw.IntN(4) > 0 {
		s.note("sends Query ROLLBACK")
		messages, groups = append(messages, &pgproto3.Query{String: "ROLLBACK"}), 1
	}
	if s.refused && !s.pooled { // its holder has got the lease again
		messages = append(messages, s.alone(fmt.Sprintf("SET wirefence.token = 'orders=%d'", s.current.Load()))...)
		groups++
	}
	for range 1 + s.draw.IntN(3) {
		more, syncs := s.group()
		messages = append(messages, more...)
		groups += syncs
	}
	return s.send(groups, messages)
}

// transaction is that of a busy client, which sends one statement after the other, so that
// it holds, and thinks before its COMMIT. It reports whether the session lives.
func (s *trafficSession) transaction() bool {
	token := strconv.FormatInt(s.current.Load(), 10)
	write, more := plainWrite, strings.ReplaceAll(commentedWrite, "{token}", token)
	if s.draw.IntN(3) == 0 {
		write, more = more, write
	}
	texts := []string{write, write, write, "BEGIN", write, s.text(), s.text(), "", "COMMIT"}
	switch {
	case s.TxStatus() != 'I':
		texts = append([]string{"ROLLBACK"}, texts...)
	case s.draw.IntN(2) == 0:
		texts[4] = more
	}
	if s.refused && !s.pooled {
		texts = append([]string{"SET wirefence.token = 'orders=" + token + "'"}, texts...)
	}
	for _, sql := range texts {
		if sql == "" {
			think(context.Background(), time.Duration(s.draw.IntN(60))*time.Millisecond)
			continue
		}
		if !s.send(1, s.alone(sql)) {
			return false
		}
		if s.refused {
			break
		}
	}
	return true
}

// send sends groups of messages, sometimes cancels them, and awaits their answers. It
// reports whether the session lives.
func (s *trafficSession) send(groups int, messages []pgproto3.FrontendMessage) bool {
	from := s.Taken()
	s.Send(messages...)
	if s.draw.IntN(60) == 0 {
		s.note("cancels")
		s.Cancel()
	}
	for range groups {
		if _, err := s.Await(func(m stack.Message) bool { return m.Type == 'Z' }); err != nil {
			break
		}
	}
	s.judgeAnswers(s.Came(from))
	return !s.Ended()
}

// judgeAnswers looks for answers that no client may get: errors of the proxy's own
// messages, and none at all.
func (s *trafficSession) judgeAnswers(answers []stack.Message) {
	s.refused = false
	s.note("got %s", strings.Join(append([]string{stack.Types(answers)}, stack.States(answers)...), " "))
	for _, m := range answers {
		err := m.Err()
		state := stack.State(err)
		if state != "" {
			s.mu.Lock()
			s.outcomes[state]++
			s.mu.Unlock()
		}
		s.refused = s.refused || state == "WF001"
		if state == "XX000" || state == "08P01" || state == "26000" && strings.Contains(err.Error(), "wirefence") {
			s.fault("-seed %d: %v\n%s", s.seed, err, strings.Join(s.story, "\n"))
		}
	}
	if !s.Ended() && (len(answers) == 0 || answers[len(answers)-1].Type != 'Z') {
		s.fault("-seed %d: no answer in %s\n%s", s.seed, s.Patience, strings.Join(s.story, "\n"))
		_ = s.Conn.Close()
	}
}

func (s *trafficSession) note(format string, args ...any) {
	s.story = append(s.story, time.Now().Format("15:04:05.000000 ")+fmt.Sprintf(format, args...))
	if len(s.story) > 150 {
		s.story = s.story[1:]
	}
}

// group draws messages that end with a Query or a Sync. It returns how many
// ReadyForQuery they bring.
func (s *trafficSession) group() (messages []pgproto3.FrontendMessage, syncs int) {
	kinds := 5
	if s.pooled {
		kinds = 4 // a named statement would stay on the server connection
	}
	switch s.draw.IntN(kinds) {
	case 0, 1:
		sql := s.query()
		s.note("sends Query %s", sql)
		return []pgproto3.FrontendMessage{&pgproto3.Query{String: sql}}, 1
	case 2, 3:
		for range 1 + s.draw.IntN(4) {
			messages = append(messages, s.statement()...)
		}
	default:
		name := s.name()
		messages = append(messages, &pgproto3.Bind{PreparedStatement: name, DestinationPortal: "portal"}, &pgproto3.Execute{Portal: "portal", MaxRows: s.limit()})
		s.note("sends Bind and Execute of %s", name)
		if s.draw.IntN(2) == 0 {
			messages = append(messages, &pgproto3.Sync{}, &pgproto3.Execute{Portal: "portal"})
			s.note("sends Sync, Execute")
			syncs++
		}
	}
	s.note("sends Sync")
	return append(messages, &pgproto3.Sync{}), syncs + 1
}

// Frequent writes.
const (
	plainWrite     = "INSERT INTO written (token, how) VALUES (carried(), 'variable')"
	commentedWrite = "INSERT INTO written (token, how) VALUES ({token}, 'comment') /*wirefence.token='orders={token}'*/"
)

// alone is a group of one statement, as a Query or a batch.
func (s *trafficSession) alone(sql string) []pgproto3.FrontendMessage {
	if s.draw.IntN(3) > 0 {
		s.note("sends Query %s", sql)
		return []pgproto3.FrontendMessage{&pgproto3.Query{String: sql}}
	}
	s.note("sends Parse, Bind, Execute, Sync %s", sql)
	return append(stack.Unnamed(sql), &pgproto3.Sync{})
}

// statement draws the messages that run a statement by the extended protocol.
func (s *trafficSession) statement() (messages []pgproto3.FrontendMessage) {
	name, sql := "", s.text()
	if !s.pooled && s.draw.IntN(3) == 0 {
		name = s.name()
		messages = append(messages, &pgproto3.Close{ObjectType: 'S', Name: name})
	}
	s.note("sends Parse, Bind, Execute %s %s", name, sql)
	messages = append(messages, &pgproto3.Parse{Name: name, Query: sql}, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Execute{MaxRows: s.limit()})
	if s.draw.IntN(6) == 0 {
		messages = append(messages, &pgproto3.Flush{})
	}
	return messages
}

func (s *trafficSession) name() string  { return []string{"n1", "n2"}[s.draw.IntN(2)] }
func (s *trafficSession) limit() uint32 { return s.draw.Uint32N(3) }

// query draws the text of a Query. A fence in a comment would be that of all its
// statements, so a text with one is alone.
func (s *trafficSession) query() string {
	sql := s.text()
	for range s.draw.IntN(4) {
		if more := s.text(); !strings.Contains(sql+more, "/*") {
			sql += "; " + more
		}
	}
	return sql
}

// text draws a statement with the current token, or often enough with the one before.
func (s *trafficSession) text() string {
	token := s.current.Load()
	if s.draw.IntN(5) == 0 {
		token--
	}
	sql := s.drawText()
	if s.pooled && s.draw.IntN(4) > 0 { // where only a transaction's own setting counts
		sql = strings.Replace(sql, "SET wirefence", "SET LOCAL wirefence", 1)
	}
	return strings.ReplaceAll(sql, "{token}", strconv.FormatInt(token, 10))
}

// drawText draws a text of trafficTexts.
func (s *trafficSession) drawText() string {
	if len(s.own) > 0 && s.draw.IntN(4) == 0 {
		return s.own[s.draw.IntN(len(s.own))]
	}
	all := 0
	for _, t := range trafficTexts {
		all += t.weight
	}
	for {
		at := s.draw.IntN(all)
		for _, t := range trafficTexts {
			if at -= t.weight; at >= 0 {
				continue
			}
			if t.block && s.TxStatus() == 'I' && s.draw.IntN(4) > 0 {
				break
			}
			return t.texts[s.draw.IntN(len(t.texts))]
		}
	}
}
