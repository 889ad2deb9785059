package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
)

// measureLeases runs the comparison with other libraries, a module of its own.
func (b *book) measureLeases(ctx context.Context, _ *world) error {
	cmd := exec.CommandContext(ctx, "go", "run", "-C", "bench/rivals", ".", fmt.Sprintf("-rounds=%d", b.flags.rounds), fmt.Sprintf("-during=%ds", b.flags.seconds))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("bench/rivals: %w", err)
	}
	var ways []struct {
		Name  string
		Rates []float64
	}
	if err := json.Unmarshal(out, &ways); err != nil {
		return err
	}
	for _, w := range ways {
		for _, rate := range w.Rates {
			b.add(row{work: "leases", way: w.Name}, sample{leases: rate})
		}
	}
	return nil
}

// measureCore runs the Go benchmarks of the session's state machine.
func (b *book) measureCore(ctx context.Context, _ *world) error {
	out, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", ".", "-benchtime", "300ms", "./proxy/internal/session").CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test -bench: %w\n%s", err, out)
	}
	b.readCore(string(out))
	return nil
}

var coreLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op.*\s(\d+) allocs/op`)

func (b *book) readCore(out string) {
	for _, m := range coreLine.FindAllStringSubmatch(out, -1) {
		ns, _ := strconv.ParseFloat(m[2], 64)
		allocs, _ := strconv.ParseFloat(m[3], 64)
		b.add(row{work: "core", way: m[1]}, sample{nanoseconds: ns, allocations: allocs})
	}
}
