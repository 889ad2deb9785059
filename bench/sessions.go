package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// sessionCost is what a session costs that does nothing, and what it costs to
// begin one.
type sessionCost struct {
	idleBytes int64 // 0 where there is no process between
	connect   []time.Duration
}

const (
	idleSessions = 2000
	connections  = 200 // of which the latency is taken, for each target
	settling     = 3 * time.Second
)

// sessionKinds are the sessions that are looked at.
var sessionKinds = []struct {
	name   string
	target target
	tls    bool // on the client's side
}{
	{string(postgres), postgres, false}, {string(pgbouncer), pgbouncer, false}, {string(wirefence), wirefence, false},
	{"PostgreSQL, TLS", postgres, true}, {bouncerBothTLS, encryptedBouncer, true}, {proxyBothTLS, encryptedProxy, true},
}

// measureSessions must run on servers that have served nobody yet: memory that
// was used once is not given back at once.
func (w *world) measureSessions(ctx context.Context) (map[string]*sessionCost, error) {
	costs := map[string]*sessionCost{}
	for _, k := range sessionKinds {
		costs[k.name] = &sessionCost{}
		if w.pids[k.target] == 0 {
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

// idleMemory opens sessions and returns by how many bytes each has made the
// process grow.
func (w *world) idleMemory(ctx context.Context, t target, tls bool) (int64, error) {
	before, err := residentBytes(w.pids[t])
	if err != nil {
		return 0, err
	}
	conns, err := open(ctx, urlBy(w.ports[t], tls), idleSessions)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close(ctx)
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
	after, err := residentBytes(w.pids[t])
	return (after - before) / idleSessions, err
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
