package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, in which /proc gives CPU times. It is 100 on all
// architectures that Go knows.
const ticksPerSecond = 100

// cpuTime is the user and system time that a process has used.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(stat)
}

// parseCPU reads utime and stime, fields 14 and 15 of proc_pid_stat(5). The
// second field, the command's name in brackets, may hold anything.
func parseCPU(stat []byte) (time.Duration, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("unexpected process status %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / ticksPerSecond), nil
}

// residentBytes is the memory of a process that is in RAM, without what it
// shares with files.
func residentBytes(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parseResident(status)
}

// parseResident reads RssAnon of proc_pid_status(5).
func parseResident(status []byte) (int64, error) {
	for line := range strings.Lines(string(status)) {
		value, found := strings.CutPrefix(line, "RssAnon:")
		if !found {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		return n << 10, err
	}
	return 0, fmt.Errorf("no RssAnon in process status")
}
