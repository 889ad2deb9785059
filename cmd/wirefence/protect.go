package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

type protectSettings struct {
	OwnerSettings
	Resource string `env:"--resource" type:"resource" help:"the resource whose token a write needs, or a template over columns: report:{tenant}:{id} (required)"`
	Shadow   bool   `env:"--shadow" help:"record in the history the writes that would be refused, and refuse nothing"`
	OutputSettings
}

func protectCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "protect [flags] TABLE",
		Short: "Install guards, by which a table refuses writes that carry no current token",
		Long: `Installs triggers by which a table checks its writes itself, also those that bypass
the proxy, come from a function, or from a cascade. A write needs a current token of
the resource, from the proxy or in the session variable wirefence.token. With a
template over columns, each row needs the token of its own resource.

Partitions and inheritance children are guarded, too. Run it again after you add
some: until then, new partitions are guarded except against TRUNCATE. The command
waits for the table's writers. With --shadow, run it again without to enforce.`,
		Example: "  wirefence protect public.orders --resource orders\n  wirefence protect reports --resource 'report:{tenant}:{id}'",
		Args:    exactly(1, "one table"),
	}, func(c *cobra.Command, cfg protectSettings, args []string) error {
		if cfg.Resource == "" {
			return usageError{errors.New("--resource is missing, the resource that a write needs a token of: wirefence protect public.orders --resource orders")}
		}
		return cfg.onSchema(c.Context(), func(conn *pgx.Conn) error {
			return protect(c.Context(), conn, args[0], cfg, c.OutOrStdout())
		})
	})
}

func protect(ctx context.Context, conn *pgx.Conn, table string, cfg protectSettings, w io.Writer) error {
	mode, text := fence.ModeEnforce, "%s is guarded for %s\n"
	if cfg.Shadow {
		mode, text = fence.ModeShadow, "%s is guarded for %s in shadow mode: nothing is refused\n"
	}
	if err := fence.Protect(ctx, conn, table, cfg.Resource, mode); err != nil {
		return err
	}
	if cfg.inJSON() {
		return printJSON(w, protectedJSON{table, cfg.Resource, string(mode)})
	}
	fmt.Fprintf(w, text, table, cfg.Resource)
	return nil
}

func unprotectCommand() *cobra.Command {
	return undoCommand(&cobra.Command{
		Use:   "unprotect [flags] TABLE",
		Short: "Remove the guards of a table, its partitions and its inheritance children",
		Args:  exactly(1, "one table"),
	}, fence.Unprotect, func(table string) any { return unprotectedJSON{table} }, "%s is not guarded any more\n")
}

type undoSettings struct {
	OwnerSettings
	OutputSettings
}

// undoCommand adds what takes a declaration of the name in its argument back, and says so.
func undoCommand(c *cobra.Command, undo func(context.Context, fence.Querier, string) error, inJSON func(name string) any, text string) *cobra.Command {
	return withSettings(c, func(c *cobra.Command, cfg undoSettings, args []string) error {
		return cfg.onSchema(c.Context(), func(conn *pgx.Conn) error {
			err := undo(c.Context(), conn, args[0])
			switch {
			case err != nil:
				return err
			case cfg.inJSON():
				return printJSON(c.OutOrStdout(), inJSON(args[0]))
			}
			fmt.Fprintf(c.OutOrStdout(), text, args[0])
			return nil
		})
	})
}

// printGuards lists the guarded tables for wirefence status.
func printGuards(ctx context.Context, conn *pgx.Conn, asJSON bool, w io.Writer) error {
	all, err := fence.Guards(ctx, conn)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "No table is guarded.")
		return nil
	}
	t := newTable(w)
	fmt.Fprintln(t, "TABLE\tRESOURCE\tMODE\tBY\tSINCE\tFAULT")
	for _, g := range all {
		since := "-"
		if g.By != "" {
			since = g.Since.Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", cell(g.Table), cell(g.Resource), g.Mode, cellOrDash(g.By), since, cellOrDash(g.Fault))
	}
	return t.Flush()
}
