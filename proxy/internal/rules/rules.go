// Package rules is for tests: it takes rules of the proxy's core out of its sources, so that a
// suite can show that it finds what goes wrong without them.
package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Rule is a rule, with what takes it out.
type Rule struct {
	Name  string
	edits []edit
}

// edit changes a text that a file has exactly once. The file is that of the module.
type edit struct{ file, old, new string }

// The files with the rules.
const (
	decideGo    = "proxy/internal/policy/decide.go"
	weaveGo     = "proxy/internal/policy/weave.go"
	factsGo     = "proxy/internal/policy/facts.go"
	clientGo    = "proxy/internal/session/client.go"
	applyGo     = "proxy/internal/session/apply.go"
	judgeGo     = "proxy/internal/session/judge.go"
	errorsGo    = "proxy/internal/session/errors.go"
	holdGo      = "proxy/internal/session/hold.go"
	sessionGo   = "proxy/internal/session/session.go"
	statementGo = "proxy/internal/sqltext/statement.go"
	classGo     = "proxy/internal/sqltext/class.go"
)

// All are the rules.
var All = []Rule{
	{"a check is ahead of its statement", []edit{{weaveGo, "Insert{Before: i, By: c.by})\n\t\t\tc.checked", "Insert{Before: i + 1, By: c.by})\n\t\t\tc.checked"}}},
	{"a hold that was given back doesn't count", []edit{{factsGo, "GivesBack:     {NoHold, NoHold, NoHold, NoHold, NoHold}", "GivesBack:     {NoHold, NoHold, NoHold, Held, NoHold}"}}},
	{"check ahead of SAVEPOINT", []edit{{weaveGo, "c.runs && (c.ends(st) || st.Class == sqltext.Savepoint))", "c.runs && c.ends(st))"}}},
	{"check ahead of what releases the lock", []edit{{weaveGo, "return endsHold(st, c.by) }", "return false }"}}},
	{"check for the hold's fence, under another one", []edit{{decideGo, "guard, guards := f.guard(m, by)", "guard, guards := 0, false"}}},
	{"check for the hold's fence ahead of SAVEPOINT", []edit{{weaveGo, "st.Class == sqltext.Savepoint || endsHold(st, f.Hold.By)", "endsHold(st, f.Hold.By)"}}},
	{"EXECUTE does what was prepared", []edit{{judgeGo, "st.Flags |= n.stored | n.parsed", "_ = st"}}},
	{"texts release locks", []edit{{statementGo, "s.st.flags |= m.flags", "s.st.flags |= m.flags &^ Unlocks"}}},
	{"texts set the variable", []edit{{statementGo, "s.st.flags |= m.flags", "s.st.flags |= m.flags &^ SetsVariable"}}},
	{"RESET ALL sets the variable", []edit{{classGo, `Cleans | flagsIf(s.word(1, "all"), Resets) |`, "Cleans |"}}},
	{"a hold counts from its answer on", []edit{{factsGo, "return f.Hold.State == Held && f.Hold.By == by", "return f.Hold.State != NoHold && f.Hold.By == by"}}},
	{"a hold has a mark of its own", []edit{{sessionGo, "for s.hold.number == 0 {", "for false {"}}},
	{"no hold counts behind a release", []edit{{applyGo, "if flags.Has(sqltext.Unlocks) {", "if false {"}}},
	{"no hold counts behind a SET", []edit{{applyGo, "s.variable.name(flags)\n\t\tif s.hold.by.Comment == \"\" {", "s.variable.name(flags)\n\t\tif false {"}}},
	{"a check ends with its transaction", []edit{{weaveGo, "c.checked, c.outside = false, false", "c.outside = false"}}},
	{"a check ends with a SET", []edit{{weaveGo, `steady := !(c.by.Comment == "" && changesFence(st))`, "steady := true"}}},
	{"a check of a batch ends with a SET", []edit{{factsGo, `st.Class.Controls() || changesFence(st) && b.By.Comment == "" {`, "st.Class.Controls() {"}}},
	{"check ahead of COMMIT", []edit{{weaveGo, "need = (!c.fenced || c.locked) && !c.checked && c.ran && c.runs", "need = false"}}},
	{"check ahead of COMMIT behind a SET", []edit{{weaveGo, "f.Fenced && !f.FenceChanged", "f.Fenced"}}},
	{"check ahead of COMMIT under another fence", []edit{{weaveGo, `by.Comment != "" && f.FencedBy == by.Comment`, `by.Comment != "" && f.Fenced`}}},
	{"check ahead of COMMIT in a chain", []edit{{factsGo, "up to the next boundary.\n\t\tt.FencedBy = \"\"", "up to the next boundary."}}},
	{"check ahead of COMMIT behind ROLLBACK TO", []edit{{factsGo, `t.FencedBy, t.FenceChanged = "", t.FenceChanged || t.Varied`, "t.FenceChanged = t.FenceChanged || t.Varied"}}},
	{"ROLLBACK TO brings a value back", []edit{{factsGo, `t.FencedBy, t.FenceChanged = "", t.FenceChanged || t.Varied`, `t.FencedBy = ""`}}},
	{"ROLLBACK TO brings a value back in the text of COMMIT", []edit{{weaveGo, `c.fenced && steady && !(st.Class == sqltext.Undoes && (c.varied || c.by.Comment != ""))`, "c.fenced && steady"}}},
	{"RELEASE brings READ WRITE back", []edit{{factsGo, `t.FencedBy, t.FenceChanged = "", t.FenceChanged || t.Varied`, `t.FencedBy = ""`}}},
	{"check ahead of a SET with a constant of a domain", []edit{{statementGo, "st.last.kind == word && k == literal || ", ""}}},
	{"a function call has a check of its transaction", []edit{{decideGo, "f.Checked && f.CheckedBy == by", "f.Fenced"}}},
	{"a session that was reset carries what it is set to", []edit{{holdGo, "v == none && behindReset && s.variable.reset", "behindReset"}}},
	{"an answer is for the message that asked", []edit{{clientGo, "if used > 0 && !s.batch.Open {", "if false {"}}},
	{"no hold counts behind a refusal", []edit{{errorsGo, "s.doubtHold() // a guard", "_ = s // a guard"}}},
}

