package fencingtest

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// Steps of a story. A text is sent as a Query or a batch. {token} is the token, {before}
// the one before, {own} the name under which the proxy has prepared its check, and an
// empty text is a pause.
const (
	writes     = "{write}"    // writes a row under the story's carrier
	unlocks    = "{unlock}"   // releases the session's locks
	byBatch    = "by batch: " // what is behind it is sent as a batch
	asNamed    = "as n1: "    // what is behind it is parsed as n1
	clearToken = "SET wirefence.token = ''"
	signed     = " /*wirefence.token='orders={token}'*/"
	anothers   = " /*wirefence.token='other=1'*/"
	setToken   = "SET wirefence.token = 'orders={token}'"
)

// stories are transactions that random statements seldom come to: each is against one rule,
// and commits a stale row without it (see rules). leaves says that a story prepares
// statements, which DISCARD ALL drops in the end, bare that it is for sessions whose variable
// was never set.
var stories = []struct {
	steps  []string
	leaves bool
	bare   bool
}{
	// The end of a subtransaction takes back a check in it.
	{steps: []string{writes, writes, writes, "BEGIN", writes, "SAVEPOINT s", unlocks, "ROLLBACK TO s", "", "COMMIT"}},
	{steps: []string{writes, writes, writes, "BEGIN", writes, "SAVEPOINT s" + signed, unlocks + signed, "ROLLBACK TO s", "", "COMMIT"}},
	// The lock of the hold is gone for what follows.
	{steps: []string{writes, writes, writes, unlocks, writes, writes, writes, writes, writes, writes, writes, writes, writes, writes, writes, writes}},
	// The lock of the hold goes by a message with another fence, or with none.
	{steps: []string{writes, writes, writes, "BEGIN", writes, unlocks + anothers, "", "COMMIT"}},
	{steps: []string{writes, writes, writes, "BEGIN", writes, unlocks, "", "COMMIT"}},
	{steps: []string{writes, writes, writes, "BEGIN", writes, "SAVEPOINT s" + anothers, unlocks + anothers, "ROLLBACK TO s", "", "COMMIT"}},
	// Stored code gives its own hold back, which isn't the proxy's.
	{steps: []string{writes, writes, writes, "BEGIN", writes, "SELECT unholds()", "", "COMMIT"}},
	// An EXECUTE releases the lock, or changes the fence.
	{leaves: true, steps: []string{asNamed + unlocks, writes, writes, writes, "BEGIN", writes, "EXECUTE n1", "", "COMMIT"}},
	{leaves: true, steps: []string{asNamed + "SELECT set_config('wirefence.token', 'orders={before}', false)", writes, writes, writes, "EXECUTE n1; " + plainWrite}},
	// The same by what was prepared out of a literal.
	{leaves: true, steps: []string{"DO $$ BEGIN EXECUTE 'PREPARE x AS SELECT pg_advisory_unlock_all()'; END $$", writes, writes, writes, "BEGIN", writes, "EXECUTE x", "", "COMMIT"}},
	{leaves: true, steps: []string{"SELECT run('PREPARE y AS SELECT set_config(''wire'' || ''fence.token'', ''orders={before}'', false)')", writes, writes, writes, "EXECUTE y; " + plainWrite}},
	// The variable gets the value that it had at the login.
	{steps: []string{writes, writes, writes, "RESET ALL", plainWrite}},
	// A trigger that COMMIT runs has another fence than the statement that it was deferred from.
	{steps: []string{"BEGIN", "INSERT INTO delayed VALUES (NULL, 'trigger at COMMIT')", "SET wirefence.token = 'orders={before}'", "COMMIT"}, bare: true},
	// The same where a check has found no fence meanwhile.
	{steps: []string{clearToken, "BEGIN", "INSERT INTO delayed VALUES (NULL, 'trigger at COMMIT')", "SET wirefence.token = 'orders={before}'", "COMMIT"}},
	// A check ends with its transaction, also within a text.
	{steps: []string{writes + "; COMMIT; SELECT pg_sleep(0.1); " + writes}},
	// The name of the proxy's check is given to another statement.
	{leaves: true, steps: []string{byBatch + writes, "DEALLOCATE {own}; PREPARE {own}(text) AS SELECT NULL::text", "SET wirefence.token = 'orders={before}'", "", byBatch + plainWrite}},
}

// tell plays one of the stories, by the session variable or by comments. It reports whether
// the session lives.
func (s *trafficSession) tell(byComment, bare bool) bool {
	story := stories[s.draw.IntN(len(stories))]
	if story.bare && !bare {
		return true
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
	for _, step := range steps {
		if !s.step(values.Replace(fill.Replace(step))) {
			return false
		}
		if s.refused {
			break
		}
	}
	if !story.leaves {
		return true
	}
	return s.between() && s.send(1, s.alone("DISCARD ALL"))
}

// between ends an open transaction.
func (s *trafficSession) between() bool {
	return s.TxStatus() == 'I' || s.send(1, s.alone("ROLLBACK"))
}

// step sends a step of a story.
func (s *trafficSession) step(sql string) bool {
	if strings.Contains(sql, "{own}") {
		name, lives := s.ownCheck()
		if name == "" || !lives {
			return lives
		}
		sql = strings.ReplaceAll(sql, "{own}", name)
	}
	named, isNamed := strings.CutPrefix(sql, asNamed)
	batch, isBatch := strings.CutPrefix(sql, byBatch)
	switch {
	case sql == "":
		think(context.Background(), time.Duration(60+s.draw.IntN(90))*time.Millisecond)
		return true
	case isNamed:
		s.note("sends Close, Parse n1, Sync %s", named)
		return s.send(1, []pgproto3.FrontendMessage{&pgproto3.Close{ObjectType: 'S', Name: "n1"}, &pgproto3.Parse{Name: "n1", Query: named}, &pgproto3.Sync{}})
	case isBatch:
		s.note("sends Parse, Bind, Execute, Sync %s", batch)
		return s.send(1, append(stack.Unnamed(batch), &pgproto3.Sync{}))
	}
	return s.send(1, s.alone(sql))
}

// ownCheck asks for the name under which the proxy has prepared its check, "" if there is
// none.
func (s *trafficSession) ownCheck() (name string, lives bool) {
	from := s.Taken()
	lives = s.send(1, s.alone(`SELECT name FROM pg_prepared_statements WHERE name ~ '^_wirefence_.*_check$'`))
	if names := stack.Column(s.Came(from)); len(names) > 0 {
		name = names[0]
	}
	return name, lives
}
