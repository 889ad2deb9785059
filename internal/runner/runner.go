// Package runner runs a command under a lease, and ends it before another holder can get the
// lease; or under an open check of a fence, and ends it when the check is lost. The command
// runs in its own process group, which gets the signals and is ended.
//
// With Options.OnlyChild, on Linux, the run also ends processes that left the group by setsid
// or setpgid, as daemons and the jobs of an interactive shell do; otherwise they escape. So do
// processes of other users, which may not be signalled, and processes that another program
// starts for the command (systemd, cron, a container engine). If this process is killed by
// SIGKILL, Linux kills the command with it, but not the command's children. While this process
// is stopped, the command goes on. An escaped process has the fence in its environment, so
// PostgreSQL refuses its writes after the next grant.
//
// A Process runs a command under no lease, and can freeze it.
//
// The package imports lockclient, fence and pgenv.
package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Exit statuses of a run that are not the command's. Callers use the first if another process
// holds the lease.
const (
	ExitNotAcquired   = 75
	ExitLost          = 76
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// ErrNotWanted is the error of a command that wasn't started because Options.Wanted had ended.
var ErrNotWanted = errors.New("command not started")

// Term is the time within which a command runs.
type Term interface {
	// Context ends when the command must end.
	Context() context.Context
	// Remaining is the time within which the command must have ended.
	Remaining() time.Duration
	Release(ctx context.Context) error
}

// Lease is the lease under which a command runs: a *lockclient.Lease.
type Lease interface {
	Term
	Token() fence.Token
	Fence() fence.Fence
	// Keep gives the lease up when the command has succeeded: see lockclient.Lease.Keep.
	Keep(ctx context.Context) error
}

var _ Lease = (*lockclient.Lease)(nil)

// Options of a run. The zero value runs without input and output, in this
// process's environment.
type Options struct {
	// Stdin, Stdout and Stderr are the command's; nil is /dev/null. If Stdin is a terminal
	// with this process in its foreground, the command gets the foreground.
	Stdin, Stdout, Stderr *os.File
	// Env is the command's environment without the fence; nil is that of this
	// process.
	Env []string
	// ByName puts the fence into PGAPPNAME instead of PGOPTIONS.
	ByName bool
	// TermGrace is the time between SIGTERM and SIGKILL: default 10s. It ends earlier if the
	// lease does.
	TermGrace time.Duration
	// Mark is an entry of Env by which Start tells the command's processes from those of commands that
	// run at the same time; "" if there are none.
	Mark string
	// OnlyChild promises that this process starts no other child while the command runs. Then,
	// on Linux, processes that leave the group are ended, too, unless this process already has
	// children.
	OnlyChild bool
	// Wanted prevents the start of the command if it has ended before: a signal that arrives
	// before Run passes signals on isn't lost. While the command runs, the end of Wanted has no
	// effect.
	Wanted context.Context
	// ReleaseTimeout bounds the end of the lease behind the command: default 5s.
	ReleaseTimeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.TermGrace <= 0 {
		o.TermGrace = 10 * time.Second
	}
	if o.Wanted == nil {
		o.Wanted = context.Background()
	}
	if o.ReleaseTimeout <= 0 {
		o.ReleaseTimeout = 5 * time.Second
	}
	return o
}

// Run runs the command until it ends, ends the rest of its group, and gives the lease up: it keeps
// that of a command that has ended by itself with status 0, and releases any other. It returns the command's exit status, or 128 plus the number of the signal that killed it. The
// error reports other failures; it may accompany the status of a command that ran:
//
//   - The lease ended first: the group is ended before another holder can get the
//     lease, the status is ExitLost, the error wraps the cause.
//   - ctx ended first: the group is ended within TermGrace, the error wraps the
//     cause.
//   - Options.Wanted had ended: ExitNotExecutable, the error wraps ErrNotWanted and
//     the cause.
//   - The command was not found or can't be executed: ExitNotFound or
//     ExitNotExecutable. The latter also if WIREFENCE_FENCE in its environment, the
//     fence of an outer run, is malformed or leaves no room, or the fence has none in PGAPPNAME.
//   - The lease couldn't be given up: it will expire.
//
// Signals to this process are passed on to the group. Only one Run of a process should have a
// terminal.
func Run(ctx context.Context, lease Lease, command []string, options Options) (exit int, err error) {
	return runWithin(ctx, lease, lease.Keep, command, options, func(env []string) ([]string, error) {
		return withFence(env, lease, options.ByName, filepath.Base(command[0]))
	})
}

// RunWithin is Run without a fence in the command's environment.
func RunWithin(ctx context.Context, term Term, command []string, options Options) (exit int, err error) {
	return runWithin(ctx, term, term.Release, command, options, func(env []string) ([]string, error) { return env, nil })
}

// runWithin gives the lease up by succeed if the command has succeeded.
func runWithin(ctx context.Context, lease Term, succeed func(context.Context) error, command []string, options Options, environment func([]string) ([]string, error)) (exit int, err error) {
	options = options.withDefaults()
	giveUp := lease.Release
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), options.ReleaseTimeout)
		defer cancel()
		err = errors.Join(err, giveUp(ctx))
	}()
	if cause := context.Cause(lease.Context()); cause != nil {
		return ExitLost, fmt.Errorf("command not started: %w", cause)
	}
	path, err := lookUp(command, options.Env)
	if err != nil {
		return notStarted(err), err
	}
	env, err := environment(options.Env)
	if err != nil {
		return ExitNotExecutable, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)
	if options.Wanted.Err() != nil {
		return ExitNotExecutable, fmt.Errorf("%w: %w", ErrNotWanted, context.Cause(options.Wanted))
	}
	g, err := startGroup(path, command, env, options)
	if err != nil {
		err = fmt.Errorf("start %s: %w", command[0], err)
		return notStarted(err), err
	}
	r := run{group: g, lease: lease, options: options, signals: signals}
	cause := r.watch(ctx)
	left := r.end(cause != nil && lease.Context().Err() != nil)
	g.terminal.takeBack()
	exit = g.exit()
	switch {
	case cause == nil:
		if exit == 0 {
			giveUp = succeed
		}
		return exit, left
	case lease.Context().Err() != nil:
		return ExitLost, errors.Join(fmt.Errorf("command ended: %w", cause), left)
	default:
		return exit, errors.Join(fmt.Errorf("command ended: %w", cause), left)
	}
}

