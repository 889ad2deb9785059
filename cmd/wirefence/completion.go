package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/wirefence/wirefence/fence"
)

func completionCommand() *cobra.Command {
	shells := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use:   "completion [flags] bash|zsh|fish|powershell",
		Short: "Print a script for completion of commands, flags, values and resources in a shell",
		Long: `Prints a script by which a shell completes commands, flags and their values, and the
names of resources, if the database that the settings name answers within two seconds.`,
		Example: `  source <(wirefence completion bash)
  wirefence completion bash > /etc/bash_completion.d/wirefence
  wirefence completion zsh > "${fpath[1]}/_wirefence"
  wirefence completion fish > ~/.config/fish/completions/wirefence.fish
  wirefence completion powershell | Out-String | Invoke-Expression`,
		Annotations: map[string]string{anyEnvironment: "yes"},
		ValidArgs:   shells,
		Args:        exactly(1, "one shell: bash, zsh, fish or powershell"),
		RunE: func(c *cobra.Command, args []string) error {
			return printCompletion(c.Root(), args[0], c.OutOrStdout())
		},
	}
}

func printCompletion(root *cobra.Command, shell string, w io.Writer) error {
	switch shell {
	case "bash":
		return root.GenBashCompletionV2(w, true)
	case "zsh":
		return root.GenZshCompletion(w)
	case "fish":
		return root.GenFishCompletion(w, true)
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(w)
	}
	return usageError{fmt.Errorf("there is no completion for %q; wants bash, zsh, fish or powershell", shell)}
}

// complete sets the completion of each command and flag, by the arguments that they take.
// Only flags of files, and the command that `wirefence lock` runs, complete names of files.
func complete(c *cobra.Command) {
	switch {
	case c.ValidArgs != nil || c.ValidArgsFunction != nil || c.HasSubCommands():
	case strings.Contains(c.Use, " -- "):
		c.ValidArgsFunction = completeWrapped
	case strings.Contains(c.Use, "RESOURCE"):
		c.ValidArgsFunction = completeResource
	case c.Name() == "unprotect":
		c.ValidArgsFunction = completeGuarded
	case strings.Contains(c.Use, "CLASS"):
		c.ValidArgsFunction = completeClass
	default:
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if by := completionOf(f); by != nil {
			_ = c.RegisterFlagCompletionFunc(f.Name, by) // which fails for a flag that has one
		}
	})
	for _, below := range c.Commands() {
		complete(below)
	}
}

func completionOf(f *pflag.Flag) cobra.CompletionFunc {
	switch kind := f.Value.Type(); {
	case kind == "bool", kind == "file":
		return nil
	case kind == "resource":
		return func(c *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return completeResource(c, nil, begun)
		}
	case kind == "kind,...":
		return completeKinds
	case strings.Contains(kind, "|"):
		return cobra.FixedCompletions(strings.Split(kind, "|"), cobra.ShellCompDirectiveNoFileComp)
	}
	return cobra.NoFileCompletions
}

// completeKinds completes the last kind of a list.
func completeKinds(_ *cobra.Command, _ []string, begun string) (all []string, _ cobra.ShellCompDirective) {
	before := begun[:strings.LastIndex(begun, ",")+1]
	for _, kind := range fence.EventKinds() {
		if offer := before + string(kind); strings.HasPrefix(offer, begun) {
			all = append(all, offer)
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// completeWrapped completes the arguments before a command, and leaves the command to the
// shell. Cobra doesn't tell where the two dashes were.
func completeWrapped(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) > 0 || slices.Contains(os.Args, "--"):
		return nil, cobra.ShellCompDirectiveDefault
	case strings.Contains(c.Use, "RESOURCE"):
		return completeResource(c, args, begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

var (
	completeResource = completeOne(fence.Status, func(r fence.ResourceStatus) string { return string(r.Resource) })
	completeGuarded  = completeOne(fence.Guards, func(g fence.Guard) string { return g.Table })
	completeClass    = completeOne(fence.RowClasses, func(class fence.RowClass) string { return class.Class })
)

// completeOne completes a single argument by the names of what the database lists.
func completeOne[T any](list func(context.Context, fence.Querier) ([]T, error), nameOf func(T) string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return askForNames(c, begun, func(ctx context.Context, conn *pgx.Conn) (names []string, err error) {
			all, err := list(ctx, conn)
			for _, one := range all {
				names = append(names, nameOf(one))
			}
			return names, err
		})
	}
}

// Completion waits for a database, and lists names, within these bounds.
const (
	completionTime = 2 * time.Second
	mostCompleted  = 500
)

// askForNames asks the database for names. After an error it offers none, since a shell that
// completes can't show it.
func askForNames(c *cobra.Command, begun string, ask func(context.Context, *pgx.Conn) ([]string, error)) (found []string, _ cobra.ShellCompDirective) {
	const only = cobra.ShellCompDirectiveNoFileComp
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), completionTime)
	defer cancel()
	conn, err := connectForNames(ctx, c)
	if err != nil {
		return nil, only
	}
	defer closeConn(conn)
	names, err := ask(ctx, conn)
	if err != nil {
		return nil, only
	}
	for _, name := range names {
		if strings.HasPrefix(name, begun) && !strings.ContainsFunc(name, unicode.IsControl) && len(found) < mostCompleted {
			found = append(found, name)
		}
	}
	return found, only
}

func connectForNames(ctx context.Context, c *cobra.Command) (*pgx.Conn, error) {
	if c.Flags().Lookup(flagOf(ownerSetting)) != nil {
		cfg, err := read[OwnerSettings](c)
		if err != nil {
			return nil, err
		}
		return cfg.connect(ctx, "")
	}
	cfg, err := read[IssuerSettings](c)
	if err != nil {
		return nil, err
	}
	return connect(ctx, cfg.DatabaseURL)
}
