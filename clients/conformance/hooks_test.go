package conformance

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// With each hook a fenced write is accepted, and a stale one raises StaleToken. Nothing stays
// on a connection that a hook was used on.
func TestHooks(t *testing.T) {
	for language, c := range map[string]struct {
		command []string
		hooks   int
	}{
		"python":         {[]string{python, "testdata/hooks.py"}, 17},
		"python, newest": {[]string{"env", "PYTHONPATH=" + newest(), python, "testdata/hooks.py"}, 17},
		"typescript":     {[]string{"node", filepath.Join(folder, "hooks.js")}, 9},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			cmd := exec.Command(c.command[0], c.command[1:]...)
			log := &stack.Log{}
			cmd.Env, cmd.Stderr = w.environment("hooks", w.source()), log
			input, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			output, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			start(t, cmd)
			lines := bufio.NewScanner(output)
			round := func(want string) {
				t.Helper()
				if _, err := io.WriteString(input, "go on\n"); err != nil {
					t.Fatal(err)
				}
				for seen := 0; lines.Scan(); seen++ {
					var told struct{ Hook, Came string }
					if err := json.Unmarshal(lines.Bytes(), &told); err != nil {
						t.Fatal(err)
					}
					if told.Hook == "unfenced" {
						if seen != c.hooks {
							t.Errorf("%d hooks wrote, there are %d", seen, c.hooks)
						}
						return
					}
					if told.Came != want {
						t.Errorf("%s: %s, want %s", told.Hook, told.Came, want)
					}
				}
				t.Fatalf("it has ended:\n%s", log)
			}
			round("written")
			fenced := fmt.Sprint(c.hooks)
			w.Becomes(t, fenced, "SELECT count(*)::text FROM orders WHERE item <> 'unfenced'")
			// A revocation ends sessions that still hold the fence.
			w.Becomes(t, "0", "SELECT count(*)::text FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND datname = current_database()")
			w.revoke(t, "hook ä%")
			round("StaleToken")
			w.Becomes(t, fenced, "SELECT count(*)::text FROM orders WHERE item <> 'unfenced'")
		})
	}
}
