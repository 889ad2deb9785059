// Command wirefence is a fencing proxy for PostgreSQL, and the tools around it.
// Each file holds one command: its settings and how the packages are joined.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

// version is set by the linker.
var version = "dev"

// Exit statuses besides 0. The runner of `wirefence lock` has some of its own.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitUnavailable = 69 // EX_UNAVAILABLE of sysexits.h
	exitConfig      = 78 // EX_CONFIG
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// exitStatus is an error that decides the process's exit status by itself.
type exitStatus struct {
	status int
	err    error // nil says nothing
}

func (e *exitStatus) Error() string { return fmt.Sprint(e.err) }
func (e *exitStatus) Unwrap() error { return e.err }

// usageError says that the command line or the environment is wrong.
type usageError struct{ error }

func run(ctx context.Context, args []string) int {
	root := &cobra.Command{
		Use:   "wirefence",
		Short: "A fencing proxy for PostgreSQL: a former lock holder's writes are refused by the database",
		Long: `Wirefence stands between applications and PostgreSQL and makes the database
refuse the writes of a lock holder that has been superseded.

Settings are environment variables, each with a flag of the same name; a flag
wins over its variable.`,
		SilenceUsage: true, SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if c.Annotations[anyEnvironment] != "" {
				return nil
			}
			return checkVariables(c.Root(), os.Environ())
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(proxyCommand(), migrateCommand(), lockCommand(), checkCommand(), guardCommand(), statusCommand(), revokeCommand(), historyCommand(), resourceCommand(),
		protectCommand(), unprotectCommand(), doctorCommand(), demoCommand(), versionCommand())
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var status *exitStatus
	if errors.As(err, &status) {
		if status.err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", command.CommandPath(), status.err)
			printServersAdvice(os.Stderr, status.err)
		}
		return status.status
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", command.CommandPath(), err)
	printServersAdvice(os.Stderr, err)
	if errors.As(err, new(usageError)) {
		fmt.Fprintf(os.Stderr, "See `%s --help`.\n", command.CommandPath())
		return exitUsage
	}
	if wrongSchema(err) {
		return exitConfig
	}
	return exitFailure
}

// printServersAdvice prints what PostgreSQL says of an error besides its message; of
// a right that is lacking it says nothing, and where we ask, it is the issuer's.
func printServersAdvice(w io.Writer, err error) {
	refusal := (*pgconn.PgError)(nil)
	if !errors.As(err, &refusal) {
		return
	}
	if refusal.Detail != "" {
		fmt.Fprintln(w, "DETAIL: "+refusal.Detail)
	}
	const insufficientPrivilege, invalidName, readOnlyTransaction = "42501", "42602", "25006"
	switch {
	case refusal.Hint != "":
		fmt.Fprintln(w, "HINT: "+strings.Replace(refusal.Hint, "SELECT * FROM wirefence.status()", "wirefence status", 1))
	case refusal.Code == invalidName:
		fmt.Fprintln(w, `HINT: Write the name as in SQL, within the shell's quotes: '"Plain Table"'.`)
	case refusal.Code == insufficientPrivilege:
		fmt.Fprintln(w, "HINT: The role that WIREFENCE_DATABASE_URL names needs the rights of wirefence_issuer: GRANT wirefence_issuer TO it.")
	case refusal.Code == readOnlyTransaction:
		fmt.Fprintln(w, "HINT: WIREFENCE_DATABASE_URL leads to a standby server, or to what is read-only by default. Name the primary, or all hosts with target_session_attrs=read-write.")
	}
}

// parseResource is fence.ParseResource for a name that doesn't stand in a fence.
func parseResource(name string) (fence.Resource, error) {
	resource, err := fence.ParseResource(name)
	if wrong := (*fence.SyntaxError)(nil); errors.As(err, &wrong) {
		err = errors.New(wrong.Reason)
	}
	return resource, err
}

// exactly is cobra.ExactArgs with an error that counts as wrong usage.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("wants %s", what)}
		}
		return nil
	}
}
