package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// An isolated statement comes after a pause, over which a hold lasts where the proxy asks
// whether it is wanted. pgbench -R doesn't do: its pauses are random.
const (
	isolatedPause   = 100 * time.Millisecond
	isolatedClients = 8
)

// solo is a session that sends one statement over and over.
type solo struct {
	conn     *pgconn.PgConn
	prepared bool
	sql      string
}

// isolatedStatements are what is sent.
var isolatedStatements = []struct{ name, sql string }{
	{"insert", "INSERT INTO entries (worker, amount) VALUES (17, 42)"},
	{"select", "SELECT abalance FROM pgbench_accounts WHERE aid = 17"},
}

var isolatedWays = []way{
	{name: direct, target: postgres}, {name: viaProxy, target: wirefence},
	{name: byComment, target: wirefence}, {name: byVariable, target: wirefence, fence: fenceText},
}

func isolatedGroup(statement, protocol string) group {
	return group{workload{name: "isolated " + statement, ways: isolatedWays}, protocol, isolatedClients}
}

// openSolo opens a session and sends its statement once.
func openSolo(ctx context.Context, port int, by way, sql, protocol string) (*solo, error) {
	cfg, err := pgconn.ParseConfig(url(port))
	if err != nil {
		return nil, err
	}
	if by.fence != "" {
		cfg.RuntimeParams["options"] = "-c wirefence.token=" + by.fence
	}
	if by.name == byComment {
		sql += " /*wirefence.token='" + fenceText + "'*/"
	}
	s := &solo{prepared: protocol == "prepared", sql: sql}
	if s.conn, err = pgconn.ConnectConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if s.prepared {
		_, err = s.conn.Prepare(ctx, "statement", sql, nil)
	}
	if err == nil {
		err = s.send(ctx)
	}
	if err != nil {
		_ = s.conn.Close(ctx)
	}
	return s, err
}

func (s *solo) send(ctx context.Context) error {
	if s.prepared {
		return s.conn.ExecPrepared(ctx, "statement", nil, nil, nil).Read().Err
	}
	return s.conn.Exec(ctx, s.sql).Close()
}

// measureIsolated measures the latency of isolated statements, and counts their round
// trips between proxy and server.
func (b *book) measureIsolated(ctx context.Context, w *world) error {
	for round := range b.flags.rounds {
		for _, statement := range isolatedStatements {
			for _, protocol := range protocols {
				g := isolatedGroup(statement.name, protocol)
				log.Printf("round %d of %d: %s", round+1, b.flags.rounds, g)
				times, err := w.isolated(ctx, statement.sql, protocol, b.flags.seconds)
				if err != nil {
					return fmt.Errorf("%s: %w", g, err)
				}
				for i, by := range isolatedWays {
					slices.Sort(times[i])
					b.results.add(g, by, sample{p50: percentile(times[i], 50), p95: percentile(times[i], 95), p99: percentile(times[i], 99), transactions: len(times[i])})
				}
			}
		}
	}
	var err error
	b.trips, err = w.countTrips(ctx)
	return err
}

// isolated returns the latencies of each way. A client has a session of each way and
// sends by one after the other, so all ways meet the same load.
func (w *world) isolated(ctx context.Context, sql, protocol string, seconds int) ([][]time.Duration, error) {
	var (
		all   = make([][]time.Duration, len(isolatedWays))
		mu    sync.Mutex
		tasks tasks
	)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range isolatedClients {
		var sessions []*solo
		for _, by := range isolatedWays {
			s, err := openSolo(ctx, w.ports[by.target], by, sql, protocol)
			if err != nil {
				cancel()
				return nil, tasks.wait(err)
			}
			defer s.conn.Close(context.WithoutCancel(ctx))
			sessions = append(sessions, s)
		}
		tasks.run(func() error {
			for range seconds * int(time.Second/isolatedPause) {
				for i, s := range sessions {
					time.Sleep(isolatedPause / time.Duration(len(sessions)))
					began := time.Now()
					if err := s.send(ctx); err != nil {
						return err
					}
					took := time.Since(began)
					mu.Lock()
					all[i] = append(all[i], took)
					mu.Unlock()
				}
			}
			return nil
		})
	}
	return all, tasks.wait(nil)
}

// trips is how many round trips there were between proxy and server for a number of
// statements.
type trips struct{ statements, trips int }

func (t trips) each() float64 { return float64(t.trips) / float64(t.statements) }

// countTrips sends isolated statements through a proxy that reaches the server by a
// relay, which counts.
func (w *world) countTrips(ctx context.Context) (map[string]trips, error) {
	const each = 5
	counter, err := startCounter(w.postgres.Addr())
	if err != nil {
		return nil, err
	}
	defer counter.close()
	p, err := w.startProxy(ctx, counter.listener.Addr().String(), launch{binary: w.binary})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	all := map[string]trips{}
	for _, by := range isolatedWays {
		if by.target == postgres {
			continue
		}
		for _, statement := range isolatedStatements {
			for _, protocol := range protocols {
				s, err := openSolo(ctx, p.Port, by, statement.sql, protocol)
				if err != nil {
					return nil, err
				}
				time.Sleep(isolatedPause)
				before := counter.trips.Load()
				for range each {
					if err = s.send(ctx); err != nil {
						break
					}
					time.Sleep(isolatedPause)
				}
				counted := int(counter.trips.Load() - before)
				if err := errors.Join(err, s.conn.Close(ctx)); err != nil {
					return nil, err
				}
				all[by.name] = trips{all[by.name].statements + each, all[by.name].trips + counted}
			}
		}
	}
	return all, nil
}

// counter is a relay that counts round trips: how often a request follows an answer on
// the same connection.
type counter struct {
	listener net.Listener
	target   string
	trips    atomic.Int64
	running  sync.WaitGroup
}

func startCounter(target string) (*counter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &counter{listener: listener, target: target}
	c.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			c.running.Go(func() { c.relay(client) })
		}
	})
	return c, nil
}

// relay owns the connection. It ends with either end's.
func (c *counter) relay(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.target)
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

// isolatedTable shows latencies, and round trips behind the proxy.
func (b *book) isolatedTable(p *page) {
	head := false
	for _, statement := range isolatedStatements {
		for _, protocol := range protocols {
			w := isolatedGroup(statement.name, protocol).workload
			for _, res := range b.inOrder(w, protocol) {
				if !head {
					p.section("## Isolated statements",
						fmt.Sprintf("%d clients with a session of each way each; a session sends a statement and pauses %v. Where the proxy asks whether a takeover wants its holds, as here, they last over that. A round trip is a request that follows an answer on the connection from the proxy to the server, counted by a relay in between.", isolatedClients, isolatedPause),
						"| statement | protocol | way | p50 ms | of proxy, unfenced | p95 ms | p99 ms | round trips for one statement |",
						"|---|---|---|---:|---:|---:|---:|---:|")
					head = true
				}
				compared, counted := "", ""
				if base := b.results.of(w.name, protocol, isolatedClients, viaProxy); base != nil && base != res {
					compared = ratio(res, base, nanoseconds(p50)).String()
				}
				if t, ok := b.trips[res.way.name]; ok {
					counted = fmt.Sprintf("%.2f", t.each())
				}
				p.line("| %s | %s | %s | %s | %s | %s | %s | %s |", statement.name, protocol, res.way.name,
					ms(res.median(p50)), compared,
					ms(res.median(p95)),
					ms(res.median(p99)), counted)
			}
		}
	}
}
