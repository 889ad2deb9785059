package conformance

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Blocks with a lease end, cancel and tell as they are documented.
func TestBlocks(t *testing.T) {
	for language, command := range map[string][]string{
		"python":            {python, "testdata/blocks.py"},
		"python by SQL":     {python, "testdata/blocks.py"},
		"typescript":        {"node", filepath.Join(folder, "blocks.js")},
		"typescript by SQL": {"node", filepath.Join(folder, "blocks.js")},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			w := newWorldFor(t, language)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.Env = w.environment("blocks", w.source())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
