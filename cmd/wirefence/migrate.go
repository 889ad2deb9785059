package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/engine"
	"github.com/wirefence/wirefence/migrations"
)

type migrateSettings struct {
	OwnerSettings
	Failover string        `env:"WIREFENCE_FAILOVER" oneof:"reacquire|trust" help:"the [policy](../failover.md) of all resources in a new schema: ~reacquire~ (the default), or ~trust~, for storage that keeps every commit across a failover; a server that doesn't report its timeline needs ~trust~"`
	Citus    string        `env:"WIREFENCE_CITUS" oneof:"coordinator|nodes" help:"which nodes of [Citus](engines.md#citus) have the tokens, and take fenced clients: the ~coordinator~ (the default), or all ~nodes~. At the coordinator it migrates the workers, too, by the addresses that Citus has of them"`
	DryRun   bool          `env:"--dry-run" help:"print the SQL that would run, and change nothing"`
	Wait     time.Duration `env:"--wait" envDefault:"0s" range:"0.." help:"time to wait for a server that is starting, or that can't be reached yet"`
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
		conn, err := cfg.await(c.Context())
		if err != nil {
			return err
		}
		defer closeConn(conn)
		return suggestOwner(cfg.migrate(c.Context(), conn, c.OutOrStdout()))
	})
}

// await connects, and tries again for a while where another try may succeed.
func (cfg migrateSettings) await(ctx context.Context) (*pgx.Conn, error) {
	for until, told := time.Now().Add(cfg.Wait), false; ; told = true {
		conn, err := cfg.connect(ctx, "a role that may create the schema")
		if err == nil || !mayPass(err) || time.Now().After(until) {
			return conn, err
		}
		if !told {
			fmt.Fprintf(os.Stderr, "wirefence: waiting for the server for %s: %v\n", cfg.Wait, err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// mayPass reports whether an error of a connect may be over soon: the server is starting, full, or
// can't be reached.
func mayPass(err error) bool {
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		return refusal.Code == "57P03" || refusal.Code == "53300"
	}
	return errors.As(err, new(*net.OpError)) || errors.As(err, new(*net.DNSError)) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}

func (cfg migrateSettings) migrate(ctx context.Context, conn *pgx.Conn, w io.Writer) (err error) {
	options := migrations.Options{Failover: fence.Failover(cfg.Failover), Citus: migrations.Citus(cfg.Citus)}
	done := migratedJSON{After: migrations.Version(), DryRun: cfg.DryRun, Steps: []string{}}
	if done.Before, err = schemaVersion(ctx, conn); err != nil {
		return err
	}
	report := func(line string) {
		done.Steps = append(done.Steps, line)
		if !cfg.inJSON() {
			fmt.Fprintln(w, line)
		}
	}
	if cfg.DryRun {
		done.SQL, err = options.Pending(ctx, conn)
	} else {
		err = options.Apply(ctx, conn, report)
	}
	if err != nil {
		return err
	}
	if !cfg.DryRun {
		err = cfg.migrateWorkers(ctx, conn, options, report)
	}
	switch {
	case cfg.inJSON():
		return errors.Join(printJSON(w, done), err)
	case cfg.DryRun && done.SQL == "":
		fmt.Fprintf(w, "-- The schema is at version %d: nothing to do.\n", migrations.Version())
	}
	_, printed := io.WriteString(w, done.SQL)
	return errors.Join(err, printed)
}

// migrateWorkers does at Citus' coordinator what each worker needs that is to have the tokens, too.
func (cfg migrateSettings) migrateWorkers(ctx context.Context, conn *pgx.Conn, options migrations.Options, report func(line string)) error {
	_, coordinates, err := engine.Citus(ctx, conn)
	if err != nil || !coordinates {
		return err
	}
	workers, err := otherNodes(ctx, conn)
	if err != nil {
		return err
	}
	options.Citus = migrations.CitusNodes
	var failed error
	for _, address := range workers {
		if err := cfg.migrateWorker(ctx, address, options, report); err != nil {
			failed = errors.Join(failed, fmt.Errorf("no token is granted until the worker %s has the schema: run wirefence migrate --citus nodes again, here or there: %w", address, err))
		}
	}
	return failed
}

func (cfg migrateSettings) migrateWorker(ctx context.Context, address string, options migrations.Options, report func(line string)) error {
	cfg.OwnerURL = connstring.At(cmp.Or(cfg.OwnerURL, cfg.DatabaseURL), address)
	conn, err := cfg.connect(ctx, "")
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return options.Apply(ctx, conn, func(line string) { report(address + ": " + line) })
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
