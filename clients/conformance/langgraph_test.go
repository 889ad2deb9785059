package conformance

import (
	"fmt"
	"os/exec"
	"testing"
)

// A run of a thread whose lease another has is refused at its next checkpoint, and adds nothing to the thread.
func TestLateRunsOfAnAgentAreRefused(t *testing.T) {
	for _, way := range []string{"direct", "proxy"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newWorldFor(t, "python by SQL")
			w.Exec(t, "GRANT CREATE ON SCHEMA public TO app")
			direct := fmt.Sprintf("postgresql://%%s@%s/%s?sslmode=disable", w.Addr(), w.Name)
			url := map[string]string{"direct": fmt.Sprintf(direct, "app"), "proxy": w.url}[way]
			run := func(args ...string) {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), python, append([]string{"testdata/agent.py"}, args...)...)
				cmd.Env = append(w.environment("langgraph", w.Addr()), "DATABASE_URL="+url, "LEASES_URL="+fmt.Sprintf(direct, "leases"), "PYTHONPATH="+newest())
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			run("setup")
			for _, table := range []string{"checkpoints", "checkpoint_blobs", "checkpoint_writes"} {
				w.Exec(t, fmt.Sprintf("SELECT wirefence.protect('%s', 'checkpoint:{thread_id}')", table))
			}
			run()
		})
	}
}
