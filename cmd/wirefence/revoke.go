package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
)

type revokeSettings struct {
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of the issuer's role (required)"`
}

func revokeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke RESOURCE",
		Short: "Lock the present holder of a resource out at once",
		Long: `Raises the last token of a resource by one and ends the open transactions that
hold it: no write with the present holder's token can commit any more. The next
acquire gets a higher token.`,
		Args: exactly(1, "one resource"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := read[revokeSettings](c)
			if err != nil {
				return err
			}
			resource, err := fence.ParseResource(args[0])
			if err != nil {
				return usageError{err}
			}
			conn, err := connect(c.Context(), cfg.DatabaseURL)
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			token, err := fence.Revoke(c.Context(), conn, resource)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s is revoked: tokens below %d are stale\n", resource, token)
			return nil
		},
	}
	settings[revokeSettings](c)
	return c
}
