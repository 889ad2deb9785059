package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/effect"
	"github.com/wirefence/wirefence/internal/runner"
)

type guardSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"anew" help:"connection string of the database in which grants are recorded; any role may check (required)"`
	PasswordSettings
	Timeout   time.Duration `env:"--timeout" envDefault:"0s" range:"0.." help:"time that the command may run before it is ended; 0: until a handoff has waited for preempt_after"`
	TermGrace time.Duration `env:"WIREFENCE_TERM_GRACE" group:"Leases" envDefault:"10s" range:"1ms.." help:"time from SIGTERM to SIGKILL when the command is ended; at most a second if the check is lost"`
}

// exitTimedOut is that of timeout(1).
const exitTimedOut = 124

func guardCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "guard [flags] [FENCE] -- COMMAND [ARG...]",
		Short: "Run a command that has an effect outside of the database, behind a check of a fence",
		Long: `Has the database check a fence, as in orders=34, or that of WIREFENCE_FENCE, which
wirefence lock sets, and runs the command while the check is held: the next
holder's grant is not sealed before the command has ended.

A handoff waits for preempt_after of the resource, 5s unless set otherwise; a
revocation doesn't wait. Then the check is lost and the next holder may begin: the
command's process group gets SIGTERM at once and SIGKILL a second later. Keep the
command short, or set --timeout below preempt_after.

The exit status is the command's, or 128 and the number of the signal that ended it,
if the command has ended by itself and the check was held until then. Otherwise:

    2    wrong usage
    10   the database refuses the fence; the command was not started
    69   the database could not be asked; the command was not started
    76   the check was lost, and the command was ended: its effect is in doubt
    124  the command was ended for --timeout
    126  the command can't be run
    127  the command isn't there`,
		Example: "  wirefence guard orders=34 -- git push origin release\n  wirefence lock orders -- sh -c 'make report && wirefence guard --timeout 4s -- ./publish'",
		Args: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); at < 0 || at > 1 || len(args) == at {
				return usageError{errors.New("wants a fence, two dashes and a command: wirefence guard orders=34 -- git push")}
			}
			return nil
		},
	}, func(c *cobra.Command, cfg guardSettings, args []string) error {
		at := c.ArgsLenAtDash()
		f, err := fenceOf(args[:at])
		if err != nil {
			return err
		}
		return runGuarded(c.Context(), cfg, f, args[at:])
	})
}

// checkTime is how long the database has to answer before the command starts.
const checkTime = 10 * time.Second

func runGuarded(ctx context.Context, cfg guardSettings, f fence.Fence, command []string) error {
	starting, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	conn, err := connect(starting, cfg.DatabaseURL)
	if err != nil {
		return notCurrent(err)
	}
	defer closeConn(conn)
	guard, err := effect.Begin(starting, conn, f)
	if err != nil {
		return notCurrent(err)
	}
	options := inForeground(cfg.TermGrace)
	options.Wanted = ctx
	timedOut := fmt.Errorf("it has run for %v", cfg.Timeout)
	if cfg.Timeout > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeoutCause(ctx, cfg.Timeout, timedOut)
		defer end()
	}
	status, err := runner.RunWithin(ctx, guardTerm{guard}, command, options)
	if errors.Is(err, runner.ErrNotWanted) {
		status = interrupted(options.Wanted)
	}
	switch lost := guard.End(); {
	case lost != nil && errors.Is(err, effect.ErrLost):
		status = runner.ExitLost
	case lost != nil: // noticed when the command had ended
		status, err = runner.ExitLost, errors.Join(err, lost)
	case errors.Is(err, timedOut):
		status = exitTimedOut
	}
	return exitAs(status, err)
}

// guardTerm is the time within which a command runs: while its check is held.
type guardTerm struct{ guard *effect.Guard }

func (t guardTerm) Context() context.Context { return t.guard.Context() }

// lostGrace is the runner's limit for a command whose check is lost: a second from SIGTERM
// to SIGKILL, and what the kernel needs. The next holder may be at work already, so a
// longer one would do harm; with none, a command couldn't undo what it has half done.
const lostGrace = time.Second + 250*time.Millisecond

func (guardTerm) Remaining() time.Duration { return lostGrace }

// Release closes the check. runGuarded reports a lost one.
func (t guardTerm) Release(context.Context) error {
	_ = t.guard.End()
	return nil
}
