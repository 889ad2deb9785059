package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/servers"
)

// loginCost is what running sessions are left with while others log in and out.
type loginCost struct {
	calm, flooded []sample
	rate          []float64 // logins per second in the flood
}

// loginRate is how many logins a second are tried in a flood, and loginsAtOnce how many
// of them at once.
const (
	loginRate    = 1000
	loginsAtOnce = 32
)

// Those that log in use TLS. In front of PostgreSQL itself, which starts a process for
// each, a thousand a second don't get through, so there is a pooler between.
var loginWays = []string{viaBouncer, viaProxy}

// measureLogins measures sessions that run selects, 8 clients, with and without a flood
// of logins.
func (w *world) measureLogins(ctx context.Context, rounds, seconds int) (map[string]*loginCost, error) {
	pool, err := servers.StartPgBouncer(ctx, servers.PgBouncerConfig{Upstream: w.postgres.Addr(), Clients: maxClients, PoolSize: 20, PoolMode: "transaction"})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	front, err := servers.StartPgBouncer(ctx, servers.PgBouncerConfig{Upstream: pool.Addr(), Clients: maxClients, CertFile: w.between.CertFile, KeyFile: w.between.KeyFile})
	if err != nil {
		return nil, err
	}
	defer front.Close()
	p, err := w.startProxy(ctx, pool.Addr(), launch{w.binary, []string{
		"WIREFENCE_UPSTREAM=postgres://" + pool.Addr() + "/?sslmode=disable&pooling=transaction",
		"WIREFENCE_TLS_CERT_FILE=" + w.between.CertFile, "WIREFENCE_TLS_KEY_FILE=" + w.between.KeyFile,
	}})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	ports := map[string]int{viaBouncer: front.Port, viaProxy: p.Port}
	costs := map[string]*loginCost{viaBouncer: {}, viaProxy: {}}
	for range rounds {
		for _, way := range loginWays {
			log.Printf("logins: %s", way)
			if err := costs[way].measure(ctx, w, ports[way], seconds); err != nil {
				return nil, fmt.Errorf("logins, %s: %w", way, err)
			}
		}
	}
	return costs, nil
}

func (c *loginCost) measure(ctx context.Context, w *world, port, seconds int) error {
	running := load{host: "127.0.0.1", port: port, database: database, script: filepath.Join(w.dir, "scripts", "select.sql"),
		protocol: "simple", clients: 8, seconds: seconds}
	calm, err := running.run(ctx)
	if err != nil {
		return err
	}
	f := startFlood(ctx, urlBy(port, true))
	flooded, err := running.run(ctx)
	rate, failed := f.stop()
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	c.calm, c.flooded, c.rate = append(c.calm, calm), append(c.flooded, flooded), append(c.rate, rate)
	return nil
}

// flood is clients that log in and out.
type flood struct {
	began  time.Time
	cancel context.CancelFunc
	wg     sync.WaitGroup
	logins atomic.Int64
	mu     sync.Mutex
	failed error
}

func startFlood(ctx context.Context, url string) *flood {
	ctx, cancel := context.WithCancel(ctx)
	f := &flood{began: time.Now(), cancel: cancel}
	for range loginsAtOnce {
		f.wg.Go(func() {
			ticks := time.NewTicker(time.Second * loginsAtOnce / loginRate)
			defer ticks.Stop()
			for ctx.Err() == nil {
				select {
				case <-ticks.C:
				case <-ctx.Done():
					return
				}
				if err := logIn(ctx, url); err != nil && ctx.Err() == nil {
					f.mu.Lock()
					f.failed = err
					f.mu.Unlock()
					return
				}
				f.logins.Add(1)
			}
		})
	}
	return f
}

func logIn(ctx context.Context, url string) error {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// stop ends the flood and returns how many logins a second there were.
func (f *flood) stop() (rate float64, err error) {
	rate = float64(f.logins.Load()) / time.Since(f.began).Seconds()
	f.cancel()
	f.wg.Wait()
	return rate, f.failed
}
