package runner

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// canFollow reports whether this process has no descendants yet, so that all later ones are the
// command's. It may have inherited some from a program that executed this one.
func canFollow() bool { return len(descendants()) == 0 }

// signalDescendants signals every descendant of this process. It may miss one that is forked
// meanwhile.
func signalDescendants(signal syscall.Signal) {
	for pid, parent := range descendants() {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		// The number may have been reused before it was opened.
		if now, err := parentOf(pid); err == nil && now == parent {
			_ = unix.PidfdSendSignal(fd, signal, nil, 0)
		}
		_ = unix.Close(fd)
	}
}

// descendants returns the descendants of this process with their parents. Since this process
// adopts orphans, no link is missing.
func descendants() map[int]int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if parent, err := parentOf(pid); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	found := map[int]int{}
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		for _, pid := range children[next[0]] {
			if _, seen := found[pid]; !seen { // the lines were not read at one moment
				found[pid] = next[0]
				next = append(next, pid)
			}
		}
	}
	return found
}

// parentOf reads the fourth field of /proc/PID/stat. The second is the name in
// parentheses, which may contain anything.
func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, syscall.ESRCH
	}
	return strconv.Atoi(string(fields[1]))
}
