package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// event is what a counter counts: what the processor has done is not moved by what else
// the machine does, unlike the time that it took.
type event struct {
	kind   uint32
	config uint64
}

var instructions = event{unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS}

// eventCounter counts an event in all threads of a process (perf_event_open(2)).
type eventCounter struct{ descriptors []int }

// countInstructions counts from now on. Where the kernel doesn't, as in most virtual
// machines, the count is 0.
func countInstructions(pid int) *eventCounter { return instructions.count(pid) }

func (e event) count(pid int) *eventCounter {
	c := &eventCounter{}
	if pid == 0 {
		return c
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return c
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			continue
		}
		attr := unix.PerfEventAttr{Type: e.kind, Config: e.config, Bits: unix.PerfBitInherit}
		attr.Size = uint32(unsafe.Sizeof(attr))
		fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			c.close() // a part of the threads would tell nothing
			return c
		}
		c.descriptors = append(c.descriptors, fd)
	}
	return c
}

// count is how often it has happened since, and 0 where it isn't counted.
func (c *eventCounter) count() (n float64) {
	var value [8]byte
	for _, fd := range c.descriptors {
		if size, err := unix.Read(fd, value[:]); err != nil || size != len(value) {
			return 0
		}
		n += float64(binary.NativeEndian.Uint64(value[:]))
	}
	return n
}

func (c *eventCounter) close() {
	for _, fd := range c.descriptors {
		_ = unix.Close(fd)
	}
	c.descriptors = nil
}
