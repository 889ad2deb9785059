package conformance

import (
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// worker is a running example.
type worker struct {
	*exec.Cmd
	input    io.WriteCloser
	out, err stack.Log
	over     chan error
}

func startWorker(t *testing.T, w *world, name string, command ...string) *worker {
	t.Helper()
	run := &worker{Cmd: exec.Command(command[0], command[1:]...)}
	run.Env = append(w.environment(name, w.admin), "TTL=2")
	run.Stdout, run.Stderr = &run.out, &run.err
	var err error
	if run.input, err = run.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	run.over = start(t, run.Cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("worker %s:\n%s%s", name, &run.out, &run.err)
		}
	})
	return run
}

func (run *worker) write(t *testing.T, item string) {
	t.Helper()
	if _, err := io.WriteString(run.input, item+"\n"); err != nil {
		t.Fatal(err)
	}
}

// wait returns the exit status.
func (run *worker) wait(t *testing.T) int {
	t.Helper()
	select {
	case err := <-run.over:
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode()
		}
		if err != nil {
			t.Fatal(err)
		}
		return 0
	case <-time.After(stack.Patience):
		t.Fatal("it doesn't end")
		return 0
	}
}

// A worker that is stopped behind its last look at the lease writes when it goes on, and is
// refused: another has taken over, and written.
func TestAStoppedWorkerIsRefused(t *testing.T) {
	for language, command := range map[string][]string{
		"python":     {python, "../python/examples/worker.py"},
		"typescript": {"node", filepath.Join(folder, "worker.js")},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := startWorker(t, w, "first", command...)
			first.write(t, "by the first")
			first.out.Await(t, "wrote by the first\nready\n") // it looks at its lease no more before it writes

			if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			if err := servers.AwaitStopped(first.Process.Pid); err != nil {
				t.Fatal(err)
			}
			second := startWorker(t, w, "second", command...)
			second.write(t, "by the second")
			second.out.Await(t, "wrote by the second\n")

			first.write(t, "by the zombie")
			if err := first.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if status := first.wait(t); status != 76 {
				t.Errorf("the first ends with %d", status)
			}
			if told := first.err.String(); !strings.Contains(told, "stopped, since another has taken over: stale fencing token") {
				t.Errorf("it says %q", told)
			}
			second.write(t, "and another")
			second.out.Await(t, "wrote and another\n")
			if err := second.input.Close(); err != nil {
				t.Fatal(err)
			}
			if status := second.wait(t); status != 0 {
				t.Errorf("the second ends with %d", status)
			}
			w.Becomes(t, "by the first,by the second,and another", "SELECT string_agg(item, ',' ORDER BY id) FROM orders")
		})
	}
}
