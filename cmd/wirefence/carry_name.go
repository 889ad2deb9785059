package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

type carryNameSettings struct {
	ResourceSettings
	Reason string `env:"--reason" type:"why" help:"the reason, for the history (required)"`
}

func carryNameCommand() *cobra.Command {
	return asks(&cobra.Command{
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
	}, func(cfg carryNameSettings, args []string) (question, error) {
		return func(ctx context.Context, conn *pgx.Conn) (answer, error) {
			changed, err := fence.SetCarryName(ctx, conn, args[0] == "on", cfg.Reason)
			return wasSet("", changed, "it is set for the database"), err
		}, checkReason(cfg.Reason)
	})
}
