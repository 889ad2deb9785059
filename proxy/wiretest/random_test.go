package wiretest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"pgregory.net/rapid"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// texts are what random sequences send, none of which changes the session
// variable for the better.
var texts = []string{
	"SELECT 1", "SELECT generate_series(1, 5)", "SELECT * FROM t", "SELECT 1/0", "SELEC", "", ";", "SELECT $1::text", "SELECT nowhere",
	"INSERT INTO t VALUES (1, 'a')", "INSERT INTO t VALUES (2, 'b') RETURNING v", "INSERT INTO t SELECT i, 'c' FROM generate_series(3, 6) i ON CONFLICT DO NOTHING RETURNING id",
	"UPDATE t SET v = v || 'x' RETURNING id", "DELETE FROM t", "WITH w AS (INSERT INTO t VALUES (7, 'w') RETURNING id) SELECT * FROM w",
	"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT a", "ROLLBACK TO a", "RELEASE a", "BEGIN; INSERT INTO t VALUES (8, 'd')", "COMMIT AND CHAIN", "START TRANSACTION READ ONLY",
	"INSERT INTO t VALUES (9, 'e'); SELECT 1", "SELECT 1; SELECT 2", "BEGIN; INSERT INTO t VALUES (10, 'f'); COMMIT; INSERT INTO t VALUES (11, 'g')", "INSERT INTO t VALUES (12, 'h'); ROLLBACK; INSERT INTO t VALUES (13, 'i')",
	"INSERT INTO t VALUES (14, 'j'); SELECT 1/0", "COMMIT; INSERT INTO t VALUES (15, 'k')",
	"COPY t FROM STDIN", "COPY t FROM STDIN", "COPY t TO STDOUT", "INSERT INTO t VALUES (16, 'l'); COPY t FROM STDIN; SELECT 1", "COPY nowhere FROM STDIN", "COPY (SELECT write_one(17)) TO STDOUT",
	"SELECT write_one(18)", "SELECT twice(2)", "SELECT say('hello')", "DO $$BEGIN INSERT INTO public.t VALUES (19, 'm') ON CONFLICT DO NOTHING; END$$", "CALL commits()", "DO $$BEGIN COMMIT; INSERT INTO public.t VALUES (20, 'n'); END$$",
	"PREPARE p AS INSERT INTO t VALUES (21, 'o') ON CONFLICT DO NOTHING", "EXECUTE p", "DEALLOCATE p", "DEALLOCATE ALL", "DISCARD ALL", "PREPARE s1 AS SELECT 5",
	"DECLARE c CURSOR FOR SELECT * FROM t", "DECLARE h CURSOR WITH HOLD FOR SELECT write_one(22)", "FETCH 1 FROM c", "FETCH ALL FROM h", "CLOSE ALL",
	"SET standard_conforming_strings = off; SET escape_string_warning = off", "SET standard_conforming_strings = on", `INSERT INTO t VALUES (23, 'it\'s') -- '`, `SELECT '\'; INSERT INTO t VALUES (24, 'q'); --'`,
	"SET search_path = public", "SET LOCAL datestyle = 'German'", "RESET ALL", "LOCK TABLE t", "TRUNCATE t", "SELECT * FROM t FOR UPDATE", "EXPLAIN ANALYZE INSERT INTO t VALUES (25, 'r') ON CONFLICT DO NOTHING",
	"CREATE TEMP TABLE IF NOT EXISTS own(a int)", "INSERT INTO own VALUES (1)", "DROP TABLE IF EXISTS own", "VACUUM t", "ALTER TABLE t ALTER v SET DEFAULT 'd'",
	"INSERT INTO t SELECT 26, set_config('app.who', 's', false) ON CONFLICT DO NOTHING RETURNING v", "SELECT set_config('app.who', 'u', true), write_one(27) -- the end",
	"DECLARE c CURSOR FOR SELECT set_config('app.who', i::text, false), write_one(40 + i) FROM generate_series(1, 3) i",
	"SELECT set_config('app.who', 'y', false); INSERT INTO t SELECT 34, set_config('app.who', '', false), nowhere",
}

