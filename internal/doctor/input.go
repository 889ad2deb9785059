package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/lockclient"
)

// Input names the parts of a deployment. The checks connect to them.
type Input struct {
	// Database is a pool of the issuer's role, made by OpenPool. It is required.
	Database *pgxpool.Pool
	// Further are the other databases in which grants are sealed.
	Further []FurtherDatabase
	// Store is the lease store, nil where leases are in Database. StoreSetting is
	// the setting that names it.
	Store        lockclient.Store
	StoreSetting string
	// Source is what tokens of the lease store come from. Sources are those of all lease
	// stores that this binary has: a resource of another source has grants of another
	// lock service. Both are required.
	Source  fence.Source
	Sources []fence.Source
	// Lease is the resource whose lease the proxy holds, or waits for, "" where it has none.
	Lease fence.Resource
	// Proxy is a session through the proxy, nil where no proxy is named.
	Proxy *pgx.ConnConfig
	// Through is a session of an application, through a pooler for instance; nil where none is named.
	Through *pgx.ConnConfig
	// Witness tells the proxy which of its servers leads; nil if none is named.
	Witness *Witness
	// Adopted are the locks that the application takes by itself.
	Adopted []AdoptedLock
	// Upstream opens a session on the proxy's servers; nil if they aren't named.
	Upstream *pgx.ConnConfig
	// Admin is the host:port of the proxy's probes; "" if it isn't named.
	Admin string
	// MaxConnections is the proxy's limit of clients; 0 if it isn't named.
	MaxConnections int
	// TTL is the time to live of leases. It is required.
	TTL time.Duration
}

// checks returns the checks for which the input names a part.
func (in *Input) checks() []Check {
	return slices.Concat(in.ownChecks(), in.furtherChecks(), in.adoptedChecks(), in.witnessChecks(), in.storeChecks(), in.proxyChecks(), in.throughChecks())
}

// ownChecks are those of the database.
func (in *Input) ownChecks() []Check {
	return slices.Concat(databaseChecks, schemaChecks, engineChecks(), guardChecks, rowChecks, serverChecks, sessionChecks, resourceChecks, failoverChecks)
}

// OpenPool returns a pool for the checks, which run several at a time.
func OpenPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	cfg, err := connstring.Pool(url)
	if err != nil {
		return nil, err
	}
	cfg.MinConns, cfg.MaxConns = 0, concurrency
	configureSession(cfg.ConnConfig)
	return pgxpool.NewWithConfig(ctx, cfg)
}

// ParseSession returns the configuration of single sessions for the checks.
func ParseSession(url string) (*pgx.ConnConfig, error) {
	cfg, err := connstring.Conn(url)
	if err != nil {
		return nil, err
	}
	configureSession(cfg)
	return cfg, nil
}

// configureSession sets application_name, and prepares nothing by name,
// so that a transaction pooler can carry the session.
func configureSession(cfg *pgx.ConnConfig) {
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "wirefence doctor"
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
}

// read runs do in a read-only transaction in which pg_catalog is first in search_path, and
// values and names are written as by default. The settings are the transaction's alone,
// since a pooler may give the session to another client afterwards.
func read[T any](ctx context.Context, in *Input, do func(tx pgx.Tx) (T, error)) (got T, err error) {
	err = pgx.BeginTxFunc(ctx, in.Database, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
			pg_catalog.set_config('bytea_output', 'hex', true), pg_catalog.set_config('quote_all_identifiers', 'off', true)`); err != nil {
			return err
		}
		got, err = do(tx)
		return err
	})
	return got, err
}

// onConnection runs do on a connection of the pool.
func onConnection[T any](ctx context.Context, in *Input, do func(conn *pgx.Conn) (T, error)) (got T, err error) {
	err = in.Database.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		got, err = do(c.Conn())
		return err
	})
	return got, err
}

// rows runs a query and returns its rows as structs, by position.
func rows[T any](ctx context.Context, in *Input, sql string, args ...any) ([]T, error) {
	return collect(ctx, in, pgx.RowToStructByPos[T], sql, args...)
}

// row runs a query of exactly one row.
func row[T any](ctx context.Context, in *Input, sql string, args ...any) (one T, err error) {
	all, err := rows[T](ctx, in, sql, args...)
	switch {
	case err != nil:
		return one, err
	case len(all) != 1:
		return one, fmt.Errorf("%d rows instead of one", len(all))
	}
	return all[0], nil
}

// column runs a query of one column of texts.
func column(ctx context.Context, in *Input, sql string, args ...any) ([]string, error) {
	return collect(ctx, in, pgx.RowTo[string], sql, args...)
}

func collect[T any](ctx context.Context, in *Input, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return read(ctx, in, func(tx pgx.Tx) ([]T, error) {
		got, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(got, scan)
	})
}
