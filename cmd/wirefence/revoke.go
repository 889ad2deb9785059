package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/migrations"
)

type revokeSettings struct {
	StoreSettings
	DatabaseURL string `env:"WIREFENCE_DATABASE_URL" group:"Connections" file:"yes" help:"connection string of the issuer's role (required)"`
	Reason      string `env:"--reason" type:"why" help:"the reason, for the history"`
	OutputSettings
}

func revokeCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "revoke [flags] RESOURCE",
		Short: "Lock the present holder of a resource out at once",
		Long: `Raises the last token of a resource by one and ends the open transactions that
hold it: no write with the present holder's token can commit any more. Then it
frees the lease in the store, if the store knows the holder, so that another holder
can acquire it at once, with a higher token. The former holder notices at its next
renewal; until then it can still do unfenced work.`,
		Args: exactly(1, "one resource"),
	}, func(c *cobra.Command, cfg revokeSettings, args []string) error {
		resource, err := parseResource(args[0])
		if err != nil {
			return err
		}
		return runRevoke(c.Context(), cfg, resource, c.OutOrStdout(), c.ErrOrStderr())
	})
}

func runRevoke(ctx context.Context, cfg revokeSettings, resource fence.Resource, stdout, stderr io.Writer) error {
	conn, err := connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	// A schema of another version can lock the holder out, too.
	if missing := (*migrations.VersionError)(nil); errors.As(migrations.Verify(ctx, conn), &missing) && missing.Missing() {
		return missing
	}
	leases, err := openLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL)
	if err != nil {
		return usageError{err}
	}
	defer leases.close()
	logRedisTo(nil)
	done, err := lockclient.Revoke(ctx, conn, leases.store, resource, cfg.Reason)
	if err != nil {
		return err
	}
	warnNotFreed(stderr, cfg.StoreSettings, done)
	if cfg.inJSON() {
		return printJSON(stdout, revoked(resource, done))
	}
	printRevocation(stdout, resource, done)
	return nil
}

// warnNotFreed warns that the former holder's lease is still in the lease store.
func warnNotFreed(stderr io.Writer, cfg StoreSettings, done lockclient.Revocation) {
	if done.NotFreed != nil {
		fmt.Fprintf(stderr, "the lease was not freed; it ends when its holder's next renewal fails, or when it expires: %v\n", done.NotFreed)
	}
	for _, store := range cfg.stores() {
		if store.Source() == done.LockedOut.Source && len(cfg.namedStores()) == 0 {
			fmt.Fprintf(stderr, "its tokens come from %s, and no lease store is named here (%s): its lease was not freed, and ends when its holder's next renewal fails, or when it expires\n",
				store.Source(), store.setting)
		}
	}
}

func printRevocation(stdout io.Writer, resource fence.Resource, done lockclient.Revocation) {
	fmt.Fprintf(stdout, "%s is revoked: tokens below %d are stale\n", cell(string(resource)), done.Token)
	if done.LockedOut.Holder != "" {
		fmt.Fprintf(stdout, "locked out: %s, with token %d\n", cell(done.LockedOut.Holder), done.LockedOut.Token)
	}
	for _, e := range done.Ended {
		fmt.Fprintf(stdout, "ended: a transaction of %s, process %d, application %q\n", cell(e.Login), e.PID, e.Application)
	}
	if done.Freed != "" {
		fmt.Fprintf(stdout, "the lease of %s is free\n", cell(done.Freed))
	}
}
