package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
)

// coreResult is one Go benchmark of the protocol core.
type coreResult struct {
	name   string
	ns     float64
	allocs int
}

// measureCore runs the Go benchmarks of the session's state machine.
func measureCore(ctx context.Context) ([]coreResult, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", ".", "-benchtime", "300ms", "./proxy/internal/session")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test -bench: %w\n%s", err, out)
	}
	return parseCore(string(out)), nil
}

var coreLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op.*\s(\d+) allocs/op`)

func parseCore(out string) (all []coreResult) {
	for _, m := range coreLine.FindAllStringSubmatch(out, -1) {
		ns, _ := strconv.ParseFloat(m[2], 64)
		allocs, _ := strconv.Atoi(m[3])
		all = append(all, coreResult{m[1], ns, allocs})
	}
	return all
}
