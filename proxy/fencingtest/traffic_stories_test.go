package fencingtest

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Steps of a story. A text is sent as a Query or a batch. {token} is the token, {before}
// the one before, and an empty text is a pause that a seal ends.
const (
	writes     = "{write}"    // writes a row under the story's carrier
	unlocks    = "{unlock}"   // releases the session's locks
	byBatch    = "by batch: " // what is behind it are statements of a batch
	asNamed    = "as n1: "    // what is behind it is parsed as n1
	atOnce     = "at once: "  // what is behind it are queries
	then       = "; then "    // between the statements of these two
	clearToken = "SET wirefence.token = ''"
	signed     = " /*wirefence.token='orders={token}'*/"
	anothers   = " /*wirefence.token='other=1'*/"
	setToken   = "SET wirefence.token = 'orders={token}'"
	setBefore  = "SET wirefence.token = 'orders={before}'"
	delays     = "INSERT INTO delayed VALUES (NULL, 'trigger at COMMIT')" // writes with the variable's token
	delaysAt   = "INSERT INTO delayed VALUES ({token}, 'trigger at COMMIT')"
)

// story is a transaction, or a few statements.
type story struct {
	steps  []string
	leaves bool // it prepares statements or chains, which DISCARD ALL ends
	bare   bool // it is for sessions whose variable was never set
	strict bool // it is for runs where a fence is required
}

// stories are what random statements seldom come to: each is against one rule, and commits a
// stale row without it (see rules).
var stories = []story{
	// The end of a subtransaction takes back a check in it.
	{steps: []string{writes, writes, writes, "BEGIN", writes, "SAVEPOINT s", unlocks, "ROLLBACK TO s", "", "COMMIT"}},
	{steps: []string{writes, writes, writes, "BEGIN", writes, "SAVEPOINT s" + signed, unlocks + signed, "ROLLBACK TO s", "", "COMMIT"}},
	// The lock of the hold is gone for what follows.
	{steps: []string{writes, writes, writes, unlocks, "BEGIN", writes, "", "COMMIT"}},
	// The variable changes under the hold.
	{steps: []string{writes, writes, writes, "BEGIN", setBefore, plainWrite, "COMMIT"}},
	// The lock of the hold goes by a message with another fence, or with none.
	{steps: []string{writes, writes, writes, "BEGIN", writes, unlocks + anothers, "", "COMMIT"}},
	{steps: []string{writes, writes, writes, "BEGIN", writes, unlocks, "", "COMMIT"}},
	{steps: []string{writes, writes, writes, "BEGIN", writes, "SAVEPOINT s" + anothers, unlocks + anothers, "ROLLBACK TO s", "", "COMMIT"}},
	// An EXECUTE releases the lock, or changes the fence.
	{leaves: true, steps: []string{asNamed + unlocks, writes, writes, writes, "BEGIN", writes, "EXECUTE n1", "", "COMMIT"}},
	{leaves: true, steps: []string{asNamed + "SELECT set_config('wirefence.token', 'orders={before}', false)", writes, writes, writes, "EXECUTE n1; " + plainWrite}},
	// The variable gets the value that it had at the login.
	{steps: []string{writes, writes, writes, "RESET ALL", plainWrite}},
	// A trigger that COMMIT runs has another fence than the statement that it was deferred from.
	{bare: true, steps: []string{"BEGIN", delays, setBefore, "COMMIT"}},
	// The same where a check has found no fence meanwhile.
	{steps: []string{clearToken, "BEGIN", delays, setBefore, "COMMIT"}},
	// COMMIT has another fence than what ran before it, in its transaction or the last of a chain.
	{steps: []string{"BEGIN", "SELECT 1" + signed, "INSERT INTO delayed VALUES ({before}, 'trigger at COMMIT')", "COMMIT /*wirefence.token='orders={before}'*/"}},
	{bare: true, leaves: true, steps: []string{"BEGIN", "SELECT 1" + signed, "COMMIT AND CHAIN", delaysAt, "", "COMMIT" + signed}},
	// ROLLBACK TO takes back the check for the fence of the COMMIT, or brings back another value.
	{steps: []string{clearToken, "BEGIN", delaysAt, "SAVEPOINT s", "SELECT 1" + signed, "ROLLBACK TO s", "", "COMMIT" + signed}},
	{steps: []string{clearToken, "BEGIN", delays, setBefore, "SAVEPOINT s" + anothers, setToken, "SELECT 1", "ROLLBACK TO s", "COMMIT"}},
	{steps: []string{clearToken, "BEGIN", delays, setBefore, "SAVEPOINT s" + anothers, setToken + "; SELECT 1; ROLLBACK TO s; COMMIT"}},
	// RELEASE makes a transaction READ WRITE again that was READ ONLY, since it has no fence.
	{strict: true, steps: []string{setToken, "BEGIN", "SELECT 1", "SAVEPOINT s", "SET LOCAL wirefence.token = ''",
		"DECLARE h CURSOR WITH HOLD FOR SELECT write({before}, 'cursor at COMMIT')", "RELEASE s", "COMMIT"}},
	// A check ends with its transaction, also within a text.
	{steps: []string{writes + "; COMMIT; SELECT pg_sleep(0.1); " + writes}},
	// A check of a batch is good for the variable's value there.
	{steps: []string{byBatch + writes + then + setBefore + then + plainWrite}},
	// A statement with a name sets the variable of a session that carries nothing.
	{bare: true, leaves: true, steps: []string{asNamed + "SELECT set_config('wirefence.token', 'orders={before}', false)", "EXECUTE n1", plainWrite}},
	// A release is prepared behind a DISCARD ALL that has no answer yet.
	{leaves: true, steps: []string{atOnce + "DISCARD ALL" + then + "PREPARE x AS " + unlocks, setToken, writes, writes, writes, "BEGIN", writes, "EXECUTE x", "", "COMMIT"}},
	// That the variable was empty is told while a later message waits.
	{steps: []string{clearToken, atOnce + "SHOW work_mem" + then + setBefore + then + "CALL write_and_commit(1)"}},
}

