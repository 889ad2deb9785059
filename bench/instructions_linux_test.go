package main

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A software event is counted everywhere, in the same way: the time of a process's
// threads on the processor, in nanoseconds.
func TestAnEventIsCounted(t *testing.T) {
	runtime.LockOSThread() // one that is counted
	defer runtime.UnlockOSThread()
	c := event{unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_TASK_CLOCK}.count(os.Getpid())
	defer c.close()
	if len(c.descriptors) == 0 {
		t.Skip("the kernel lets nobody count: perf_event_paranoid")
	}
	before := c.count()
	for began := worked(t); worked(t)-began < 50*time.Millisecond; {
	}
	// The kernel may tell rusage by ticks, and takes from the event what the host took.
	if took := time.Duration(c.count() - before); took < 5*time.Millisecond {
		t.Errorf("50 ms of work count as %s", took)
	}
	if none := instructions.count(0); none.count() != 0 {
		t.Errorf("where there is no process, %v are counted", none.count())
	}
}

// worked is the processor's time that this thread has had.
func worked(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
