package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/migrations"
)

type revokeSettings struct {
	StoreSettings
	SealSettings
	ResourceSettings
	Reason string `env:"--reason" type:"why" help:"the reason, for the history"`
}

func revokeCommand() *cobra.Command {
	return withSettings(&cobra.Command{
		Use:   "revoke [flags] RESOURCE",
		Short: "Lock the present holder of a resource out at once",
		Long: `Raises the last token of a resource by one and ends the open transactions that
hold it: no write with the present holder's token can commit any more. Then it frees
the lease in the store, if the store knows the holder, so that another can acquire it
at once. The former holder notices at its next renewal; until then it can still do
unfenced work.

Where grants are sealed in several databases, it does so in all. It names those that
it could not reach, where the holder may still write, and fails: then run it again.`,
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
	if cfg.DatabaseURL == "" {
		return usageError{errNoDatabase}
	}
	leases, err := openLeases(ctx, cfg.StoreSettings, cfg.DatabaseURL, cfg.SealURLs)
	if err != nil {
		return usageError{err}
	}
	defer leases.close()
	logRedisTo(nil)
	done, failed := lockclient.Revoke(ctx, leases.recorded(), leases.store, resource, cfg.Reason)
	if failed != nil {
		failed = leases.explain(ctx, failed)
	}
	reached := slices.DeleteFunc(slices.Clone(done.Databases), func(each lockclient.Revoked) bool { return each.Err != nil })
	if len(reached) == 0 {
		return failed
	}
	warnNotFreed(stderr, cfg.StoreSettings, done.NotFreed, reached[0].LockedOut)
	err = cfg.give(stdout, answer{revoked(resource, done, reached), func(w io.Writer) error {
		printRevocation(w, resource, done, reached)
		return nil
	}})
	if failed != nil {
		return fmt.Errorf("%s is not revoked in every database, and its holder may still write there; run it again: %w", cell(string(resource)), failed)
	}
	return err
}

// explain returns that a database lacks the schema, if that is why a revocation failed. A
// schema of another version can lock the holder out, too.
func (l *leases) explain(ctx context.Context, failed error) error {
	if refusal := (*pgconn.PgError)(nil); !errors.As(failed, &refusal) || !strings.HasPrefix(refusal.Code, "42") && refusal.Code != "3F000" {
		return failed
	}
	for _, d := range l.databases {
		_ = d.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
			if missing := (*migrations.VersionError)(nil); errors.As(migrations.Verify(ctx, c.Conn()), &missing) && missing.Missing() {
				failed = fmt.Errorf("%s: %w", d.name, missing)
			}
			return nil
		})
	}
	return failed
}

// warnNotFreed warns that the former holder's lease is still in the lease store.
func warnNotFreed(stderr io.Writer, cfg StoreSettings, why error, lockedOut fence.Grant) {
	if why != nil {
		fmt.Fprintf(stderr, "the lease was not freed; it ends when its holder's next renewal fails, or when it expires: %v\n", why)
	}
	for _, store := range cfg.stores() {
		if store.Source() == lockedOut.Source && len(cfg.namedStores()) == 0 {
			fmt.Fprintf(stderr, "its tokens come from %s, and no lease store is named here (%s): its lease was not freed, and ends when its holder's next renewal fails, or when it expires\n",
				store.Source(), store.setting)
		}
	}
}

func printRevocation(stdout io.Writer, resource fence.Resource, done lockclient.Revocation, reached []lockclient.Revoked) {
	for _, each := range reached {
		where := ""
		if len(done.Databases) > 1 {
			where = " in " + cell(each.Database)
		}
		fmt.Fprintf(stdout, "%s is revoked%s: tokens below %d are stale\n", cell(string(resource)), where, each.Token)
		if each.LockedOut.Holder != "" {
			fmt.Fprintf(stdout, "locked out: %s, with token %d\n", cell(each.LockedOut.Holder), each.LockedOut.Token)
		}
		for _, e := range each.Ended {
			fmt.Fprintf(stdout, "ended: a transaction of %s, process %d, application %q\n", cell(e.Login), e.PID, e.Application)
		}
	}
	if done.Freed != "" {
		fmt.Fprintf(stdout, "the lease of %s is free\n", cell(done.Freed))
	}
}