// repeatable reports whether two runs of a text give the same bytes.
func repeatable(text string) bool { return !strings.Contains(text, "EXPLAIN ANALYZE") }

// theEnd is the last query of a sequence. It runs whatever token a session carries.
var theEnd = q("SET application_name = 'the very end'")

func isTheEnd(m stack.Message) bool {
	return m.Type == 'S' && strings.Contains(string(m.Body), "the very end")
}

// sequence draws messages. What it sends last ends whatever is under way: a
// COPY, a batch, a transaction.
func sequence(t *rapid.T, by way) []pgproto3.FrontendMessage {
	var usable []string
	for _, text := range texts {
		if by.fits(text) {
			usable = append(usable, text)
		}
	}
	kinds := []string{
		"query", "query", "run", "run", "run", "parse", "parse", "bind", "bind", "describe", "execute", "execute", "close", "flush", "sync", "sync", "sync", "sync",
		"copy", "copy", "data", "done", "fail", "bad",
	}
	switch by.name {
	case "refused":
		usable = append(usable, stale, stale, stale, stale, stale, stale)
	case heldVariable.name, byVariable.name: // a function may release what is held
	default:
		kinds = append(kinds, "call")
	}
	sql := rapid.SampledFrom(usable)
	statement, portal := rapid.SampledFrom([]string{"", "", "s1", "s2"}), rapid.SampledFrom([]string{"", "", "p1", "p2"})
	one := rapid.Custom(func(t *rapid.T) []pgproto3.FrontendMessage {
		switch rapid.SampledFrom(kinds).Draw(t, "kind") {
		case "query":
			return all(q(sql.Draw(t, "sql")))
		case "run":
			text := sql.Draw(t, "sql")
			return unnamed(text, run(text))
		case "parse":
			name, text := statement.Draw(t, "statement"), sql.Draw(t, "sql")
			if name == "" {
				return unnamed(text, all(parse("", text)))
			}
			return all(parse(name, text))
		case "bind":
			return all(bind(portal.Draw(t, "portal"), statement.Draw(t, "statement")))
		case "describe":
			if rapid.Bool().Draw(t, "of a portal") {
				return all(describe('P', portal.Draw(t, "portal")))
			}
			return all(describe('S', statement.Draw(t, "statement")))
		case "execute":
			return all(execute(portal.Draw(t, "portal"), uint32(rapid.IntRange(0, 2).Draw(t, "limit"))))
		case "close":
			if rapid.Bool().Draw(t, "of a portal") {
				return all(closing('P', portal.Draw(t, "portal")))
			}
			return all(closing('S', statement.Draw(t, "statement")))
		case "flush":
			return all(flush)
		case "sync":
			return all(sync_)
		case "copy":
			return all(data("30\ta\n"), data("31\tb\n"), copyDone)
		case "data":
			return all(data(rapid.SampledFrom([]string{"32\tc\n", "no number\n", "33\t", "", "d\n"}).Draw(t, "data")))
		case "done":
			return all(copyDone)
		case "fail":
			return all(copyFail("enough"))
		case "call":
			return all(fastpath(177, "1", rapid.SampledFrom([]string{"2", "x"}).Draw(t, "argument")))
		default:
			return all(rapid.SampledFrom([]pgproto3.FrontendMessage{
				rawMessage('Q', "no end"), rawMessage('Q', ""), rawMessage('P', "s1\x00SELECT 1"), rawMessage('B', "p1\x00"), rawMessage('E', ""), rawMessage('D', "X\x00"),
				bind("", "", "one", "two"), describe('S', "none"), rawMessage('S', "more"), rawMessage('H', "more"), rawMessage('c', "more"), rawMessage('E', "\x00\x00\x00\x00\x00more"),
				rawMessage('D', "S\x00more"), rawMessage('C', "S\x00more"), rawMessage('P', "s2\x00SELECT 1\x00\x00\x00more"), rawMessage('B', "\x00s1\x00\x00\x00\x00\x00\x00\x00more"),
			}).Draw(t, "bad"))
		}
	})
	var messages []pgproto3.FrontendMessage
	for _, group := range rapid.SliceOfN(one, 1, 14).Draw(t, "messages") {
		messages = append(messages, group...)
	}
	return append(messages, copyFail("the end"), sync_, q("ROLLBACK"), theEnd)
}