// Overlay makes changed copies of files of the module at root in the folder dir, and returns the file
// that go's flag -overlay takes. It is an error if the text of the rule has changed.
func (r *Rule) Overlay(root, dir string) (overlay string, err error) {
	replaced := map[string]string{}
	for _, e := range r.edits {
		path := filepath.Join(root, e.file)
		copied := replaced[path] // by an edit before
		text, err := os.ReadFile(cmp.Or(copied, path))
		if err != nil {
			return "", err
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			return "", fmt.Errorf("%s has %q %d times, want once: where is the rule now?", e.file, e.old, n)
		}
		replaced[path] = filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(replaced[path], []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// TakeOut is Overlay for a test, which fails if the text of the rule has changed.
func (r *Rule) TakeOut(t *testing.T) (overlay string) {
	t.Helper()
	root, err := ModuleRoot()
	if err == nil {
		overlay, err = r.Overlay(root, t.TempDir())
	}
	if err != nil {
		t.Fatal(err)
	}
	return overlay
}

// Build builds the tests of the package in the current folder without the rule.
func (r *Rule) Build(t *testing.T) (binary string) {
	t.Helper()
	overlay := r.TakeOut(t)
	binary = filepath.Join(t.TempDir(), "without")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building without the rule: %v\n%s", err, out)
	}
	return binary
}

// ModuleRoot is the folder with go.mod, above the current one or the current one.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil || dir == filepath.Dir(dir) {
			return dir, err
		}
	}
}
