package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// events reads what was printed with --json.
func events(t *testing.T, r result) (all []fence.Event) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.expect(t, 0).stdout), &all); err != nil {
		t.Fatalf("%v:\n%s", err, r.stdout)
	}
	return all
}

func TestHistory(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	wirefence(t, issuer(url), "history").expect(t, 0).says(t, "Nothing of the kind is in the history.")
	if r := wirefence(t, issuer(url), "history", "--json").expect(t, 0); strings.TrimSpace(r.stdout) != "[]" {
		t.Errorf("an empty history in JSON: %s", r.stdout)
	}
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 33, 'worker-A/1')", "SELECT wirefence.seal('orders', 34, 'worker-B/1')", "SELECT wirefence.seal('lines', 7, 'worker-A/2')",
		"SELECT nextval('wirefence.refusals')", "SELECT nextval('wirefence.history_dropped')")
	lines := strings.Split(strings.TrimSpace(wirefence(t, issuer(url), "history").stdout), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "AT ") || !strings.Contains(lines[2], "worker-B/1") || !strings.Contains(lines[2], "from worker-A/1") ||
		lines[4] != "Not recorded: 1 of 1 refusals that the database has raised, for writes around the proxies or ones whose proxy could not record them." ||
		lines[5] != "Not recorded: 1 handoffs, since the history could not be written." {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	for filter, want := range map[string]string{
		"orders": "33 34", "orders --limit=1": "34", "lines --kind=handoff,refusal": "7", "--kind=refusal": "", "--since=1h": "33 34 7",
		"--since=2100-01-01T00:00:00Z": "", "unheard": "",
	} {
		var tokens []string
		for _, e := range events(t, wirefence(t, issuer(url), append([]string{"history", "--json"}, strings.Fields(filter)...)...)) {
			tokens = append(tokens, fmt.Sprint(e.Token))
		}
		if got := strings.Join(tokens, " "); got != want {
			t.Errorf("history %s has the tokens %q, want %q", filter, got, want)
		}
	}
	for _, c := range [][2]string{
		{"--limit=0", "--limit must be from 1 to 1000000"}, {"--limit=1000001", "--limit"}, {"--since=yesterday", "--since"}, {"--since=-1h", "--since"},
		{"--kind=crash", "no kind of event"}, {"a b", "one resource or none"},
	} {
		wirefence(t, issuer(url), append([]string{"history"}, strings.Fields(c[0])...)...).expect(t, exitUsage, c[1])
	}
}

// A follower prints each event once, until it is interrupted.
func TestHistoryIsFollowed(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 33, 'worker-A/1')")
	text, lines := start(t, issuer(url), "history", "orders", "--follow"), start(t, issuer(url), "history", "--follow", "--json", "--limit=1")
	text.stdout.await(t, "worker-A/1")
	lines.stdout.await(t, "worker-A/1")
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B/1')")
	text.stdout.await(t, "worker-B/1")
	lines.stdout.await(t, "worker-B/1")
	stack.Exec(t, url, "SELECT wirefence.seal('lines', 1, 'worker-D/1')", "SELECT wirefence.seal('orders', 35, 'worker-C/1')")
	text.stdout.await(t, "worker-C/1")
	lines.stdout.await(t, "worker-C/1")
	for _, r := range []*running{text, lines} {
		r.signal(t, os.Interrupt)
	}
	if r := text.end(t).expect(t, 0); strings.Count(r.stdout, "\n") != 4 || strings.Contains(r.stdout, "worker-D") {
		t.Errorf("a heading and three events were expected:\n%s", r.stdout)
	}
	decoder, tokens := json.NewDecoder(strings.NewReader(lines.end(t).expect(t, 0).stdout)), ""
	for decoder.More() {
		var e fence.Event
		if err := decoder.Decode(&e); err != nil {
			t.Fatal(err)
		}
		tokens += fmt.Sprint(e.Token, " ")
	}
	if tokens != "33 34 1 35 " {
		t.Errorf("the tokens of the events are %s", tokens)
	}
}

// The proxy records what it saw refused, the last of it at its end.
func TestProxyRecordsRefusals(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "CREATE TABLE writes (id int)", "SELECT wirefence.seal('orders', 34, 'worker-B/1')")
	for _, history := range []string{"true", "false"} {
		p := startProxy(t, url, "WIREFENCE_HISTORY="+history, "WIREFENCE_HOLDER=proxy-"+history)
		conn := stack.Connect(t, p.url)
		for _, sql := range []string{"SET wirefence.token = 'orders=33'", "INSERT INTO writes VALUES (1)", "INSERT INTO writes VALUES (2)"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil && !fence.IsStale(err) {
				t.Fatal(err)
			}
		}
		_ = conn.Close(t.Context())
		p.signal(t, os.Interrupt)
		p.end(t).expect(t, 0)
	}
	var count int64
	for _, e := range events(t, wirefence(t, issuer(url), "history", "orders", "--json", "--kind=refusal")) {
		if e.State != fence.StaleToken || e.Token != 33 || e.CurrentToken != 34 || e.Proxy != "proxy-true" || e.Login == "" || time.Since(e.At) > time.Minute {
			t.Errorf("recorded: %+v", e)
		}
		count += e.Count
	}
	if count != 2 {
		t.Errorf("%d refusals are recorded", count)
	}
	wirefence(t, issuer(url), "history", "--kind=refusal").expect(t, 0).says(t, "Not recorded: 2 of 4 refusals")
}
