package runner

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// Process is a command in a process group of its own that runs under no lease. One goroutine
// calls its methods.
type Process struct {
	*group
	others
	held map[int]bool // processes outside of the group that Freeze has stopped
}

// others are children of this process that are not a command's.
type others struct {
	before map[int]int // those that were there before
	mark   string      // those without it in their environment, unless it is empty
	leader int         // the command, which may have overwritten its environment
}

// Start starts a command. It gets none of this process's signals, and no terminal's foreground.
// The caller waits for Gone, or calls End.
func Start(command []string, options Options) (*Process, error) {
	options = options.withDefaults()
	options.OnlyChild = false // the orphans of several commands can't be told apart
	path, err := lookUp(command, options.Env)
	if err != nil {
		return nil, err
	}
	before := children()
	g, err := startGroup(path, command, options.Env, options)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	return &Process{group: g, others: others{before, options.Mark, g.id}, held: map[int]bool{}}, nil
}

// Gone is closed when no process of the command's group is left.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// LeftOthers reports whether, on Linux, processes are left that have left the group.
func (p *Process) LeftOthers() bool { return anyLiving(p.others) }

// Exit is the command's exit status once it has ended, or 128 plus the number of the signal that
// has killed it.
func (p *Process) Exit() int { return p.exit() }

// Freeze stops the command and all that it has started with SIGSTOP, and returns when they have
// stopped, or when the group has gone. On Linux this includes processes that left the group, with
// those of commands that were started later.
func (p *Process) Freeze(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for p.signal(syscall.SIGSTOP); !stopDescendants(p.id, p.others, p.held) && !p.isGone(); p.signal(syscall.SIGSTOP) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process group %d has not stopped: %w", p.id, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}

// Thaw lets what Freeze has stopped go on.
func (p *Process) Thaw() {
	for pid := range p.held { // it is stopped, so that its number is still its own
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	clear(p.held)
	p.signal(syscall.SIGCONT)
}

// End ends commands in the order of their start: it sends SIGTERM, after grace SIGKILL, and on
// Linux SIGKILL to all that they have left outside of their groups, and returns when no process
// is left.
func End(grace time.Duration, all ...*Process) (err error) {
	for _, p := range all {
		p.signal(syscall.SIGTERM)
		p.Thaw() // a stopped process doesn't see SIGTERM
	}
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	for _, p := range all {
		select {
		case <-p.gone:
		case <-deadline.C:
			deadline.Reset(0)
		}
	}
	for _, p := range all {
		if left := p.kill(); left != nil && err == nil {
			err = left
		}
	}
	for end := time.Now().Add(killTime); len(all) > 0 && anyLiving(all[0].others); time.Sleep(5 * time.Millisecond) {
		signalDescendants(syscall.SIGKILL, all[0].others)
		if time.Now().After(end) {
			return fmt.Errorf("processes that have left their group are still there %v after SIGKILL", killTime)
		}
	}
	return err
}