// tell plays one of the stories, by the session variable or by comments. It reports whether
// the session lives.
func (s *trafficSession) tell(byComment, bare bool) bool {
	story := stories[s.draw.IntN(len(stories))]
	for story.bare && !bare || bare && !story.bare && s.draw.IntN(4) > 0 || story.strict && !s.strict {
		story = stories[s.draw.IntN(len(stories))]
	}
	if !s.between() {
		return false
	}
	steps, write := story.steps, commentedWrite
	switch {
	case !byComment:
		steps, write = append([]string{setToken}, steps...), plainWrite
	case !bare:
		steps = append([]string{clearToken}, steps...) // it would fence what has no comment
	}
	unlock := []string{"SELECT pg_advisory_unlock_all()", unlockByKey}[s.draw.IntN(2)]
	fill := strings.NewReplacer(writes, write, unlocks, unlock)
	token := s.current.Load()
	values := strings.NewReplacer("{token}", strconv.FormatInt(token, 10), "{before}", strconv.FormatInt(token-1, 10))
	s.note("tells %q", steps)
	defer s.note("has told")
	for _, step := range steps {
		if step == "" {
			s.awaitSeal(token)
			continue
		}
		if !s.step(values.Replace(fill.Replace(step))) {
			return false
		}
		if s.failed { // what goes on may run outside of the block that it is meant for
			break
		}
	}
	// What a broken off story has begun mustn't be committed under another fence.
	return s.between() && (!story.leaves || s.send(1, s.alone("DISCARD ALL")))
}

// awaitSeal waits for the next token. Most waits are short: a seal has to wait for the others.
func (s *trafficSession) awaitSeal(token int64) {
	n := s.draw.IntN(20)
	for end := time.Now().Add(time.Duration(20+n*n*n/16) * time.Millisecond); s.current.Load() == token && time.Now().Before(end); {
		think(context.Background(), 5*time.Millisecond)
	}
}

// between ends an open transaction.
func (s *trafficSession) between() bool {
	return s.TxStatus() == 'I' || s.send(1, s.alone("ROLLBACK"))
}

// step sends a step of a story.
func (s *trafficSession) step(sql string) bool {
	how, text, _ := strings.Cut(sql, ": ")
	syncs, messages := 1, []pgproto3.FrontendMessage(nil)
	switch how + ": " {
	case asNamed:
		messages = []pgproto3.FrontendMessage{closeOf('S', "n1"), parseOf("n1", text), &pgproto3.Sync{}}
	case byBatch:
		messages = pipelined(append(strings.Split(text, then), "")...)
	case atOnce:
		messages = queries(strings.Split(text, then)...)
		syncs = len(messages)
	default:
		return s.send(1, s.alone(sql))
	}
	s.note("sends %s", sql)
	return s.send(syncs, messages)
}
