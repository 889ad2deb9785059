package session

import (
	"maps"
	"slices"
)

// rare are texts that only clients of a world send.
var rare = map[string]behaviour{
	"BEGIN ISOLATION LEVEL REPEATABLE READ":            beginsFrozen(false),
	"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY": beginsFrozen(true),
	deferring: defers,
}

var rareTexts = slices.Sorted(maps.Keys(rare))

// defers fires a trigger at the transaction's end. If the statement carries no fence, the one of
// COMMIT counts for that.
func defers(b *backend, carried []string) result {
	r := writing("INSERT 0 1")(b, carried)
	b.tx.deferred = b.tx.deferred || r.code == "" && len(b.effective(carried)) == 0
	return r
}

const (
	inserts   = "INSERT INTO t VALUES (1)"
	signed    = " /*wirefence.token='a=1'*/"
	former    = " /*wirefence.token='a=3'*/"
	anothers  = " /*wirefence.token='b=1'*/"
	setToken  = "SET wirefence.token = 'a=1'"
	setBefore = "SET wirefence.token = 'a=3'"
	setNone   = "SET wirefence.token = ''"
	declaring = "DECLARE h CURSOR WITH HOLD FOR SELECT write()"
	deferring = "INSERT INTO delayed VALUES (1)"
	frozen    = "BEGIN ISOLATION LEVEL REPEATABLE READ"
	// How a step is sent: as the statement p, of p, as a batch, as several queries at once.
	asNamed  = "as p: "
	runNamed = "run p"
	byBatch  = "by batch: "
	atOnce   = "at once: "
	andThen  = " then "
)

// stories are what random texts seldom come to. An empty text is a pause, in which a takeover may
// come.
var stories = [][]string{
	{inserts, inserts, inserts, "", inserts, "", inserts},
	{frozen + ", READ ONLY", "SELECT 1", "", "SELECT 1" + signed, "COMMIT"},
	{frozen, "SELECT 1", "", inserts, "COMMIT"},
	{inserts, inserts, inserts, unlocking, "BEGIN", inserts, "", "COMMIT"},
	{inserts, inserts, inserts, "BEGIN", inserts, unlocking, "", "COMMIT"},
	{inserts, inserts, inserts, "BEGIN", inserts, unlocking + anothers, "", "COMMIT"},
	{inserts, inserts, inserts, "BEGIN", inserts, "SAVEPOINT s", unlocking, "ROLLBACK TO s", "", "COMMIT"},
	{inserts, inserts, inserts, "BEGIN", inserts, "SAVEPOINT s" + anothers, unlocking + anothers, "ROLLBACK TO s", "", "COMMIT"},
	{setToken, inserts, inserts, inserts, "BEGIN", setBefore, inserts, "COMMIT"},
	{asNamed + unlocking, inserts, inserts, inserts, "BEGIN", inserts, "EXECUTE p", "", "COMMIT"},
	{asNamed + "SELECT set_config('wirefence.token', 'a=3', false)", setToken, inserts, inserts, inserts, "EXECUTE p; " + inserts},
	{"PREPARE p AS " + unlocking, inserts, inserts, inserts, "BEGIN", inserts, "EXECUTE p", "", "COMMIT"},
	{atOnce + "DISCARD ALL" + andThen + "PREPARE p AS " + unlocking, setToken, inserts, inserts, inserts, "BEGIN", inserts, "EXECUTE p", "", "COMMIT"},
	{byBatch + inserts + andThen + setBefore + andThen + inserts},
	{setNone, "BEGIN", deferring, setBefore, "COMMIT"},
	{setNone, "BEGIN", "SELECT 1" + signed, deferring, "COMMIT" + former},
	{setNone, "BEGIN", deferring, "SAVEPOINT s", "SELECT 1" + signed, "ROLLBACK TO s", "", "COMMIT" + signed},
	{setNone, "BEGIN", deferring, setBefore, "SAVEPOINT s" + anothers, setToken, "SELECT 1", "ROLLBACK TO s", "COMMIT"},
	{setNone, "BEGIN", deferring, setBefore, "SAVEPOINT s" + anothers, setToken + "; SELECT 1; ROLLBACK TO s; COMMIT"},
	{setToken, "BEGIN", "SELECT 1", "SAVEPOINT s", "SET LOCAL wirefence.token = ''", declaring, "RELEASE s", "COMMIT"},
	{setNone, atOnce + "SHOW x" + andThen + setBefore + andThen + "CALL p()"},
}

// bareStories are those of a session whose variable was never set.
var bareStories = [][]string{
	{"BEGIN", deferring, setBefore, "COMMIT"},
	{"BEGIN", "SELECT 1" + signed, "COMMIT AND CHAIN", deferring, "", "COMMIT" + signed},
	{asNamed + "SELECT set_config('wirefence.token', 'a=3', false)", "EXECUTE p", inserts},
}
