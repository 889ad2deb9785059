package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/lockclient"
	pgleases "github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// LeaseSettings are those of every command that takes leases. The database that
// seals, and keeps leases where no other store does, is each command's own.
type LeaseSettings struct {
	RedisURL string        `env:"WIREFENCE_REDIS_URL" help:"the lease store, as in redis://redis.internal:6379/0; without it, leases are in PostgreSQL"`
	TTL      time.Duration `env:"WIREFENCE_TTL" envDefault:"15s" help:"how long the store keeps a lease that isn't renewed"`
	MaxHold  time.Duration `env:"WIREFENCE_MAX_HOLD" envDefault:"24h" help:"cap on the hold, renewals included"`
	Holder   string        `env:"WIREFENCE_HOLDER" help:"readable name of the holder (default the host's name and the process id)"`
}

// leases are a lease store and the database that seals its grants.
type leases struct {
	store   lockclient.Store
	sealer  lockclient.Sealer // nil where the store seals by itself, or nobody does
	closers []func()          // the last one first
}

// openLeases makes ready what the settings name. It does not connect yet.
func openLeases(ctx context.Context, cfg LeaseSettings, databaseURL string) (*leases, error) {
	if cfg.RedisURL == "" && databaseURL == "" {
		return nil, errors.New("neither WIREFENCE_DATABASE_URL nor WIREFENCE_REDIS_URL is set: leases are in PostgreSQL, or in Redis if that is named")
	}
	l := &leases{}
	var pool *pgxpool.Pool
	if databaseURL != "" {
		var err error
		if pool, err = pgxpool.New(ctx, databaseURL); err != nil {
			return nil, fmt.Errorf("WIREFENCE_DATABASE_URL: %w", err)
		}
		l.closers = append(l.closers, pool.Close)
		l.sealer = lockclient.PostgresSealer{Querier: pool}
	}
	if cfg.RedisURL == "" {
		store := pgleases.New(pool)
		l.store, l.sealer = store, nil
		l.closers = append(l.closers, func() { _ = store.Close() })
		return l, nil
	}
	store, err := redis.Open(cfg.RedisURL)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("WIREFENCE_REDIS_URL: %w", err)
	}
	l.store = store
	l.closers = append(l.closers, func() { _ = store.Close() })
	return l, nil
}

func (l *leases) close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
}

// client makes a client that takes leases in the store.
func (l *leases) client(cfg LeaseSettings, log *slog.Logger) (*lockclient.Client, error) {
	return lockclient.New(l.store, lockclient.Options{
		Sealer: l.sealer, TTL: cfg.TTL, MaxHold: cfg.MaxHold, Holder: cfg.Holder, Logger: log,
	})
}
