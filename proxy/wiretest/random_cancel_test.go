package wiretest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"pgregory.net/rapid"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// work is one statement of a session that is cancelled at random moments, with
// all that belongs to it up to its ReadyForQuery.
type work struct {
	row      int // that it inserts, if it succeeds; 0 is none
	messages []pgproto3.FrontendMessage
}

func drawWork(t *rapid.T, row int) work {
	insert := fmt.Sprintf("INSERT INTO t VALUES (%d, 'a')", row)
	slow := fmt.Sprintf("INSERT INTO t SELECT %d, 'b' FROM pg_sleep(0.003)", row)
	// Another session holds this lock until the first cancellation has come.
	blocked := fmt.Sprintf("INSERT INTO t SELECT %d, 'c' FROM pg_advisory_xact_lock(8)", row)
	sql := rapid.SampledFrom([]string{"SELECT 1", "SELECT pg_sleep(0.003)", insert, insert, slow, blocked}).Draw(t, "sql")
	w := work{row: row}
	if !strings.HasPrefix(sql, "INSERT") {
		w.row = 0
	}
	switch rapid.SampledFrom([]string{"simple", "extended", "pair", "copy"}).Draw(t, "way") {
	case "simple":
		w.messages = all(q(sql))
	case "extended":
		w.messages = all(run(sql), sync_)
	case "pair":
		w.messages = all(run("SELECT pg_sleep(0.002)"), run(sql), describe('S', ""), sync_)
	default:
		w.row = row
		w.messages = all(q("COPY t FROM STDIN"), data(fmt.Sprintf("%d\td\n", row)), copyDone)
	}
	return w
}

// What a cancellation hits is a matter of time, but this is not: each Query and
// Sync has one ReadyForQuery, what fails does so with 57014, a row is there if
// and only if its statement succeeded, and a query that is sent when the
// cancellations are done is not hit. In a session with a fence the check may be
// what is hit, and then its statement has not run.
func TestRandomCancellations(t *testing.T) {
	for i, by := range []carrier{unfenced, byVariable, byComment} {
		for n, major := range majors {
			if testing.Short() && n != i%len(majors) {
				continue
			}
			t.Run(fmt.Sprint(by.name, " ", major), func(t *testing.T) {
				t.Parallel()
				pl := at(t, major)
				addr := stackProxy(t, pl, proxy.Options{})
				blocker := login(t, pl, pl.Addr())
				rapid.Check(t, func(t *rapid.T) { cancelled(t, pl, addr, by, blocker) })
			})
		}
	}
}

func cancelled(t *rapid.T, pl *place, addr string, by carrier, blocker *peer) {
	pl.Exec(t, "TRUNCATE t")
	blocker.query("SELECT pg_advisory_lock(8)")
	works := make([]work, rapid.IntRange(1, 8).Draw(t, "statements"))
	var messages []pgproto3.FrontendMessage
	for i := range works {
		works[i] = drawWork(t, i+1)
		messages = append(messages, works[i].messages...)
	}
	p := dial(t, pl, addr)
	defer p.Conn.Close()
	p.Write(stack.Startup(v30, pl.Name, by.startup...))
	p.Ready(1)
	p.Text, p.Patience, p.sent = by.text, soon, "was sent "+describeAll(messages)
	pid, key := p.Key()
	from, seen := p.Taken(), 0
	p.Send(messages...)
	unblocked := false
	for range rapid.IntRange(1, 6).Draw(t, "cancellations") {
		for range rapid.IntRange(0, 2).Draw(t, "answers before") {
			if unblocked && seen < len(works) {
				p.Ready(1)
				seen++
			}
		}
		stack.CancelRequest(t, addr, pid, key)
		if !unblocked {
			blocker.query("SELECT pg_advisory_unlock(8)")
			unblocked = true
		}
	}
	p.Ready(len(works) - seen)
	if last := p.query("SELECT 'the very end'"); !strings.Contains(strings.Join(last, " "), "the very end") {
		t.Fatalf("a query behind the last cancellation is answered by %q\n%s", last, p.story())
	}
	want := judgeCancelled(t, p, p.transcript()[from:], works)
	p.Send(terminate)
	p.End()
	if got := stack.Value[string](t, pl.DB, "SELECT coalesce(string_agg(id::text, ' ' ORDER BY id), '') FROM t"); got != want {
		t.Fatalf("t holds %q, want %q\n%s", got, want, p.story())
	}
}

// judgeCancelled goes through the answers and returns the rows that must be
// there.
func judgeCancelled(t stack.TB, p *peer, lines []string, works []work) string {
	t.Helper()
	var rows []string
	for i, w := range works {
		end := slices.IndexFunc(lines, func(line string) bool { return line[0] == 'Z' })
		if end < 0 || lines[end] != `Z "I"` {
			t.Fatalf("statement %d has no end\n%s", i+1, p.story())
		}
		failed := false
		for _, line := range lines[:end] {
			if line[0] == 'E' {
				failed = true
				if !strings.Contains(line, "| C57014 |") {
					t.Fatalf("statement %d fails with %s\n%s", i+1, line, p.story())
				}
			}
		}
		if w.row > 0 && !failed {
			rows = append(rows, fmt.Sprint(w.row))
		}
		lines = lines[end+1:]
	}
	return strings.Join(rows, " ")
}
