package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/lockclient/finding"
)

func says(f Finding) func(context.Context, *Input) ([]Finding, error) {
	return func(context.Context, *Input) ([]Finding, error) { return []Finding{f}, nil }
}

func hangs(ctx context.Context, _ *Input) ([]Finding, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// examples has a check for each possible outcome.
var examples = []Check{
	{"a.reachable", nil, says(Finding{Says: "it answers"})},
	{"a.worst", []string{"a.reachable"}, func(context.Context, *Input) ([]Finding, error) {
		return []Finding{{Grade: Warning, Says: "a warning", Means: "not much", Remedy: []string{"one", "two\nlines"}}, {Grade: Note, Says: "a note"}}, nil
	}},
	{"b.reachable", nil, says(Finding{Grade: Problem, Says: "it doesn't"})},
	{"b.settings", []string{"a.reachable", "b.reachable"}, says(Finding{Says: "never said"})},
	{"b.more", []string{"b.settings"}, says(Finding{Says: "never said"})},
	{"c.hangs", nil, hangs},
	{"c.fails", nil, func(context.Context, *Input) ([]Finding, error) {
		return []Finding{{Says: "seen before"}}, errors.New("broken off")
	}},
	{"c.silent", nil, func(context.Context, *Input) ([]Finding, error) { return nil, nil }},
	{"c.right", nil, func(context.Context, *Input) ([]Finding, error) {
		return nil, &finding.MissingRight{What: "not allowed", Remedy: []string{"GRANT it"}}
	}},
	{"c.asks", []string{"d.unknown"}, says(Finding{Says: "never said"})},
}

// The proxy's limit matters only where connections run out.
func TestConnections(t *testing.T) {
	s := serverSettings{Connections: 100, Reserved: 3, Backends: 20}
	if found := judgeConnections(&Input{MaxConnections: 1000}, s); len(found) != 1 || found[0].Grade != OK {
		t.Errorf("%+v", found)
	}
	s.Backends = 95
	for admitted, remedies := range map[int]int{50: 1, 1000: 2} {
		if found := judgeConnections(&Input{MaxConnections: admitted}, s); len(found) != 1 || found[0].Grade != Warning || len(found[0].Remedy) != remedies {
			t.Errorf("%d clients are admitted: %+v", admitted, found)
		}
	}
}

func TestChecksDontStopEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		results := run(t.Context(), &Input{}, examples, time.Minute)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("took %v", took)
		}
		want := []struct {
			check string
			grade Grade
			says  string
		}{
			{"a.reachable", OK, "it answers"}, {"a.worst", Warning, "a warning"}, {"b.reachable", Problem, "it doesn't"},
			{"b.settings", Unchecked, "because of b.reachable"}, {"b.more", Unchecked, "because of b.settings"},
			{"c.hangs", Unchecked, "no answer within 1m0s"}, {"c.fails", Unchecked, "broken off"}, {"c.silent", Unchecked, "returned no finding"},
			{"c.right", Unchecked, "not allowed"}, {"c.asks", Unchecked, "because of d.unknown"},
		}
		if len(results) != len(want) {
			t.Fatalf("%d results", len(results))
		}
		for i, w := range want {
			r := results[i]
			if r.Check != w.check || r.Grade != w.grade || !slices.ContainsFunc(r.Findings, func(f Finding) bool { return strings.Contains(f.Says, w.says) }) {
				t.Errorf("got %+v, want %+v", r, w)
			}
		}
		if worst := Worst(results); worst != Problem {
			t.Errorf("the worst is %v", worst)
		}
	})
}

// Checks that hang time out at the same time, as far as connections suffice.
func TestEachCheckHasItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks []Check
		for _, name := range []string{"1", "2", "3", "4", "5"} {
			checks = append(checks, Check{name, nil, hangs})
		}
		began := time.Now()
		results := run(t.Context(), &Input{}, checks, time.Second)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %v", took)
		}
		for _, r := range results {
			if r.Took != time.Second {
				t.Errorf("%s took %v", r.Check, r.Took)
			}
		}
	})
}

