package runner

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// canFollow reports whether this process has no descendants yet, so that all later ones are the
// command's. It may have inherited some from a program that executed this one.
func canFollow() bool { return len(descendants(others{})) == 0 }

// children returns the children of this process.
func children() map[int]int {
	found := descendants(others{})
	maps.DeleteFunc(found, func(_, parent int) bool { return parent != os.Getpid() })
	return found
}

// signalDescendants signals every descendant of this process but those that descendants leaves
// out. It may miss one that is forked meanwhile.
func signalDescendants(signal syscall.Signal, o others) {
	for pid, parent := range descendants(o) {
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

// descendants returns the descendants of this process with their parents, but not the children
// others and theirs. Since this process adopts orphans, no link is missing.
func descendants(o others) map[int]int {
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
			if _, seen := found[pid]; !seen && (next[0] != os.Getpid() || !o.has(pid)) { // the lines were not read at one moment
				found[pid] = next[0]
				next = append(next, pid)
			}
		}
	}
	return found
}

// stopDescendants sends SIGSTOP to every descendant of this process, without others, that isn't
// stopped, and reports whether all were. It adds those outside of a group to outside.
func stopDescendants(group int, o others, outside map[int]bool) (all bool) {
	all = true
	found := descendants(o)
	parents := map[int]bool{}
	for _, parent := range found {
		parents[parent] = true
	}
	for pid := range found {
		state, _, err := statOf(pid)
		if err != nil || state == 'T' || state == 'Z' || state == 'X' {
			continue
		}
		if of, err := unix.Getpgid(pid); err != nil || unix.Kill(pid, unix.SIGSTOP) != nil {
			continue // it has ended
		} else if of != group {
			outside[pid] = true
		}
		// In the kernel, it stops before its program goes on, but a write may be under way. After
		// vfork it stays there until its child goes on, which may be stopped.
		all = all && state == 'D' && parents[pid]
	}
	return all
}

// anyLiving reports whether this process has a descendant, without others, that has not ended.
func anyLiving(o others) bool {
	for pid := range descendants(o) {
		if state, _, err := statOf(pid); err == nil && state != 'Z' && state != 'X' {
			return true
		}
	}
	return false
}

// has reports whether a child of this process is not the command's.
func (o others) has(pid int) bool {
	if _, before := o.before[pid]; before || o.mark == "" || pid == o.leader {
		return before
	}
	env, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ") // before it executes its program, this process's
	return !slices.Contains(strings.Split(string(env), "\x00"), o.mark)
}

// parentOf reads the parent of a process.
func parentOf(pid int) (int, error) {
	_, parent, err := statOf(pid)
	return parent, err
}

// statOf reads the third and the fourth field of /proc/PID/stat. The second is the name in
// parentheses, which may contain anything.
func statOf(pid int) (state byte, parent int, err error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, 0, syscall.ESRCH
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent, err
}
