package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5"
)

// versions says on what was measured. It names no host.
func (w *world) versions(ctx context.Context) (string, error) {
	conn, err := pgx.Connect(ctx, w.postgres.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var server string
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&server); err != nil {
		return "", err
	}
	server, _, _ = strings.Cut(server, " ")
	bouncer, err := exec.CommandContext(ctx, "pgbouncer", "--version").Output()
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(bouncer), "\n")
	return fmt.Sprintf("PostgreSQL %s with fsync on, %s in session mode, %s; %d cores (%s), %s of memory, Linux %s",
		server, first, goVersion(), runtime.NumCPU(), processor(), memory(), kernel()), nil
}

func goVersion() string { return "Go " + strings.TrimPrefix(runtime.Version(), "go") }

// kernel is the release's number, without what its builder added.
func kernel() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	number, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-")
	return number
}

func processor() string { return procField("/proc/cpuinfo", "model name") }

func memory() string {
	var kib int64
	_, _ = fmt.Sscan(procField("/proc/meminfo", "MemTotal"), &kib)
	return fmt.Sprintf("%d GiB", (kib+1<<19)>>20)
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

// hold waits until ctx ends.
func (w *world) hold(ctx context.Context) error {
	for _, t := range []target{postgres, pgbouncer, encryptedBouncer, wirefence, checking, encryptedProxy} {
		fmt.Printf("%s: port %d, process %d\n", t, w.ports[t], w.pids[t])
	}
	fmt.Printf("database %s, user postgres, scripts in %s\n", database, w.dir)
	<-ctx.Done()
	return nil
}
