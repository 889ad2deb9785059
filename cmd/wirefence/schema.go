package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// schemaWatch waits until the database can be queried and has the schema: the proxy isn't
// ready before. If the proxy ended instead, its supervisor would restart it after growing
// pauses, and it would still be away when the database is back.
type schemaWatch struct {
	cfg proxySettings
	log *slog.Logger

	mu      sync.Mutex
	why     error // why the proxy isn't ready; nil once it is
	useless error // why it never will be
}

// schemaPause is the time between two looks.
const schemaPause = 2 * time.Second

// begin looks for the schema. If it may still come, begin looks again and again in the
// background until ctx ends or end is called. It calls useless when the schema can't come any
// more.
func (w *schemaWatch) begin(ctx context.Context, useless func()) (end func(), err error) {
	err = w.look(ctx)
	if err == nil {
		return func() {}, nil
	}
	if !mayComeYet(err) || ctx.Err() != nil {
		return nil, err
	}
	w.set(err, nil)
	w.log.Error("not ready: the database can't be queried or lacks the schema, retrying", "every", schemaPause, "error", err)
	return inBackground(ctx, func(ctx context.Context) {
		if err := w.wait(ctx); err != nil && ctx.Err() == nil {
			w.set(err, err)
			useless()
		}
	}), nil
}

func (w *schemaWatch) set(why, useless error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why, w.useless = why, useless
}

// failed returns the fault of the schema that ends the proxy, if any.
func (w *schemaWatch) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.useless
}

// ready returns why the proxy isn't ready, or nil.
func (w *schemaWatch) ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// wait looks until the schema is there, or can't come any more.
func (w *schemaWatch) wait(ctx context.Context) error {
	ticks := time.NewTicker(schemaPause)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := w.look(ctx)
		if err != nil && !mayComeYet(err) {
			return err
		}
		before := w.ready()
		w.set(err, nil)
		switch {
		case err == nil:
			w.log.Info("ready: the database can be queried and has the schema")
			return nil
		case err.Error() != before.Error():
			w.log.Error("still not ready", "error", err)
		}
	}
}

// look refuses a database that is too far behind or ahead of this binary.
func (w *schemaWatch) look(ctx context.Context) error {
	if w.cfg.Mode == proxy.Off {
		return nil
	}
	if w.cfg.DatabaseURL == "" {
		w.log.Warn("the schema is not verified, since WIREFENCE_DATABASE_URL is not set")
		return nil
	}
	conn, err := connect(ctx, w.cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	differs, err := migrations.Usable(ctx, conn)
	if differs != nil && err == nil {
		w.log.Warn("the schema and this binary are one version apart, as during a rollout: run `wirefence migrate`, or upgrade the binary, to end it",
			"schema", differs.Have, "binary", differs.Need)
	}
	return err
}

// mayComeYet reports whether waiting can help: the server is away or about to start, or the
// database is not migrated yet, or a rollout that is being taken back migrated it too far.
func mayComeYet(err error) bool {
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
