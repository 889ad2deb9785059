package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// events reads what was printed with -o json.
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
	wirefence(t, issuer(url), "history").expect(t, 0).says(t, "No matching events are in the history.")
	if r := wirefence(t, issuer(url), "history", "-o", "json").expect(t, 0); strings.TrimSpace(r.stdout) != "[]" {
		t.Errorf("an empty history in JSON: %s", r.stdout)
	}
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 33, 'worker-A/1')", "SELECT wirefence.seal('orders', 34, 'worker-B/1')", "SELECT wirefence.seal('lines', 7, 'worker-A/2')",
		"SELECT nextval('wirefence.refusals')", "SELECT nextval('wirefence.history_dropped')")
	lines := strings.Split(strings.TrimSpace(wirefence(t, issuer(url), "history").stdout), "\n")
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "AT ") || !strings.Contains(lines[2], "worker-B/1") || !strings.Contains(lines[2], "from worker-A/1") ||
		lines[4] != "Not recorded: 1 of 1 refusals that the database has raised. No proxy records them here, or not yet; without one only the last four are kept." ||
		lines[5] != "Not recorded: 1 handoffs, ended transactions or notes of shadow mode, ever, for the history was locked or could not be written." {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	for filter, want := range map[string]string{
		"orders": "33 34", "orders --limit=1": "34", "lines --kind=handoff,refusal": "7", "--kind=refusal": "", "--since=1h": "33 34 7",
		"--since=2100-01-01T00:00:00Z": "", "unheard": "",
		"--since=30d": "33 34 7", "--since=2026-01-01": "33 34 7", "--kind=,refusal,handoff,": "33 34 7", "--kind=refusal --kind=handoff --limit=2": "34 7",
	} {
		var tokens []string
		for _, e := range events(t, wirefence(t, issuer(url), append([]string{"history", "-o", "json"}, strings.Fields(filter)...)...)) {
			tokens = append(tokens, fmt.Sprint(e.Token))
		}
		if got := strings.Join(tokens, " "); got != want {
			t.Errorf("history %s has the tokens %q, want %q", filter, got, want)
		}
	}
	for _, c := range [][2]string{
		{"--limit=0", `--limit is "0": 1 to 1000000`}, {"--limit=1000001", "--limit"}, {"--since=yesterday", "--since"}, {"--since=-1h", "--since"},
		{"--since=0d", "30d"}, {"--kind=crash", "no kind of event"}, {"a b", "one resource or none"},
	} {
		wirefence(t, issuer(url), append([]string{"history"}, strings.Fields(c[0])...)...).expect(t, exitUsage, c[1])
	}
}

// Without a proxy a refusal gets into the history by the next look, or the next end of a lock.
func TestRefusalsWithoutAProxyGetIntoTheHistory(t *testing.T) {
	t.Parallel()
	for what, look := range map[string][]string{"history": {"history"}, "status": {"status"}, "lock": {"lock", "other", "--", "true"}} {
		url := database(t, true)
		stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B/1')")
		if _, err := stack.Connect(t, url).Exec(t.Context(), "SELECT wirefence.check('orders=33')"); !fence.IsStale(err) {
			t.Fatal(err)
		}
		r := wirefence(t, issuer(url), look...).expect(t, 0)
		if what == "status" && !strings.HasSuffix(strings.Join(strings.Fields(r.stdout), " "), " 0 1 0") {
			t.Errorf("status doesn't count it:\n%s", r.stdout)
		}
		var got string
		if err := stack.Connect(t, url).QueryRow(t.Context(), "SELECT concat_ws(' ', state, resource, token, current_token, holder) FROM wirefence.history WHERE kind = 'refusal'").Scan(&got); err != nil || got != "WF001 orders 33 34 worker-B/1" {
			t.Errorf("after wirefence %s the history has %q, %v", what, got, err)
		}
	}
}

func TestHistorySaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 33, 'worker-A/QVXZRMVGKUM73TYBHMKPIWY7X6')", "SELECT wirefence.seal('orders', 34, 'worker-B/1')",
		"SELECT nextval('wirefence.refusals')")
	const more = "Only the newest 1 are shown: --limit shows more."
	r := wirefence(t, issuer(url), "history", "--limit=1").expect(t, 0).says(t, more, "worker-B/1", "from worker-A,", ", process ")
	if strings.Contains(r.stdout, "QVX") || strings.Count(r.stdout, "handoff") != 1 {
		t.Errorf("got\n%s", r.stdout)
	}
	if r := wirefence(t, issuer(url), "history", "--limit=2").expect(t, 0); strings.Contains(r.stdout, "Only the newest") {
		t.Errorf("got\n%s", r.stdout)
	}
	wirefence(t, issuer(url), "history", "unheard").expect(t, 0).says(t, "Nothing is recorded of unheard.", "Not recorded, of whatever resource: 1 of 1 refusals")
	wirefence(t, issuer(url), "history", "orders", "--kind=refusal").expect(t, 0).says(t, "No matching events are recorded of orders.")
}

