package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// AwaitStopped returns when every thread of a process has stopped that was sent
// SIGSTOP: until then one may still answer. A zombie has, too.
func AwaitStopped(pid int) error {
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			return fmt.Errorf("process %d has no threads", pid)
		}
		stopped := 0
		for _, thread := range threads {
			text, err := os.ReadFile(thread)
			_, state, _ := strings.Cut(string(text), ") ") // behind the name
			if err == nil && !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
				break
			}
			stopped++
		}
		if stopped == len(threads) {
			return nil
		}
	}
	return fmt.Errorf("process %d did not stop", pid)
}
