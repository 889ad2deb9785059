package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/servers"
)

// sessionCost is what a session costs that does nothing, and what it costs to
// begin one.
type sessionCost struct {
	idleBytes int64 // 0 where there is no process between
	connect   []time.Duration
}

const (
	// idleSessions are behind a pooler, since PostgreSQL would take a process for each. Of
	// file descriptors a process may have 20,000 here.
	idleSessions = 9500
	connections  = 200 // of which the latency is taken, for each target
	settling     = 3 * time.Second
)

// sessionKinds are the sessions that are looked at.
var sessionKinds = []struct {
	name   string
	target target
	tls    bool // on both sides
}{
	{string(postgres), postgres, false}, {string(pgbouncer), pgbouncer, false}, {string(wirefence), wirefence, false},
	{"PostgreSQL, TLS", postgres, true}, {bouncerBothTLS, encryptedBouncer, true}, {proxyBothTLS, encryptedProxy, true},
}

func (w *world) measureSessions(ctx context.Context) (map[string]*sessionCost, error) {
	costs := map[string]*sessionCost{}
	for _, k := range sessionKinds {
		costs[k.name] = &sessionCost{}
		if k.target == postgres {
			continue
		}
		bytes, err := w.idleMemory(ctx, k.target, k.tls)
		if err != nil {
			return nil, fmt.Errorf("idle sessions of %s: %w", k.name, err)
		}
		costs[k.name].idleBytes = bytes
	}
	for range connections {
		for _, k := range sessionKinds {
			began := time.Now()
			conn, err := pgconn.Connect(ctx, urlBy(w.ports[k.target], k.tls))
			if err != nil {
				return nil, err
			}
			costs[k.name].connect = append(costs[k.name].connect, time.Since(began))
			if err := conn.Close(ctx); err != nil {
				return nil, err
			}
		}
	}
	for _, cost := range costs {
		slices.Sort(cost.connect)
	}
	return costs, nil
}

// idleMemory opens sessions to a process that has served nobody yet, and returns by how
// many bytes each has made it grow.
func (w *world) idleMemory(ctx context.Context, t target, tls bool) (int64, error) {
	pool, err := servers.StartPgBouncer(ctx, servers.PgBouncerConfig{Upstream: w.postgres.Addr(), Clients: idleSessions + 10, PoolSize: 20,
		PoolMode: "transaction", CertFile: w.server.CertFile, KeyFile: w.server.KeyFile})
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	port, pid, stop, err := w.front(ctx, t, pool.Addr())
	if err != nil {
		return 0, err
	}
	defer stop()
	before, err := residentBytes(pid)
	if err != nil {
		return 0, err
	}
	conns, err := open(ctx, urlBy(port, tls), idleSessions)
	defer func() {
		for _, conn := range conns {
			_ = conn.Conn().Close()
		}
	}()
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(settling):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := residentBytes(pid)
	return (after - before) / idleSessions, err
}

// front starts what stands between clients and an upstream.
func (w *world) front(ctx context.Context, t target, upstream string) (port, pid int, stop func(), err error) {
	if t == pgbouncer || t == encryptedBouncer {
		cfg := servers.PgBouncerConfig{Upstream: upstream, Clients: idleSessions + 10}
		if t == encryptedBouncer {
			cfg.CertFile, cfg.KeyFile, cfg.CAFile = w.between.CertFile, w.between.KeyFile, w.authority
		}
		b, err := servers.StartPgBouncer(ctx, cfg)
		if err != nil {
			return 0, 0, nil, err
		}
		return b.Port, b.Pid(), b.Close, nil
	}
	how := w.launches[t]
	how.settings = append(slices.Clone(how.settings), fmt.Sprintf("WIREFENCE_MAX_CONNECTIONS=%d", idleSessions+10),
		"WIREFENCE_UPSTREAM=postgres://"+upstream+"/?pooling=transaction&sslmode=disable")
	if t == encryptedProxy {
		how.settings = append(how.settings, "WIREFENCE_UPSTREAM=postgres://"+upstream+"/?pooling=transaction&sslmode=verify-full&sslrootcert="+w.authority)
	}
	p, err := w.startProxy(ctx, upstream, how)
	if err != nil {
		return 0, 0, nil, err
	}
	return p.Port, p.Pid(), p.Close, nil
}

// open opens n connections, a few at a time.
func open(ctx context.Context, url string, n int) ([]*pgconn.PgConn, error) {
	var (
		conns  []*pgconn.PgConn
		failed error
		mu     sync.Mutex
		wg     sync.WaitGroup
	)
	const atOnce = 8
	for i := range atOnce {
		wg.Go(func() {
			for k := i; k < n; k += atOnce {
				conn, err := pgconn.Connect(ctx, url)
				mu.Lock()
				if err != nil {
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				conns = append(conns, conn)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return conns, failed
}