// Names of resources and applications come from clients, and may hold any characters.
func TestTablesHoldWhatIsInThem(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	const evil = "evil\n2026-11-21T19:00:00.000Z  handoff\x1b[2J\tx"
	conn := stack.Connect(t, url)
	if _, err := conn.Exec(t.Context(), "SELECT wirefence.declare_resource($1, $2), wirefence.seal($1, 7, $3)", evil, "why\x1b[2J", "me\r/1"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "INSERT INTO wirefence.history (kind, resource, application, reason, proxy) VALUES ('refusal', $1, $1, $1, $1)", evil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  string
		lines int
	}{{"history", 3}, {"status", 2}, {"resource list", 2}, {"resource show", 14}, {"revoke", 2}} {
		words := strings.Fields(c.args)
		if words[len(words)-1] == "show" || words[0] == "revoke" {
			words = append(words, evil)
		}
		r := wirefence(t, issuer(url), words...).expect(t, 0).says(t, strconv.Quote(evil))
		if strings.ContainsAny(r.stdout, "\x1b\r\t") || strings.Count(r.stdout, "\n") != c.lines {
			t.Errorf("%s: %d lines\n%q", c.args, strings.Count(r.stdout, "\n"), r.stdout)
		}
	}
	for text, want := range map[string]string{"": "-", "orders": "orders", "café à gogo": "café à gogo", "\xff": `"\xff"`, "a\u202eb": `"a\u202eb"`} {
		if got := cellOrDash(text); got != want {
			t.Errorf("%q is printed as %s", text, got)
		}
	}
}

// A follower prints each event once, also one that is committed or recorded late, until it is interrupted.
func TestAFollowerMissesNothing(t *testing.T) {
	t.Parallel()
	url := database(t, true)
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 33, 'worker-A/1'), wirefence.seal('old', 1, 'worker-A/2')")
	text, lines := start(t, issuer(url), "history", "orders", "--follow"), start(t, issuer(url), "history", "--follow", "-o", "json", "--limit=1")
	text.stdout.Await(t, "worker-A/1")
	lines.stdout.Await(t, "worker-A/2")
	// A transaction that has taken long: its row has a time of before.
	stack.Exec(t, url, "INSERT INTO wirefence.history (kind, resource, token, at) VALUES ('refusal', 'orders', 32, now() - interval '9 min')")
	text.stdout.Await(t, "refusal")
	lines.stdout.Await(t, "refusal")
	stack.Exec(t, url, "SELECT wirefence.seal('orders', 34, 'worker-B/1')")
	for _, r := range []*running{text, lines} {
		r.stdout.Await(t, "worker-B/1")
		r.signal(t, os.Interrupt)
	}
	printed := strings.Split(strings.TrimSpace(text.end(t).expect(t, 0).stdout), "\n")
	if len(printed) != 4 {
		t.Fatalf("a heading and three events were expected:\n%s", strings.Join(printed, "\n"))
	}
	for _, line := range printed[1:] {
		if at := strings.Index(printed[0], "RESOURCE"); line[at-1] != ' ' || line[at] == ' ' {
			t.Errorf("the columns don't line up:\n%s", strings.Join(printed, "\n"))
		}
	}
	decoder, tokens := json.NewDecoder(strings.NewReader(lines.end(t).expect(t, 0).stdout)), ""
	for decoder.More() {
		var e fence.Event
		if err := decoder.Decode(&e); err != nil {
			t.Fatal(err)
		}
		tokens += fmt.Sprint(e.Token, " ")
	}
	if tokens != "1 32 34 " {
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
	for _, e := range events(t, wirefence(t, issuer(url), "history", "orders", "-o", "json", "--kind=refusal")) {
		if e.State != fence.StaleToken || e.Token != 33 || e.CurrentToken != 34 || e.Proxy != "proxy-true" || e.Login == "" || time.Since(e.At) > time.Minute {
			t.Errorf("recorded: %+v", e)
		}
		count += e.Count
	}
	if count != 2 {
		t.Errorf("%d refusals are recorded", count)
	}
	// A proxy may be about to record what is younger than a minute.
	if r := wirefence(t, issuer(url), "history", "--kind=refusal").expect(t, 0); strings.Contains(r.stdout, "Not recorded") {
		t.Errorf("told too early:\n%s", r.stdout)
	}
	for range 2 { // minutes
		stack.Exec(t, url, "UPDATE wirefence.history_bounds SET marked_at = marked_at - interval '1 min'", "SELECT wirefence.prune_history()")
	}
	wirefence(t, issuer(url), "history", "--kind=refusal").expect(t, 0).says(t, "Not recorded: 2 of 4 refusals that the database has raised, the last before 20")
	stack.Exec(t, url, "UPDATE wirefence.history_bounds SET overdue_at = overdue_at - interval '2 h'")
	if r := wirefence(t, issuer(url), "history", "--since=1h").expect(t, 0); strings.Contains(r.stdout, "Not recorded") {
		t.Errorf("what is older is told:\n%s", r.stdout)
	}
}

// Names are what they are in a database of another encoding, too.
func TestNamesInADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	pg, name := postgres(t), fmt.Sprintf("latin_%d", time.Now().UnixNano())
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE "+name+" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	url := pg.URL(name)
	wirefence(t, issuer(url), "migrate").expect(t, 0)
	stack.Exec(t, url+"&client_encoding=UTF8", "SELECT wirefence.seal('café', 34, 'Zoë/1')")
	p := startProxy(t, url)
	_, err := stack.Connect(t, p.url+"&client_encoding=UTF8").Exec(t.Context(), "SELECT wirefence.check('caf%C3%A9=33')")
	stack.WantState(t, err, "WF001", "café")
	p.signal(t, os.Interrupt)
	p.end(t).expect(t, 0)
	if all := events(t, wirefence(t, issuer(url), "history", "café", "-o", "json")); len(all) != 2 || all[0].Holder != "Zoë/1" || all[1].Resource != "café" || all[1].Holder != "Zoë/1" {
		t.Errorf("the history has %+v", all)
	}
	wirefence(t, issuer(url), "status").expect(t, 0).says(t, "café", "Zoë")
	wirefence(t, issuer(url), "revoke", "café").expect(t, 0).says(t, "Zoë")
}