// unnamed are messages that begin with a Parse of the unnamed statement. PostgreSQL drops
// the one that was there before it reads the text, a refusal comes before the Parse and
// leaves it (docs/reference/protocol.md); so what is refused is dropped first.
func unnamed(text string, messages []pgproto3.FrontendMessage) []pgproto3.FrontendMessage {
	if text == stale {
		return all(closing('S', ""), messages)
	}
	return messages
}

// synchronised puts a Sync before each Query and FunctionCall that would come
// in the middle of a batch: behind one, PostgreSQL 18 is in a state that it
// didn't expect itself (XX000), and what it says then depends on whether the
// proxy has asked something of its own in between.
func synchronised(messages []pgproto3.FrontendMessage) (all []pgproto3.FrontendMessage) {
	open := false
	for _, m := range messages {
		raw, isRaw := m.(stack.Message)
		_, isQuery := m.(*pgproto3.Query)
		_, isCall := m.(*pgproto3.FunctionCall)
		switch {
		case isQuery || isCall || isRaw && raw.Type == 'Q':
			if open {
				all = append(all, sync_)
			}
			open = false
		default:
			open = m != sync_
		}
		all = append(all, m)
	}
	return all
}

// finish waits for the answer to the last query of a sequence, or for the end of
// the session. It reports whether the session lives.
func (p *peer) finish() (alive bool) {
	p.T.Helper()
	_, err := p.Await(func(m stack.Message) bool {
		alive = alive || isTheEnd(m)
		return alive && m.Type == 'Z' || m.Type == 'E' && strings.Contains(string(m.Body), "SFATAL")
	})
	if err != nil {
		p.T.Fatalf("waiting for the very end: %v\n%s", err, p.story())
	}
	return alive
}

// aborted stands for what a Parse gets in a failed transaction.
const aborted = "E the transaction has failed"

// soon is how long a random sequence may take: what hangs would be tried often.
const soon = 10 * time.Second

// leave is how a client goes.
type leave string

const (
	whenAnswered leave = "when all is answered"
	terminating  leave = "with a Terminate behind the last message"
	overlong     leave = "with a Terminate that has a body"
	halfClosing  leave = "with a half-closed front behind the last message"
	cuttingShort leave = "with a half-closed front in a message"
)

// A way is how the sequences of a test are fenced, and what of the texts they hold.
type way struct {
	carrier
	fits func(text string) bool
}

func mentions(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
}

// stale is a statement that the proxy refuses, by a check that stands ahead of its Parse
// already, and failing one that fails there without it.
const (
	stale   = "INSERT INTO t VALUES (99, 'stale') /*wirefence.token='orders=33'*/"
	failing = "INSERT INTO missing VALUES (98, 'failing')"
)

var ways = []way{
	{unfenced, repeatable},
	// What may release the hold is missing, so that nothing but SAVEPOINT is checked.
	{heldVariable, func(text string) bool { return repeatable(text) && !mentions(text, "DISCARD", "RESET ALL") }},
	// Missing is what a check can't cover, and what does without a block behind one.
	{byVariable, func(text string) bool {
		return repeatable(text) && !mentions(text, "CALL", "DO $$", "VACUUM", "DECLARE", "SET ")
	}},
	// EXECUTE and FETCH may run what was prepared with the fence, and get WF006.
	{carrier{name: "refused"}, func(text string) bool { return repeatable(text) && !mentions(text, "EXECUTE", "FETCH") }},
}

