package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/wirefence/wirefence/internal/servers"
)

// Targets and ways of a comparison of two builds.
const (
	baseProxy     target = "base"
	encryptedBase target = "base with TLS"
	viaBase              = "base"
	viaChange            = "change"
)

// buildBase builds the proxy as it is at a commit, in a working tree of its own.
func buildBase(ctx context.Context, commit, dir string) (binary string, err error) {
	tree := filepath.Join(dir, "base")
	git := func(args ...string) error {
		if out, err := exec.CommandContext(ctx, "git", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := git("worktree", "add", "--detach", tree, commit); err != nil {
		return "", err
	}
	defer func() {
		if failed := git("worktree", "remove", "--force", tree); err == nil {
			err = failed
		}
	}()
	binary = filepath.Join(dir, "base-wirefence")
	return binary, servers.BuildWirefence(ctx, tree, binary)
}

// beside are the workloads of two builds: what goes through the proxy, through each.
func beside(all []workload) (both []workload) {
	for _, w := range all {
		var ways []way
		for _, by := range w.ways {
			other := by
			switch by.target {
			case wirefence:
				other.target = baseProxy
			case encryptedProxy:
				other.target = encryptedBase
			default:
				continue
			}
			what := strings.TrimPrefix(by.name, "proxy, ")
			other.name, by.name = viaBase+", "+what, viaChange+", "+what
			ways = append(ways, other, by)
		}
		w.ways = ways
		both = append(both, w)
	}
	return both
}

// comparison is what a change did, as text.
func (b *book) comparison() string {
	var p page
	p.line("Ratios of this tree to %s, each taken in one round: median, lowest and highest of %d. %s", b.flags.compare, b.flags.rounds, b.busyLegend())
	p.line("")
	p.line("| workload | protocol | clients | way | tps | p50 | CPU | instructions |")
	p.line("|---|---|---:|---|---:|---:|---:|---:|")
	for _, change := range b.results.all {
		what, found := strings.CutPrefix(change.way.name, viaChange+", ")
		if !found {
			continue
		}
		g := change.group
		base := b.results.of(g.workload.name, g.protocol, g.clients, viaBase+", "+what)
		if base == nil {
			continue
		}
		mark := ""
		if change.busy() || base.busy() {
			mark = busyMark
		}
		counted := "not counted"
		if r := ratio(change, base, instructionsOf); r.median > 0 {
			counted = r.String()
		}
		p.line("| %s | %s | %d | %s%s | %s | %s | %s | %s |", g.workload.caption(), g.protocol, g.clients, what, mark,
			ratio(change, base, tps), ratio(change, base, nanoseconds(p50)), ratio(change, base, cpu), counted)
	}
	return p.String()
}

// compare measures two builds beside each other and prints what the change did.
func compare(ctx context.Context, f flags, clients []int, only func(string) bool) error {
	dir, err := os.MkdirTemp("", "wf-bench-base-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	base, err := buildBase(ctx, f.compare, dir)
	if err != nil {
		return err
	}
	w, err := newWorld(ctx, f.binary, base)
	if err != nil {
		return err
	}
	defer w.close()
	b := &book{flags: f}
	if err := b.measure(ctx, w, groups(beside(workloads), clients, only)); err != nil {
		return err
	}
	fmt.Print(b.comparison())
	return nil
}
