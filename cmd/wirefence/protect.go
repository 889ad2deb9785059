package main

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

type protectSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of the table's owner (required)"`
	Resource    string `env:"WIREFENCE_RESOURCE" help:"the resource that a write needs a token of, or a template over columns: report:{tenant}:{id} (required)"`
	Shadow      bool   `env:"WIREFENCE_SHADOW" help:"let everything pass, and note in the history what would be refused"`
}

var errNoOwner = usageError{errors.New("WIREFENCE_DATABASE_URL is not set: it is the connection string of the table's owner, as in postgres://owner@db.internal/app")}

func protectCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "protect TABLE",
		Short: "Let a table refuse writes that carry no current token",
		Long: `Installs triggers by which a table checks its writes for itself, whatever way
they take: past the proxy, in a function, by a cascade. A write wants a current
token of the resource, from the proxy or in the session variable wirefence.token.
With a template over columns each row wants the token of its own resource.

Partitions and heirs are guarded too. Run it again after adding some: later
partitions are guarded but for TRUNCATE. It waits for the table's writers.

With --shadow the table refuses nothing: wirefence history tells what it would
have refused. Run it again without to have it refuse.`,
		Example: "  wirefence protect public.orders --resource orders\n  wirefence protect reports --resource 'report:{tenant}:{id}'",
		Args:    exactly(1, "one table"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := read[protectSettings](c)
			if err != nil {
				return err
			}
			if cfg.Resource == "" {
				return usageError{errors.New("wants a resource: wirefence protect public.orders --resource orders")}
			}
			if cfg.DatabaseURL == "" {
				return errNoOwner
			}
			return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error {
				mode, text := fence.ModeEnforce, "%s is guarded for %s\n"
				if cfg.Shadow {
					mode, text = fence.ModeShadow, "%s is guarded for %s in shadow mode: nothing is refused\n"
				}
				err := fence.Protect(c.Context(), conn, args[0], cfg.Resource, mode)
				if err == nil {
					fmt.Fprintf(c.OutOrStdout(), text, args[0], cfg.Resource)
				}
				return err
			})
		},
	}
	settings[protectSettings](c)
	return c
}

type unprotectSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of the table's owner (required)"`
}

func unprotectCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "unprotect TABLE",
		Short: "Remove the guards of a table, its partitions and its heirs",
		Args:  exactly(1, "one table"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := read[unprotectSettings](c)
			if err != nil {
				return err
			}
			if cfg.DatabaseURL == "" {
				return errNoOwner
			}
			return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error {
				err := fence.Unprotect(c.Context(), conn, args[0])
				if err == nil {
					fmt.Fprintf(c.OutOrStdout(), "%s is not guarded any more\n", args[0])
				}
				return err
			})
		},
	}
	settings[unprotectSettings](c)
	return c
}