func TestPrinted(t *testing.T) {
	t.Parallel()
	results := run(t.Context(), &Input{}, examples[:4], time.Minute)
	var b bytes.Buffer
	if err := Print(&b, results); err != nil {
		t.Fatal(err)
	}
	const want = `ok         a.reachable  it answers
warning    a.worst      a warning
                        not much
                        -> one
                        -> two
                           lines
note       a.worst      a note
problem    b.reachable  it doesn't
unchecked  b.settings   not looked at, because of b.reachable

1 problem, 1 check could not be made, 1 warning; 1 of 4 checks are well.
`
	if b.String() != want {
		t.Errorf("got\n%s", &b)
	}
	b.Reset()
	if err := Print(&b, results[:1]); err != nil || !strings.HasSuffix(b.String(), "\nAll is well: 1 checks.\n") {
		t.Errorf("got\n%s", &b)
	}
	b.Reset()
	if err := PrintJSON(&b, results); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	check := got["checks"].([]any)[1].(map[string]any)
	if got["grade"] != "problem" || check["check"] != "a.worst" || check["grade"] != "warning" || check["findings"].([]any)[0].(map[string]any)["means"] != "not much" ||
		got["counts"].(map[string]any)["unchecked"] != 1.0 {
		t.Errorf("got %s", &b)
	}
}

// Every check has a unique name, and needs only checks before it.
func TestChecksAreInOrder(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	session, err := ParseSession("postgres://127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, c := range (&Input{Database: pool, Proxy: session, Upstream: session, Admin: "127.0.0.1:1"}).checks() {
		if slices.Contains(seen, c.Name) || !strings.Contains(c.Name, ".") {
			t.Errorf("%s is named twice, or not what it looks at", c.Name)
		}
		for _, need := range c.Needs {
			if !slices.Contains(seen, need) {
				t.Errorf("%s needs %s, which doesn't come before", c.Name, need)
			}
		}
		seen = append(seen, c.Name)
	}
}

func TestSessionsElsewhere(t *testing.T) {
	t.Parallel()
	as, err := ParseSession("postgres://me:secret@db:5432/app?sslmode=disable&options=-c%20a.b%3D1")
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		"127.0.0.1:6433": "127.0.0.1:6433", "0.0.0.0:7000": "127.0.0.1:7000", ":7000": "127.0.0.1:7000", "[::1]:7000": "::1:7000",
		"unix:/run/pg/.s.PGSQL.6433": "/run/pg:6433",
	} {
		cfg, err := ListenSession(address, as)
		if err != nil || cfg.Host+":"+port(cfg.Port) != want || cfg.User != "me" || cfg.Password != "secret" || cfg.Database != "app" {
			t.Errorf("%s leads to %+v, %v", address, cfg, err)
		}
	}
	cfg, err := UpstreamSession("postgres://one:1,two:2/?sslmode=disable&pooling=session&target_session_attrs=read-write", as)
	if err != nil || cfg.Host != "one" || cfg.Port != 1 || len(cfg.Fallbacks) != 1 || cfg.Fallbacks[0].Host != "two" || cfg.User != "me" || cfg.ValidateConnect == nil || cfg.TLSConfig != nil {
		t.Errorf("the upstream is %+v, %v", cfg, err)
	}
	if _, err := ListenSession("unix:/run/socket", as); err == nil {
		t.Error("a socket without a port is taken")
	}
	for listen, want := range map[string]string{"127.0.0.1:1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "127.0.0.1:1", "host:1": "host:1"} {
		if got, err := AdminAddress(listen); err != nil || got != want {
			t.Errorf("%s is asked at %s, %v", listen, got, err)
		}
	}
}

func port(n uint16) string {
	text, _ := json.Marshal(n)
	return string(text)
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"public.orders": "public.orders", `public."Orders"`: `'public."Orders"'`, "report:{id}": "'report:{id}'", "it's": `'it'\''s'`, "": "''",
	} {
		if got := quoted(word); got != want {
			t.Errorf("%q is %s, not %s", word, got, want)
		}
	}
	if got := literal("it's"); got != "'it''s'" {
		t.Errorf("the literal is %s", got)
	}
}
