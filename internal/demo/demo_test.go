package demo

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// asWorker makes this test binary be a worker that says what the test wants.
const asWorker = "WFTEST_AS_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(asWorker) {
	case "die":
		os.Stderr.WriteString("out of memory\n")
		os.Exit(3)
	case "babble":
		os.Stdout.WriteString("{\"event\":\"wrote\",\"tag\":\"UPDATE 1\"}\n")
		_, _ = os.Stdin.Read(make([]byte, 1<<16))
		select {}
	}
	goleak.VerifyTestMain(m)
}

var (
	lost = outcome{a: 33, b: 34, zombie: event{Event: wrote, Tag: "UPDATE 1"}, row: order{cancelled, "A", 33}}
	kept = outcome{a: 33, b: 34, zombie: event{Event: failed, Code: "WF001", Message: "stale"}, row: order{shipped, "B", 34}}
)

func TestJudge(t *testing.T) {
	with := func(o outcome, change func(*outcome)) outcome { change(&o); return o }
	for name, c := range map[string]struct {
		without, with outcome
		says          []string // none: as in the story
	}{
		"story":                 {lost, kept, nil},
		"no overwrite":          {kept, kept, []string{"round 1", "WF001"}},
		"fence doesn't hold":    {lost, lost, []string{"round 2", "UPDATE 1"}},
		"neither":               {kept, lost, []string{"round 1", "round 2"}},
		"another error":         {lost, with(kept, func(o *outcome) { o.zombie.Code = "WF003" }), []string{"round 2", "WF003"}},
		"refused but written":   {lost, with(kept, func(o *outcome) { o.row = lost.row }), []string{"round 2", "cancelled by A"}},
		"accepted, row stays":   {with(lost, func(o *outcome) { o.row = kept.row }), kept, []string{"round 1", "shipped by B"}},
		"same token":            {lost, with(kept, func(o *outcome) { o.b = 33 }), []string{"round 2", "33"}},
		"lower token, unfenced": {with(lost, func(o *outcome) { o.b = 1 }), kept, []string{"round 1", "token 1"}},
	} {
		err := judge(c.without, c.with)
		if (err == nil) != (c.says == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, word := range c.says {
			if err != nil && !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %q is missing in %v", name, word, err)
			}
		}
	}
}

func TestTimelineIsAligned(t *testing.T) {
	var out bytes.Buffer
	line := newTimeline(&out, false)
	line.columns()
	line.line("B", "wants the lease, and waits", 0)
	line.answered("A", "sets order 1 to cancelled", 33, event{Event: wrote, Tag: "UPDATE 1"})
	line.answered("A", "sets order 1 to cancelled", 33, event{Event: failed, Code: "WF001", Message: "stale", Detail: strings.Repeat("word ", 40)})
	rows := strings.Split(out.String(), "\n")
	for _, row := range rows {
		if len(row) > width || strings.TrimRight(row, " ") != row {
			t.Errorf("too long, or blanks at the end: %q", row)
		}
	}
	says := strings.Index(rows[0], "PostgreSQL says")
	if strings.Index(rows[2], "UPDATE 1") != says || strings.Index(rows[3], "ERROR WF001") != says {
		t.Errorf("the answers aren't below each other:\n%s", out.String())
	}
	if strings.Index(rows[4], "stale") != did || strings.Index(rows[1], "wants") != did {
		t.Errorf("what was done isn't aligned:\n%s", out.String())
	}
}

func TestColourOnlyWhereItIsWanted(t *testing.T) {
	for _, colour := range []bool{false, true} {
		var out bytes.Buffer
		line := newTimeline(&out, colour)
		line.heading("Round")
		line.answered("A", "writes", 33, event{Event: failed, Code: "WF001"})
		if strings.Contains(out.String(), "\x1b[") != colour {
			t.Errorf("colour %v: %q", colour, out.String())
		}
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string][]string{
		"":                       {""},
		"one two":                {"one two"},
		"one two three":          {"one two", "    three"},
		"one two three four":     {"one two", "    three", "    four"},
		"overlongwordoverlong x": {"overlongwordoverlong", "    x"},
	} {
		if got := wrap(text, 9); !slices.Equal(got, want) {
			t.Errorf("%q is wrapped as %q", text, got)
		}
	}
}

func TestWorkerThatFailsIsNamed(t *testing.T) {
	for _, c := range []struct{ worker, says string }{
		{"die", "out of memory"},
		{"babble", "ready was expected, not wrote: UPDATE 1"},
	} {
		t.Setenv(asWorker, c.worker)
		_, err := startWorker(t.Context(), os.Args[0], workerConfig{Name: "A"})
		if err == nil || !strings.Contains(err.Error(), "worker A") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v", c.worker, err)
		}
	}
}

// A worker that is stopped is ended too.
func TestKillEndsAStoppedWorker(t *testing.T) {
	t.Setenv(asWorker, "babble")
	a, err := launchWorker(os.Args[0], workerConfig{Name: "A"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	a.kill()
	a.kill()
	if a.process.cmd.ProcessState == nil {
		t.Error("it was not waited for")
	}
}

func TestWorkSaysWhatItCantDo(t *testing.T) {
	if err := Work(t.Context(), strings.NewReader(""), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "wirefence demo") {
		t.Errorf("got %v", err)
	}
	if err := Work(t.Context(), strings.NewReader("take the lease\n"), new(bytes.Buffer)); err == nil {
		t.Error("what is not JSON was accepted")
	}
	var out bytes.Buffer
	text, _ := json.Marshal(workerConfig{Name: "A", Database: "postgres://app@127.0.0.1:1/shop?sslmode=disable"})
	if err := Work(t.Context(), bytes.NewReader(append(text, '\n')), &out); err == nil {
		t.Error("a database that isn't there was accepted")
	}
	var e event
	if err := json.Unmarshal(out.Bytes(), &e); err != nil || e.Event != failed || !strings.Contains(e.Message, "127.0.0.1:1") {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
