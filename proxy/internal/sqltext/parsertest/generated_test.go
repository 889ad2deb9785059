package parsertest

import (
	"flag"
	"testing"

	"pgregory.net/rapid"
)

// TestGenerated compares statements that are made up.
func TestGenerated(t *testing.T) {
	var lexing lexing
	queries, refused := 0, 0
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("3000"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		w := writer{t: t, escapes: rapid.Bool().Draw(t, "escapes"), depth: rapid.IntRange(1, 6).Draw(t, "depth")}
		text := w.text()
		queries++
		if difference := lexing.compare(text, w.escapes, 6); difference != "" {
			t.Fatalf("%q, escapes %v: %s", text, w.escapes, difference)
		}
		if _, err := Parse(text, w.escapes); err != nil {
			refused++
		}
	})
	t.Log(&lexing)
	if refused*10 > queries || lexing.statements < queries {
		t.Errorf("the grammar refuses %d of %d texts that are made up", refused, queries)
	}
}

// text writes one to three statements.
func (w *writer) text() string {
	w.statement()
	for range rapid.IntRange(0, 2).Draw(w.t, "further statements") {
		w.put(";")
		w.statement()
	}
	return w.out.String() + w.gap()
}
