package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/lockclient"
)

// Input is what the checks are given. Nothing in it connects before a check does.
type Input struct {
	// Database is a pool of the issuer's role, made by OpenPool. It is required.
	Database *pgxpool.Pool
	// Store is the lease store, nil where leases are in Database. StoreSetting is
	// the setting that names it.
	Store        lockclient.Store
	StoreSetting string
	// Replicas is how many Redis replicas a grant waits for.
	Replicas int
	// Proxy is a session through the proxy, nil where no proxy is named.
	Proxy *pgx.ConnConfig
	// Upstream is a session to where the proxy connects, nil where that is not
	// named.
	Upstream *pgx.ConnConfig
	// Admin is where the proxy's probes are, host:port; "" where that is not
	// named.
	Admin string
	// MaxConnections is the proxy's limit of clients, 0 where that is not named.
	MaxConnections int
	// TTL is that of the leases. It is required.
	TTL time.Duration
}

// checks are those that the input has something for.
func (in *Input) checks() []Check {
	return slices.Concat(databaseChecks, schemaChecks, engineChecks(), guardChecks, serverChecks, sessionChecks, resourceChecks, failoverChecks,
		in.storeChecks(), in.proxyChecks())
}

// OpenPool makes a pool for the checks. Several of them run at once.
func OpenPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MinConns, cfg.MaxConns = 0, concurrency
	name(cfg.ConnConfig)
	return pgxpool.NewWithConfig(ctx, cfg)
}

// ParseSession is a configuration of single sessions for the checks.
func ParseSession(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgxpool.ParseConfig(url) // what a pool may be told is no error here
	if err != nil {
		return nil, err
	}
	name(cfg.ConnConfig)
	return cfg.ConnConfig, nil
}

// name lets operators see whose sessions these are, and lets them work with a
// pooler: nothing is prepared that outlives a transaction.
func name(cfg *pgx.ConnConfig) {
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "wirefence doctor"
	}
	cfg.RuntimeParams["client_encoding"] = "UTF8"
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
}

// read runs a function in a transaction of the database that can't write, and in
// which nothing comes before the system's own functions, and values and names are
// written as by default. All is set for the
// transaction alone, since a pooler may hand the session to others afterwards.
func (in *Input) read(ctx context.Context, do func(tx pgx.Tx) error) error {
	tx, err := in.Database.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
		pg_catalog.set_config('bytea_output', 'hex', true), pg_catalog.set_config('quote_all_identifiers', 'off', true)`); err != nil {
		return err
	}
	return do(tx)
}

// rows runs a query and reads all of its rows into structs, by position.
func rows[T any](ctx context.Context, in *Input, sql string, args ...any) (all []T, err error) {
	err = in.read(ctx, func(tx pgx.Tx) error {
		got, err := tx.Query(ctx, sql, args...)
		if err == nil {
			all, err = pgx.CollectRows(got, pgx.RowToStructByPos[T])
		}
		return err
	})
	return all, err
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
