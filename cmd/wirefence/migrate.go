package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/migrations"
)

type migrateSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of a role that may create the schema (required)"`
	DryRun      bool   `env:"WIREFENCE_DRY_RUN" help:"print the SQL that would run, and change nothing"`
}

func migrateCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database's wirefence schema to this version",
		Long: `Creates the schema wirefence with its functions, and the roles wirefence_owner,
wirefence_issuer and wirefence_bypass, or brings them to this version. It may be
run again, and by several at once. Where the role lacks a right, the error names
the statements that grant it.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := read[migrateSettings](c)
			if err != nil {
				return err
			}
			conn, err := connect(c.Context(), cfg.DatabaseURL)
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			if !cfg.DryRun {
				return migrations.Apply(c.Context(), conn, func(line string) { fmt.Fprintln(c.OutOrStdout(), line) })
			}
			sql, err := migrations.Pending(c.Context(), conn)
			if err == nil && sql == "" {
				sql = fmt.Sprintf("-- The schema is at version %d: nothing to do.\n", migrations.Version())
			}
			fmt.Fprint(c.OutOrStdout(), sql)
			return err
		},
	}
	settings[migrateSettings](c)
	return c
}
