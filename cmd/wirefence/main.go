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

// newRoot makes the tree of commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "wirefence",
		Short: "A fencing proxy for PostgreSQL: a former lock holder's writes are refused by the database",
		Long: `Wirefence makes PostgreSQL refuse the writes of a process that has lost its lock.

Settings are environment variables, each with a flag of the same name, which wins.
Append _FILE to the variable or -file to the flag of a setting that may hold a
password, to read it from a file, on one line. Flags stand before the arguments.
Durations are written as in 300ms, 15s or 2h.

Exit status, unless the help of a command says otherwise:

    0   it is done
    1   it failed; standard error says why
    2   the command line, the environment or a file that they name is wrong;
        nothing was done
    78  the database's schema is missing, or too far from this version`,
		SilenceUsage: true, SilenceErrors: true,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("version") {
				return thisBuild().print(c.OutOrStdout())
			}
			return c.Help()
		},
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			if readsNoSettings(c) || checksConfig(c) {
				return nil
			}
			if err := checkVariables(c.Root(), os.Environ()); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	root.Flags().Bool("version", false, "print the version, as the command version does")
	root.SetHelpFunc(printHelp)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{suggestFlag(c, err)} })
	root.CompletionOptions.DisableDefaultCmd = true // completionCommand replaces it
	root.AddGroup(commandGroups...)
	root.AddCommand(in(groupRun, proxyCommand(), lockCommand(), checkCommand(), guardCommand(), demoCommand(), zombieCommand())...)
	root.AddCommand(in(groupSetUp, migrateCommand(), protectCommand(), unprotectCommand(), rowsCommand(), uninstallCommand())...)
	root.AddCommand(in(groupOperate, statusCommand(), historyCommand(), resourceCommand(), revokeCommand(), carryNameCommand(), doctorCommand())...)
	root.AddCommand(in(groupOther, completionCommand(), versionCommand())...)
	root.SetHelpCommandGroupID(groupOther)
	root.AddCommand(manualCommands()...)
	complete(root)
	return root
}

func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	if err == nil && takenForHelp(command) {
		err = usageError{errors.New("if -h is a flag of the command to run, put -- before that")}
	}
	if err == nil {
		return 0
	}
	var status *exitStatus
	if errors.As(err, &status) {
		if status.err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", command.CommandPath(), status.err)
			printServersAdvice(os.Stderr, command, status.err)
		}
		return status.status
	}
	all := []error{err}
	if usage, is := err.(usageError); is {
		all = single(usage.error)
	}
	for _, each := range all {
		fmt.Fprintf(os.Stderr, "%s: %v\n", command.CommandPath(), each)
	}
	printServersAdvice(os.Stderr, command, err)
	if errors.As(err, new(usageError)) {
		fmt.Fprintf(os.Stderr, "See `%s --help`.\n", command.CommandPath())
		return exitUsage
	}
	if wrongSchema(err) {
		return exitConfig
	}
	return exitFailure
}

// byCommands names commands in place of SQL.
var byCommands = strings.NewReplacer("SELECT * FROM wirefence.status()", "wirefence status", "SELECT * FROM wirefence.rows()", "wirefence rows list")

// printServersAdvice prints DETAIL and HINT of PostgreSQL's error. PostgreSQL gives no hint
// for a missing right; then the hint names the setting of the role that lacks it.
func printServersAdvice(w io.Writer, c *cobra.Command, err error) {
	refusal := (*pgconn.PgError)(nil)
	if !errors.As(err, &refusal) {
		return
	}
	if refusal.Detail != "" {
		fmt.Fprintln(w, "DETAIL: "+refusal.Detail)
	}
	asOwner, setting := c.Flags().Lookup(flagOf(ownerSetting)) != nil, "WIREFENCE_DATABASE_URL"
	if asOwner {
		setting = ownerSetting
	}
	const insufficientPrivilege, invalidName, readOnlyTransaction = "42501", "42602", "25006"
	switch {
	case asOwner && refusal.Code == insufficientPrivilege:
		fmt.Fprintln(w, "HINT: "+strings.TrimSpace(refusal.Hint+" Set "+ownerSetting+" to a role that has the right."))
	case refusal.Hint != "":
		fmt.Fprintln(w, "HINT: "+byCommands.Replace(refusal.Hint))
	case refusal.Code == invalidName:
		fmt.Fprintln(w, `HINT: Write the name as in SQL, within the shell's quotes: '"Plain Table"'.`)
	case refusal.Code == insufficientPrivilege:
		fmt.Fprintln(w, "HINT: The role that WIREFENCE_DATABASE_URL names needs the rights of wirefence_issuer: GRANT wirefence_issuer TO it.")
	case refusal.Code == readOnlyTransaction:
		fmt.Fprintln(w, "HINT: "+setting+" leads to a standby server, or to what is read-only by default. Name the primary, or all hosts with target_session_attrs=read-write.")
	}
}

// parseResource is fence.ParseResource for an argument: its error counts as wrong usage, and
// names no position in a fence.
func parseResource(name string) (fence.Resource, error) {
	resource, err := fence.ParseResource(name)
	if wrong := (*fence.SyntaxError)(nil); errors.As(err, &wrong) {
		err = errors.New(wrong.Reason)
	}
	if err != nil {
		return "", usageError{err}
	}
	return resource, nil
}

func atMostOne(what string) cobra.PositionalArgs { return wants(what, cobra.MaximumNArgs(1)) }

func exactly(n int, what string) cobra.PositionalArgs { return wants(what, cobra.ExactArgs(n)) }

// wants gives cobra's judgment of the arguments an error that counts as wrong usage.
func wants(what string, judge cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if judge(c, args) != nil {
			return usageError{fmt.Errorf("wants %s", what)}
		}
		return nil
	}
}
