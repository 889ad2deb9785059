package demo

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// What a worker prints comes into the timeline once, also if a line is read in two parts. What
// is no event is kept for the error of a play that shows nothing.
func TestEventsBecomeTheTimeline(t *testing.T) {
	written, err := os.Create(filepath.Join(t.TempDir(), "told"))
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()
	told, err := os.Open(written.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	var out bytes.Buffer
	a := &act{timeline: newTimeline(&out, false), read: bufio.NewReader(told)}
	for _, part := range []string{
		`{"event":"acquired","worker":"A","token":33}` + "\n" + `{"event":"wrote","worker":"A","tok`, `en":33,"status":"packed","tag":"UPDATE 1"}` + "\n",
		`{"event":"acquired","worker":"B","token":34}` + "\nout of memory\n" + `{"event":"failed","worker":"A","token":33,"status":"cancelled","code":"WF001"}` + "\n",
	} {
		if _, err := written.WriteString(part); err != nil {
			t.Fatal(err)
		}
		a.catchUp()
	}
	for _, want := range []string{"A    takes the lease", "sets order 1 to packed                     33  UPDATE 1", "B    takes over", "ERROR WF001"} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, out.String())
		}
	}
	if a.outcome.a != 33 || a.outcome.b != 34 || a.outcome.zombie.Code != "WF001" || !slices.Equal(a.failure, []string{"out of memory"}) {
		t.Errorf("got %+v", a)
	}
}

func TestWorkSaysWhatItCantDo(t *testing.T) {
	for config, says := range map[string]string{
		"take the lease": "wirefence demo",
		`{"database":"postgres://app@127.0.0.1:1/shop?sslmode=disable"}`: "127.0.0.1:1",
	} {
		var out bytes.Buffer
		if err := Work(t.Context(), config, &out); err == nil || !strings.Contains(err.Error(), says) || out.Len() > 0 {
			t.Errorf("%s: got %q, %v", config, out.String(), err)
		}
	}
}
