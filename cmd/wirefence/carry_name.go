package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

type carryNameSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"yes" help:"connection string of the issuer's role (required)"`
	Reason      string `env:"--reason" type:"why" help:"the reason, for the history (required)"`
	OutputSettings
}

func carryNameCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "carry-name [flags] --reason WHY on|off",
		Short: "Let fences in application_name count, or not",
		Long: `Sets for a database whether a fence in application_name counts, as in
wirefence:orders=34~nightly job. It doesn't by default. It is for clients behind a
pooler that refuses the startup parameter options. See first what the pooler does
with names: wirefence doctor --through URL.`,
		Example: "  wirefence carry-name on --reason 'PgBouncer 1.25 hands names on'",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] != "on" && args[0] != "off" {
				return usageError{errors.New("wants on or off")}
			}
			return nil
		},
	}, func(c *cobra.Command, cfg carryNameSettings, args []string) error {
		if err := (PolicySettings{Reason: cfg.Reason}).checkReason(); err != nil {
			return usageError{err}
		}
		return onSchema(c.Context(), cfg.DatabaseURL, func(conn *pgx.Conn) error {
			return setCarryName(c.Context(), conn, args[0] == "on", cfg, c.OutOrStdout())
		})
	})
}

func setCarryName(ctx context.Context, conn *pgx.Conn, counts bool, cfg carryNameSettings, w io.Writer) error {
	changed, err := fence.SetCarryName(ctx, conn, counts, cfg.Reason)
	switch {
	case err != nil:
		return err
	case cfg.inJSON():
		return printJSON(w, setJSON{Settings: changed})
	}
	fmt.Fprintln(w, "it is set for the database")
	values(changed).print(w)
	return nil
}
