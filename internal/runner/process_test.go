package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// counting is a command whose processes, in its group and out of it, count in files until they
// are ended.
func counting(t *testing.T, mark string) (p *Process, counts func() string) {
	t.Helper()
	dir := t.TempDir()
	count := `n=0; while :; do n=$((n+1)); echo $n >"$0/$1.new"; mv "$0/$1.new" "$0/$1"; sleep 0.01; done`
	p, err := Start([]string{"sh", "-c", `setsid sh -c "$1" "$0" session & (setsid sh -c "$1" "$0" daemon &); set -- "$1" self; eval "$(printf %s "$1" | sed 's/\$1/self/g')"`, dir, count}, Options{Env: append(os.Environ(), mark), Mark: mark})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = End(0, p) })
	counts = func() string {
		var all []string
		for _, name := range []string{"self", "session", "daemon"} {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			all = append(all, strings.TrimSpace(string(text)))
		}
		return strings.Join(all, " ")
	}
	stack.Eventually(t, "all three count", func() bool { return len(strings.Fields(counts())) == 3 })
	return p, counts
}

// goesOn fails the test unless all three counts rise.
func goesOn(t *testing.T, counts func() string) {
	t.Helper()
	before := strings.Fields(counts())
	stack.Eventually(t, "all three go on", func() bool {
		now := strings.Fields(counts())
		return len(now) == 3 && now[0] != before[0] && now[1] != before[1] && now[2] != before[2]
	})
}

// Commands with marks that run at once don't touch each other's processes.
func TestCommandsAtOnce(t *testing.T) {
	first, firstCounts := counting(t, "MARK=1")
	second, secondCounts := counting(t, "MARK=2")
	if err := first.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	goesOn(t, secondCounts)
	first.Thaw()
	goesOn(t, firstCounts)
	if err := End(0, first); err != nil {
		t.Fatal(err)
	}
	goesOn(t, secondCounts)
	third, thirdCounts := counting(t, "MARK=1")
	if err := End(0, second); err != nil {
		t.Fatal(err)
	}
	goesOn(t, thirdCounts)
	if third.LeftOthers() == second.LeftOthers() {
		t.Error("they can't be told apart")
	}
}

func TestFreezeAndThaw(t *testing.T) {
	first, firstCounts := counting(t, "")
	for range 3 {
		if err := first.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		frozen := firstCounts()
		second, secondCounts := counting(t, "") // runs, while the first is frozen
		goesOn(t, secondCounts)
		if err := second.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		still := secondCounts()
		if now := firstCounts(); now != frozen {
			t.Errorf("it was frozen at %s and is at %s", frozen, now)
		}
		first.Thaw()
		goesOn(t, firstCounts)
		if now := secondCounts(); now != still {
			t.Errorf("the second was frozen at %s and is at %s", still, now)
		}
		if err := End(time.Second, second); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEndLeavesNothing(t *testing.T) {
	p, _ := counting(t, "")
	if err := p.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !p.LeftOthers() {
		t.Error("the daemon isn't seen")
	}
	if err := End(time.Minute, p); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Gone():
	default:
		t.Error("the group isn't gone")
	}
	if p.LeftOthers() {
		t.Error("a process is left")
	}
	if p.Exit() != 143 {
		t.Errorf("status %d", p.Exit())
	}
}

func TestFreezeOfWhatHasEnded(t *testing.T) {
	p, err := Start([]string{"sh", "-c", "exit 3"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Gone()
	if err := p.Freeze(t.Context()); err != nil || p.Exit() != 3 {
		t.Errorf("status %d, %v", p.Exit(), err)
	}
}

func TestStartOfNothing(t *testing.T) {
	if _, err := Start([]string{"no-such-command"}, Options{}); !errors.Is(err, errNotFound) {
		t.Error(err)
	}
}
