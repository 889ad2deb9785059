package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/migrations"
)

type migrateSettings struct {
	OwnerSettings
	Failover string `env:"WIREFENCE_FAILOVER" oneof:"reacquire|trust" help:"the [policy](failover.md) of all resources in a new schema: ~reacquire~ (the default), or ~trust~, for storage that keeps every commit across a failover; a server that doesn't report its timeline needs ~trust~"`
	Citus    string `env:"WIREFENCE_CITUS" oneof:"coordinator|nodes" help:"which nodes of [Citus](engines.md#citus) have the tokens, and take fenced clients: the ~coordinator~ (the default), or all ~nodes~; then run it on each, the coordinator first"`
	DryRun   bool   `env:"--dry-run" help:"print the SQL that would run, and change nothing"`
	OutputSettings
}

func migrateCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "migrate",
		Short: "Bring a database's wirefence schema to this version",
		Long: `Creates the schema wirefence with its functions, and the roles wirefence_owner,
wirefence_issuer and wirefence_bypass, or brings them to this version. It may be
run again, and by several at once. If the role lacks a right, the error names the
statements that grant it. It refuses a server that behaves otherwise than PostgreSQL.

Don't use the proxy's role, which must not have wirefence_owner: name another with
WIREFENCE_OWNER_URL.`,
		Args: exactly(0, "no arguments"),
	}, func(c *cobra.Command, cfg migrateSettings, _ []string) error {
		conn, err := cfg.connect(c.Context(), "a role that may create the schema")
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		return suggestOwner(cfg.migrate(c.Context(), conn, c.OutOrStdout()))
	})
}

func (cfg migrateSettings) migrate(ctx context.Context, conn *pgx.Conn, w io.Writer) (err error) {
	options := migrations.Options{Failover: fence.Failover(cfg.Failover), Citus: migrations.Citus(cfg.Citus)}
	done := migratedJSON{After: migrations.Version(), DryRun: cfg.DryRun, Steps: []string{}}
	if done.Before, err = schemaVersion(ctx, conn); err != nil {
		return err
	}
	if cfg.DryRun {
		done.SQL, err = options.Pending(ctx, conn)
	} else {
		err = options.Apply(ctx, conn, func(line string) {
			done.Steps = append(done.Steps, line)
			if !cfg.inJSON() {
				fmt.Fprintln(w, line)
			}
		})
	}
	switch {
	case err != nil:
		return err
	case cfg.inJSON():
		return printJSON(w, done)
	case cfg.DryRun && done.SQL == "":
		fmt.Fprintf(w, "-- The schema is at version %d: nothing to do.\n", migrations.Version())
	}
	_, err = io.WriteString(w, done.SQL)
	return err
}

// schemaVersion is that of a database, 0 for none.
func schemaVersion(ctx context.Context, conn *pgx.Conn) (int, error) {
	err := migrations.Verify(ctx, conn)
	if other := (*migrations.VersionError)(nil); errors.As(err, &other) {
		return other.Have, nil
	}
	if lacks := (*migrations.ContentError)(nil); errors.As(err, &lacks) {
		return migrations.Version(), nil
	}
	return migrations.Version(), err
}
