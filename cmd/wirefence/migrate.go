package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/migrations"
)

type migrateSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of a role that may create the schema (required)"`
	Failover    string `env:"WIREFENCE_FAILOVER" help:"the policy of all resources when the schema is made: reacquire (the default), or trust, for storage that keeps every commit across a failover; a server that doesn't tell its timeline needs trust"`
	DryRun      bool   `env:"WIREFENCE_DRY_RUN" help:"print the SQL that would run, and change nothing"`
}

func migrateCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Bring a database's wirefence schema to this version",
		Long: `Creates the schema wirefence with its functions, and the roles wirefence_owner,
wirefence_issuer and wirefence_bypass, or brings them to this version. It may be
run again, and by several at once. Where the role lacks a right, the error names
the statements that grant it.

Before it makes anything, it probes whether the server behaves as PostgreSQL does in
what a fence rests on, and refuses one that doesn't.`,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := read[migrateSettings](c)
			if err != nil {
				return err
			}
			options := migrations.Options{Failover: fence.Failover(cfg.Failover)}
			if err := options.Validate(); err != nil {
				return usageError{fmt.Errorf("WIREFENCE_FAILOVER is %q: reacquire or trust", cfg.Failover)}
			}
			conn, err := connect(c.Context(), cfg.DatabaseURL)
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			if !cfg.DryRun {
				return options.Apply(c.Context(), conn, func(line string) { fmt.Fprintln(c.OutOrStdout(), line) })
			}
			sql, err := options.Pending(c.Context(), conn)
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