// One sequence of messages, direct and through the proxy, gives one sequence of
// answers, however it is cut and however the client leaves; and it ends. That is so
// without a fence, with a current one, and behind a refusal, which aborts what an
// error of PostgreSQL's own would abort.
//
// Evidence: I6
func TestRandomSequencesAgree(t *testing.T) {
	for i, by := range ways {
		for n, major := range majors {
			if i > 0 && testing.Short() && n != i%len(majors) {
				continue
			}
			t.Run(fmt.Sprint(major, " ", by.name), func(t *testing.T) {
				t.Parallel()
				pl := at(t, major)
				front := cutProxy(t, pl, proxy.Options{Hold: by.hold()})
				rapid.Check(t, func(t *rapid.T) {
					messages := synchronised(sequence(t, by))
					how := rapid.SampledFrom([]leave{whenAnswered, whenAnswered, whenAnswered, terminating, overlong, halfClosing, cuttingShort}).Draw(t, "leaving")
					if how != whenAnswered {
						messages = messages[:rapid.IntRange(1, len(messages)).Draw(t, "up to")]
					}
					cut := random(rapid.Uint64().Draw(t, "cut"))
					direct := by.carrier
					direct.text = func(sql string) string { return strings.Replace(sql, stale, failing, 1) }
					want := play(t, pl, pl.Addr(), whole, how, messages, direct)
					got := play(t, pl, front, cut, how, messages, by.carrier)
					if how == cuttingShort {
						// PostgreSQL takes a message amiss in copy-in mode by its first byte. Of the
						// proxy it gets whole messages, or hears that there are no more.
						for _, lines := range [][]string{want.lines, got.lines} {
							instead(lines, "| Munexpected message type 0x", "E the COPY is over")
							instead(lines, "| Munexpected EOF on client connection with an open transaction", "E the COPY is over")
						}
					}
					if by.name == byVariable.name {
						// Behind a failed statement the check says so before PostgreSQL says that a Parse
						// holds several statements.
						for _, lines := range [][]string{want.lines, got.lines} {
							instead(lines, "| C42601 | Mcannot insert multiple commands", aborted)
							instead(lines, "| C25P02 |", aborted)
						}
					}
					if d := part(want.lines, got.lines); d != "" && !agree(want, got) {
						t.Fatalf("leaving %s: %s\nsent %s", how, d, describeAll(messages))
					}
				})
			})
		}
	}
}

// answers are what came back, with what t holds in the end.
type answers struct {
	lines []string
	fatal bool // the server has ended the session, or seems to have
}

// agree reports whether two sessions that the server has ended say the same as
// far as they go. It closes its front with bytes of the client's unread, which
// resets the connection: then the kernel may lose its last words on their way,
// direct or not.
func agree(want, got answers) bool {
	if !want.fatal || !got.fatal {
		return false
	}
	// Which message it takes amiss in copy-in mode may be one of the proxy's own.
	for _, lines := range [][]string{want.lines, got.lines} {
		instead(lines, "| Munexpected message type 0x", "E an unexpected message during COPY")
	}
	n := min(len(want.lines), len(got.lines)) - 1
	return part(want.lines[:n], got.lines[:n]) == "" && want.lines[len(want.lines)-1] == got.lines[len(got.lines)-1]
}

