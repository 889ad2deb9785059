package fencingtest

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var without = flag.String("without", ".", "which rules to take out for random traffic, as a regular expression; with -short none")

// edit changes a text that a file has exactly once. The file is that of the module.
type edit struct{ file, old, new string }

// The files with the rules.
const (
	decideGo    = "proxy/internal/policy/decide.go"
	weaveGo     = "proxy/internal/policy/weave.go"
	factsGo     = "proxy/internal/policy/facts.go"
	applyGo     = "proxy/internal/session/apply.go"
	judgeGo     = "proxy/internal/session/judge.go"
	errorsGo    = "proxy/internal/session/errors.go"
	exchangeGo  = "proxy/internal/session/exchange.go"
	extendedGo  = "proxy/internal/session/extended.go"
	serverGo    = "proxy/internal/session/server.go"
	knownGo     = "proxy/internal/session/facts.go"
	sessionGo   = "proxy/internal/session/session.go"
	statementGo = "proxy/internal/sqltext/statement.go"
	classGo     = "proxy/internal/sqltext/class.go"
)

// rules are rules of the proxy without which random traffic finds a stale row, but for the last
// one, each with what takes it out, and the run that finds it. That a hold is judged in READ COMMITTED is none
// of them: a seal would have to commit within microseconds of a statement's snapshot. Nor is
// the refusal of PREPARE TRANSACTION: without it a seal fails before a row is stale. The tests
// of migrations play both.
var rules = []struct {
	name, run string
	edits     []edit
}{
	{"check ahead of SAVEPOINT", allowed, []edit{{weaveGo, "c.runs && (c.ends(st) || st.Class == sqltext.Savepoint))", "c.runs && c.ends(st))"}}},
	{"check ahead of what releases the lock", allowed, []edit{{weaveGo, "return endsHold(st, c.by) || c.mayEnd", "return c.mayEnd"}}},
	{"check for the hold's fence, under another one", allowed, []edit{{decideGo, "guard, guards := f.guard(m, by)", "guard, guards := 0, false"}}},
	{"check for the hold's fence ahead of SAVEPOINT", allowed, []edit{{weaveGo, "st.Class == sqltext.Savepoint || endsHold(st, f.Hold.By)", "endsHold(st, f.Hold.By)"}}},
	{"EXECUTE does what was prepared", allowed, []edit{{judgeGo, "if st.Flags.Has(sqltext.Executes) {", "if false {"}}},
	{"literals release locks", allowed, []edit{{statementGo, "s.st.flags |= m.flags | m.literals", "s.st.flags |= (m.flags | m.literals) &^ Unlocks"}}},
	{"literals set the variable", allowed, []edit{{statementGo, "s.st.flags |= m.flags | m.literals", "s.st.flags |= m.flags"}}},
	{"texts leave something behind", allowed, []edit{{statementGo, "out.Flags |= Leaves", ""}}},
	{"RESET ALL sets the variable", allowed, []edit{{classGo, `Cleans | flagsIf(s.word(1, "all"), Resets), 0`, "Cleans, 0"}}},
	{"the proxy's statements can't be named", unheld, []edit{{decideGo, "m.NamesOwn && f.Prepared || (m.Ambiguous || m.NamesOwn) && (", "m.Ambiguous && ("}}},
	{"a hold counts from its answer on", allowed, []edit{{factsGo, "return f.Hold.State == Held && f.Hold.By == by", "return f.Hold.State != NoHold && f.Hold.By == by"}}},
	{"a hold has a mark of its own", allowed, []edit{{sessionGo, "for s.hold.number == 0 {", "for false {"}}},
	{"no hold counts behind a release", allowed, []edit{{applyGo, "if flags.Has(sqltext.Unlocks) {", "if false {"}}},
	{"no hold counts behind a SET", allowed, []edit{{applyGo, `s.variableMayCarry, s.loginFence = true, ""
		if s.hold.by.Comment == "" {`, `s.variableMayCarry, s.loginFence = true, ""
		if false {`}}},
	{"a check ends with its transaction", unheld, []edit{{weaveGo, "c.checked, c.outside = false, false", "c.outside = false"}}},
	{"a check ends with a SET", unheld, []edit{{weaveGo, `!c.unsteady && !(c.by.Comment == "" && changesFence(st))`, "!c.unsteady"}}},
	{"a check of a batch ends with a SET", unheld, []edit{{applyGo, `sqltext.NamesReadOnly) || st.Flags&(sqltext.SetsVariable|sqltext.Resets) != 0 && b.By.Comment == "" {`, "sqltext.NamesReadOnly) {"}}},
	{"check ahead of COMMIT", unheld, []edit{{weaveGo, "need = !c.fenced && !c.checked && c.ran && c.runs", "need = !c.fenced && false"}}},
	{"check ahead of COMMIT behind a SET", unheld, []edit{{weaveGo, "f.Fenced && !f.FenceChanged && !c.unsteady", "f.Fenced && !c.unsteady"}}},
	{"check ahead of COMMIT under another fence", unheld, []edit{{weaveGo, `by.Comment != "" && f.FencedBy == by.Comment`, `by.Comment != "" && f.Fenced`}}},
	{"check ahead of COMMIT in a chain", unheld, []edit{{applyGo, `s.tx.fencedBy, s.tx.fenceChanged, s.tx.varied = "", false, false`, "s.tx.fenceChanged, s.tx.varied = false, false"}}},
	{"check ahead of COMMIT behind ROLLBACK TO", unheld, []edit{{applyGo, `s.tx.fencedBy, s.tx.fenceChanged = "", s.tx.fenceChanged || s.tx.varied`, "s.tx.fenceChanged = s.tx.fenceChanged || s.tx.varied"}}},
	{"ROLLBACK TO brings a value back", unheld, []edit{{applyGo, `s.tx.fencedBy, s.tx.fenceChanged = "", s.tx.fenceChanged || s.tx.varied`, `s.tx.fencedBy = ""`}}},
	{"ROLLBACK TO brings a value back in the text of COMMIT", unheld, []edit{{weaveGo, `c.fenced && steady && !(st.Class == sqltext.Undoes && (c.varied || c.by.Comment != ""))`, "c.fenced && steady"}}},
	{"RELEASE brings READ WRITE back", required, []edit{{applyGo, `s.tx.fencedBy, s.tx.fenceChanged = "", s.tx.fenceChanged || s.tx.varied`, `s.tx.fencedBy = ""`}}},
	{"names get other meanings", unheld, []edit{{applyGo, "s.names.prepared.Change(name, ambiguous)", "_ = ambiguous"}}},
	{"a name may set the variable", allowed, []edit{{knownGo, "!s.names.parsed.Has(sqltext.SetsVariable) && ", ""}}},
	{"what follows DISCARD ALL stays", allowed, []edit{{serverGo, "if s.q.IsLast() {", "if true {"}}},
	{"check ahead of a SET with a parameter of a domain", unheld, []edit{{extendedGo, "declaresOwnTypes(types)", "declaresOwnTypes(types[:0])"}}},
	{"check ahead of a SET with a constant of a domain", unheld, []edit{{statementGo, "st.last.kind == word && k == literal || ", ""}}},
	{"an answer is for the message that asked", allowed, []edit{{exchangeGo, "if !s.exchange.awaited {", "if !s.inputWaits {"}}},
	{"no hold counts behind a refusal", newGuard, []edit{{errorsGo, "s.doubtHold() // a guard", "_ = s // a guard"}}},
}