// passedOn are the signals that the command gets. SIGTSTP, SIGTTIN and SIGTTOU keep their effect
// on this process.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT,
}

// notStarted returns a shell's exit status for a command that didn't start.
func notStarted(err error) int {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, errNotFound) {
		return ExitNotFound
	}
	return ExitNotExecutable
}

// run is one run of a command.
type run struct {
	*group
	lease   Term
	options Options
	signals chan os.Signal
}

// watch returns nil when the command has ended, or the cause when it must end. Until then it
// passes signals on, and stops and continues with the command.
func (r *run) watch(ctx context.Context) error {
	for {
		select {
		case <-r.exited:
			return nil
		default:
		}
		select {
		case <-r.exited:
			return nil
		case <-r.lease.Context().Done():
			return context.Cause(r.lease.Context())
		case <-ctx.Done():
			return context.Cause(ctx)
		case signal := <-r.signals:
			r.pass(signal)
		case signal := <-r.stopped:
			r.suspend(signal)
		}
	}
}

// end ends the rest of the group and returns when no process is left. If the lease has ended or
// ends meanwhile, SIGKILL is sent early enough for the group to be gone when another holder can
// get the lease.
func (r *run) end(limited bool) error {
	if r.isGone() {
		return nil
	}
	grace := r.options.TermGrace
	if limited {
		grace = min(grace, timeToKill(r.lease))
	}
	if grace > 0 {
		r.signalAll(syscall.SIGTERM)
		r.signalAll(syscall.SIGCONT) // a stopped process doesn't see SIGTERM
		deadline := time.NewTimer(grace)
		defer deadline.Stop()
		ended := r.lease.Context().Done()
		if limited {
			ended = nil
		}
		for waiting := true; waiting; {
			select {
			case <-r.gone:
				return nil
			case <-deadline.C:
				waiting = false
			case <-ended:
				ended = nil
				deadline.Reset(min(grace, max(0, timeToKill(r.lease))))
			case signal := <-r.signals:
				r.pass(signal)
			}
		}
	}
	return r.kill()
}

// killTime bounds the repetition of SIGKILL. A short grace for SIGTERM doesn't shorten it, since
// giving up early would leave writers behind.
const killTime = 30 * time.Second

// timeToKill returns the time until SIGKILL: until the end of the lease, less the kernel's time
// to end the processes.
func timeToKill(lease Term) time.Duration {
	left := lease.Remaining()
	return left - min(left/2, 250*time.Millisecond)
}
