package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	goredis "github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/migrations"
)

type revokeSettings struct {
	StoreSettings
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" help:"connection string of the issuer's role (required)"`
}

func revokeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "revoke RESOURCE",
		Short: "Lock the present holder of a resource out at once",
		Long: `Raises the last token of a resource by one and ends the open transactions that
hold it: no write with the present holder's token can commit any more. Then it
frees the lease in the store, if that can tell who has it, so that another can
acquire it at once, with a higher token. The former holder learns of it when it
renews; it may do until then what isn't fenced.`,
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
			return runRevoke(c.Context(), cfg, resource, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	settings[revokeSettings](c)
	return c
}

func runRevoke(ctx context.Context, cfg revokeSettings, resource fence.Resource, stdout, stderr io.Writer) error {
	conn, err := connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	// Another version is no reason to leave a holder in.
	if missing := (*migrations.VersionError)(nil); errors.As(migrations.Verify(ctx, conn), &missing) && missing.Missing() {
		return missing
	}
	leases, err := openLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL)
	if err != nil {
		return usageError{err}
	}
	defer leases.close()
	goredis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // what fails is told below
	done, err := lockclient.Revoke(ctx, conn, leases.store, resource)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s is revoked: tokens below %d are stale\n", resource, done.Token)
	if done.LockedOut.Holder != "" {
		fmt.Fprintf(stdout, "locked out: %s, with token %d\n", done.LockedOut.Holder, done.LockedOut.Token)
	}
	for _, e := range done.Ended {
		fmt.Fprintf(stdout, "ended: a transaction of %s, process %d, application %q\n", e.Login, e.PID, e.Application)
	}
	if done.Freed != "" {
		fmt.Fprintf(stdout, "the lease of %s is free\n", done.Freed)
	}
	if done.NotFreed != nil {
		fmt.Fprintf(stderr, "the lease was not freed; it ends when its holder learns of this, or renews it no more: %v\n", done.NotFreed)
	}
	return nil
}
