package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// awaitedSchema waits until the database can be queried and has the schema.
func awaitedSchema(cfg proxySettings, log *slog.Logger) *awaited {
	return &awaited{
		look:       func(ctx context.Context) error { return lookForSchema(ctx, cfg, log) },
		mayComeYet: schemaMayComeYet,
		lacks:      "the database can't be queried or lacks the schema",
		has:        "the database can be queried and has the schema",
		log:        log,
	}
}

// lookForSchema refuses a database that is too far behind or ahead of this binary.
func lookForSchema(ctx context.Context, cfg proxySettings, log *slog.Logger) error {
	if cfg.Mode == proxy.Off {
		return nil
	}
	if cfg.DatabaseURL == "" {
		log.Warn("the schema is not verified, since WIREFENCE_DATABASE_URL is not set")
		return nil
	}
	conn, err := connect(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	differs, err := migrations.Usable(ctx, conn)
	if differs != nil && err == nil {
		log.Warn("the schema and this binary are one version apart, as during a rollout: run `wirefence migrate`, or upgrade the binary, to end it",
			"schema", differs.Have, "binary", differs.Need)
	}
	return err
}

// schemaMayComeYet reports whether waiting can help: the server is away or about to start, or the
// database is not migrated yet, or a rollout that is being taken back migrated it too far.
func schemaMayComeYet(err error) bool {
	if errors.As(err, new(usageError)) {
		return false
	}
	if errors.As(err, new(*migrations.VersionError)) {
		return true
	}
	refusal := (*pgconn.PgError)(nil)
	if errors.As(err, &refusal) {
		const tooManyConnections = "53300"
		return refusal.Code == tooManyConnections || strings.HasPrefix(refusal.Code, "57P0") || strings.HasPrefix(refusal.Code, "08")
	}
	network := net.Error(nil)
	return errors.As(err, &network) || errors.As(err, new(*pgconn.ConnectError)) || pgconn.Timeout(err)
}