// play sends messages and returns what comes back.
func play(t stack.TB, pl *place, addr string, cut cut, how leave, messages []pgproto3.FrontendMessage, by carrier) answers {
	t.Helper()
	pl.Exec(t, "TRUNCATE t")
	p := dial(t, pl, addr)
	defer p.Conn.Close()
	p.Write(stack.Startup(v30, pl.Name, by.startup...))
	p.Ready(1)
	if by.holds {
		p.query("SELECT 'the first is checked'")
		p.query("SELECT 'the second takes the hold'")
	}
	p.Text, p.Cut, p.Patience, p.sent = by.text, cut, soon, "to "+addr+" was sent "+describeAll(messages)
	p.Send(messages...)
	switch how {
	case whenAnswered:
		p.answered()
		p.Send(terminate)
	case terminating:
		p.Send(terminate)
	case overlong:
		p.Send(rawMessage('X', strings.Repeat("x", 200)))
	case halfClosing:
		p.CloseWrite()
	case cuttingShort:
		p.Write([]byte("Q\x00\x00\x00\x20SELECT"))
		p.CloseWrite()
	}
	p.End()
	pid, _ := p.Key()
	pl.Becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", pid)
	lines := p.transcript()
	for i, line := range lines {
		switch {
		case by.name == "refused" && mentions(line, "| CWF001 |", "| C42P01 |"):
			lines[i] = "E stale or failing"
		case strings.Contains(line, "MSAVEPOINT can only be used"): // who says so depends on what else is in the message
			lines[i] = "E no block for a SAVEPOINT"
		}
	}
	fatal := p.fatals() > 0
	if how == whenAnswered && !strings.Contains(strings.Join(lines, " "), "the very end") {
		fatal = true
	}
	return answers{append(lines, "t holds "+pl.rows(t)), fatal}
}

// answered waits for the answer to the last query of a sequence, or for the end
// of the connection.
func (p *peer) answered() {
	p.T.Helper()
	last := false
	_, err := p.Await(func(m stack.Message) bool {
		last = last || isTheEnd(m)
		return last && m.Type == 'Z'
	})
	if err != nil && !p.Ended() {
		p.T.Fatalf("no answer to the last query: %v\n%s", err, p.story())
	}
}

// Whatever a session does whose token is stale, in a variable or a comment, or
// that has none where one is required, no row is written, and the session ends
// with a ReadyForQuery.
func TestRandomSequencesWithAStaleToken(t *testing.T) {
	for _, c := range []struct {
		name    string
		o       proxy.Options
		startup []string
		comment string
	}{
		{name: "variable", startup: []string{"options", "-c wirefence.token=orders=33"}},
		{name: "comment", comment: "\n/*wirefence.token='orders=33'*/"},
		{name: "required", o: proxy.Options{UnfencedWrites: proxy.Reject}},
	} {
		for _, major := range majors {
			t.Run(fmt.Sprint(c.name, " ", major), func(t *testing.T) {
				t.Parallel()
				pl := at(t, major)
				front := cutProxy(t, pl, c.o)
				relations := "SELECT count(*)::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
				before := stack.Value[string](t, pl.DB, relations)
				rapid.Check(t, func(t *rapid.T) {
					messages := sequence(t, way{unfenced, func(string) bool { return true }})
					cut := random(rapid.Uint64().Draw(t, "cut"))
					p := dial(t, pl, front)
					defer p.Conn.Close()
					p.Write(stack.Startup(v30, pl.Name, c.startup...))
					p.Ready(1)
					p.Cut, p.Patience, p.sent = cut, soon, describeAll(messages)
					p.Text = func(sql string) string { return sql + c.comment }
					p.Send(messages...)
					// A simple query in the same batch as a CALL ends the session: WF006.
					if !p.finish() && !strings.Contains(p.last(), "| CWF006 |") {
						t.Fatalf("the session ended: %s", p.story())
					}
					p.Send(terminate)
					p.End()
					if rows := pl.rows(t); rows != "" {
						pl.Exec(t, "TRUNCATE t")
						t.Fatalf("t holds %s\nsent %s", rows, describeAll(messages))
					}
					if after := stack.Value[string](t, pl.DB, relations); after != before {
						t.Fatalf("%s relations became %s\nsent %s", before, after, describeAll(messages))
					}
				})
			})
		}
	}
}