// Runs of random traffic, and the test that needs the last rule: without that a busy session is
// refused what it may write.
const (
	allowed  = "^TestNoStaleWriteUnderRandomTraffic$/^15_a_fence_is_allowed$"
	required = "^TestNoStaleWriteUnderRandomTraffic$/^15_a_fence_is_required$"
	unheld   = "^TestNoStaleWriteUnderRandomTraffic$/^15_no_holds$"
	newGuard = "^TestAGuardThatIsNewerThanAHold$"
)

// TestRandomTrafficNeedsEachRule takes the rules out, one by one, and lets random traffic
// find a stale row. A rule whose text has changed fails the test, also with -short.
func TestRandomTrafficNeedsEachRule(t *testing.T) {
	root := moduleRoot(t)
	chosen := regexp.MustCompile(*without)
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			overlay := takeOut(t, root, rule.edits)
			if testing.Short() || !chosen.MatchString(rule.name) {
				return
			}
			binary := filepath.Join(t.TempDir(), "traffic")
			if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
				t.Fatalf("building without the rule: %v\n%s", err, out)
			}
			began := time.Now()
			run := exec.CommandContext(t.Context(), binary, "-test.run", rule.run, "-test.v", "-traffic", "10m")
			out, err := run.CombinedOutput()
			want := ", then row"
			if rule.run == newGuard {
				want = "[behind the refusal]: got"
			}
			if err == nil || !strings.Contains(string(out), want) {
				t.Fatalf("%q is not found in %s: %v\n%s", want, time.Since(began), err, out)
			}
			written, told := "", "none" // when the last row was, and the story that its session told then
			for line := range strings.Lines(string(out)) {
				line = strings.TrimSpace(line)
				switch row := strings.Contains(line, ", then row"); {
				case row || strings.Contains(line, "-seed") || strings.Contains(line, "it took"):
					if t.Log(line); row {
						written = line[strings.LastIndex(line, " ")+1:]
					}
				case line < written && strings.Contains(line, " tells "):
					told = line
				case line < written && strings.Contains(line, " has told"):
					told = "none"
				}
			}
			t.Log("story:", told)
		})
	}
}

// takeOut makes the changed copies of files, and returns what tells go of them.
func takeOut(t *testing.T, root string, edits []edit) (overlay string) {
	t.Helper()
	dir := t.TempDir()
	replaced := map[string]string{}
	for _, e := range edits {
		path := filepath.Join(root, e.file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.old); n != 1 {
			t.Fatalf("%s has %q %d times, want once: where is the rule now?", e.file, e.old, n)
		}
		replaced[path] = filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(replaced[path], []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// moduleRoot is the folder with go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
