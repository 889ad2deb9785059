package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

type protectSettings struct {
	TableSettings
	Resource string `env:"--resource" type:"resource" help:"the resource whose token a write needs, or a template over columns: report:{tenant}:{id} (required)"`
	Shadow   bool   `env:"--shadow" help:"record in the history the writes that would be refused, and refuse nothing"`
}

func protectCommand() *cobra.Command {
	return asks(&cobra.Command{
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
	}, func(cfg protectSettings, args []string) (question, error) {
		if cfg.Resource == "" {
			return nil, errors.New("--resource is missing, the resource that a write needs a token of: wirefence protect public.orders --resource orders")
		}
		mode, text := fence.ModeEnforce, "%s is guarded for %s"
		if cfg.Shadow {
			mode, text = fence.ModeShadow, "%s is guarded for %s in shadow mode: nothing is refused"
		}
		return func(ctx context.Context, conn *pgx.Conn) (answer, error) {
			done := protectedJSON{args[0], cfg.Resource, string(mode)}
			return sentence(done, text, done.Table, done.Resource), fence.Protect(ctx, conn, done.Table, done.Resource, mode)
		}, nil
	})
}

func unprotectCommand() *cobra.Command {
	return asks(&cobra.Command{
		Use:   "unprotect [flags] TABLE",
		Short: "Remove the guards of a table, its partitions and its inheritance children",
		Args:  exactly(1, "one table"),
	}, func(_ TableSettings, args []string) (question, error) {
		return func(ctx context.Context, conn *pgx.Conn) (answer, error) {
			return sentence(unprotectedJSON{args[0]}, "%s is not guarded any more", args[0]), fence.Unprotect(ctx, conn, args[0])
		}, nil
	})
}

// listGuards lists the guarded tables for wirefence status.
func listGuards(ctx context.Context, conn *pgx.Conn) (answer, error) {
	all, err := fence.Guards(ctx, conn)
	return table(all, "No table is guarded.", "TABLE\tRESOURCE\tMODE\tBY\tSINCE\tFAULT", func(g fence.Guard) []any {
		return []any{g.Table, g.Resource, g.Mode, g.By, timeText(g.Since), g.Fault}
	}), err
}
