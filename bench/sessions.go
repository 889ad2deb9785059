package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/wirefence/wirefence/internal/servers"
)

const (
	// idleSessions are behind a pooler, since PostgreSQL would take a process for each. Of
	// file descriptors a process may have 20,000 here.
	idleSessions = 9500
	settling     = 3 * time.Second
)

// measureSessions measures the memory of idle sessions, and how many connections of its
// own to PostgreSQL a proxy has that does nothing.
func (b *book) measureSessions(ctx context.Context, w *world) error {
	if err := w.level(ctx); err != nil {
		return err
	}
	own, err := w.ownConnections(ctx)
	if err != nil {
		return err
	}
	b.add(row{work: "sessions", way: "proxy, no session"}, sample{connections: own})
	for _, t := range []target{wirefence, wirefenceTLS} {
		kib, err := w.idleMemory(ctx, t)
		if err != nil {
			return fmt.Errorf("idle sessions, %s: %w", t, err)
		}
		b.add(row{work: "sessions", way: string(t)}, sample{idleKiB: kib})
	}
	return nil
}

func (w *world) ownConnections(ctx context.Context) (float64, error) {
	conn, err := pgx.Connect(ctx, w.postgres.URL(database))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	var before, after float64
	const count = "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'"
	if err := conn.QueryRow(ctx, count).Scan(&before); err != nil {
		return 0, err
	}
	p, err := w.start(ctx, wirefence, rivals[wirefence], w.postgres.Addr(), nil)
	if err != nil {
		return 0, err
	}
	defer p.close()
	time.Sleep(settling)
	err = conn.QueryRow(ctx, count).Scan(&after)
	return after - before, err
}

// idleMemory opens sessions to a process that has served nobody yet, and returns by how
// many KiB each has made it grow.
func (w *world) idleMemory(ctx context.Context, t target) (float64, error) {
	pool, err := servers.StartPgBouncer(ctx, servers.PgBouncerConfig{Upstream: w.postgres.Addr(), Clients: idleSessions + 10, PoolSize: 20,
		PoolMode: "transaction", CertFile: w.server.CertFile, KeyFile: w.server.KeyFile})
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	more, parameters := map[string]string{"WIREFENCE_MAX_CONNECTIONS": fmt.Sprint(idleSessions + 10)}, "sslmode=disable"
	more["WIREFENCE_UPSTREAM"] = "postgres://" + pool.Addr() + "/?pooling=transaction&sslmode=disable"
	if rivals[t].tls {
		more["WIREFENCE_UPSTREAM"] = "postgres://" + pool.Addr() + "/?pooling=transaction&sslmode=verify-full&sslrootcert=" + w.authority
		parameters = "sslmode=require"
	}
	p, err := w.start(ctx, t, rivals[t], pool.Addr(), more)
	if err != nil {
		return 0, err
	}
	defer p.close()
	before, err := residentKiB(p.pid)
	if err != nil {
		return 0, err
	}
	conns, err := open(ctx, url(p.port, "postgres", parameters), idleSessions)
	defer func() {
		for _, conn := range conns {
			_ = conn.Conn().Close()
		}
	}()
	if err != nil {
		return 0, err
	}
	time.Sleep(settling)
	after, err := residentKiB(p.pid)
	return (after - before) / idleSessions, err
}

// open opens n connections, a few at a time.
func open(ctx context.Context, url string, n int) (conns []*pgconn.PgConn, err error) {
	var mu sync.Mutex
	var opening errgroup.Group
	opening.SetLimit(8)
	for range n {
		opening.Go(func() error {
			conn, err := pgconn.Connect(ctx, url)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, conn)
			return nil
		})
	}
	err = opening.Wait()
	return conns, err
}

// measureTrips counts the round trips of isolated statements between proxy and server, by
// a relay there.
func (b *book) measureTrips(ctx context.Context, w *world) error {
	counter, err := startCounter(w.postgres.Addr())
	if err != nil {
		return err
	}
	defer counter.close()
	p, err := w.start(ctx, wirefence, rivals[wirefence], counter.listener.Addr().String(), nil)
	if err != nil {
		return err
	}
	defer p.close()
	for _, protocol := range bothProtocols {
		for _, by := range []way{unfenced, commented, withVariable} {
			each, err := counter.of(ctx, p.port, by, protocol)
			if err != nil {
				return err
			}
			b.add(row{"trips", protocol, 1, by.name}, sample{trips: each})
		}
	}
	return nil
}

// of sends statements with pauses between, and returns how many round trips each took.
func (c *counter) of(ctx context.Context, port int, by way, protocol string) (each float64, err error) {
	const statements = 10
	cfg, err := pgconn.ParseConfig(url(port, "postgres", "sslmode=disable"))
	if err != nil {
		return 0, err
	}
	if by.fence != "" {
		cfg.RuntimeParams["options"] = "-c wirefence.token=" + by.fence
	}
	sql := "INSERT INTO entries (worker, amount) VALUES (17, 42)"
	if by.comment {
		sql += " /*wirefence.token='" + fence + "'*/"
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	send := func() error { return conn.Exec(ctx, sql).Close() }
	if protocol == "prepared" {
		if _, err := conn.Prepare(ctx, "insert", sql, nil); err != nil {
			return 0, err
		}
		send = func() error { return conn.ExecPrepared(ctx, "insert", nil, nil, nil).Read().Err }
	}
	if err := send(); err != nil {
		return 0, err
	}
	before := c.trips.Load()
	for range statements {
		time.Sleep(100 * time.Millisecond)
		if err := send(); err != nil {
			return 0, err
		}
	}
	return float64(c.trips.Load()-before) / statements, nil
}

// counter is a relay that counts round trips: how often a request follows an answer on
// the same connection.
type counter struct {
	listener net.Listener
	trips    atomic.Int64
	running  sync.WaitGroup
}

func startCounter(target string) (*counter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &counter{listener: listener}
	c.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			c.running.Go(func() { c.relay(client, target) })
		}
	})
	return c, nil
}

// relay owns the connection. It ends with either end's.
func (c *counter) relay(client net.Conn, target string) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	var answered atomic.Bool
	var answers sync.WaitGroup
	answers.Go(func() {
		defer client.Close()
		_, _ = io.Copy(client, watched{server, func() { answered.Store(true) }})
	})
	_, _ = io.Copy(server, watched{client, func() {
		if answered.Swap(false) {
			c.trips.Add(1)
		}
	}})
	_ = server.Close()
	answers.Wait()
}

// close ends the relay, whose connections must have ended.
func (c *counter) close() {
	_ = c.listener.Close()
	c.running.Wait()
}

// watched tells of everything that is read.
type watched struct {
	io.Reader
	came func()
}

func (w watched) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if n > 0 {
		w.came()
	}
	return n, err
}
