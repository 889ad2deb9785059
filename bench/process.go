package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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

// residentKiB is the memory of a process that is in RAM, without what it shares with
// files: RssAnon of proc_pid_status(5).
func residentKiB(pid int) (float64, error) {
	value := strings.TrimSuffix(procField(fmt.Sprintf("/proc/%d/status", pid), "RssAnon"), " kB")
	return strconv.ParseFloat(value, 64)
}

// versions says on what was measured. It names no host.
func (w *world) versions(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, w.postgres.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	server, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	bouncer, err := exec.CommandContext(ctx, "pgbouncer", "--version").Output()
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(bouncer), "\n")
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	kernel, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-") // without what its builder added
	var kib int64
	_, _ = fmt.Sscan(procField("/proc/meminfo", "MemTotal"), &kib)
	return fmt.Sprintf("PostgreSQL %s with fsync on, %s in session mode, Go %s; %d cores (%s), %d GiB of memory, Linux %s",
		server, first, strings.TrimPrefix(runtime.Version(), "go"), runtime.NumCPU(), procField("/proc/cpuinfo", "model name"), (kib+1<<19)>>20, kernel), nil
}

// loadAverage says how busy the machine was with other work.
func loadAverage() (minute float64) {
	text, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(text), &minute)
	return minute
}

func procField(file, name string) string {
	text, _ := os.ReadFile(file)
	for line := range bytes.Lines(text) {
		if key, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
