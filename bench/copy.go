package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// copyBytes is how much one COPY carries.
const copyBytes = 1 << 30

// copyWays are the ways of a COPY, in the order of the table's rows.
var copyWays = []struct {
	name   string
	target target
	fence  string
	tls    bool // on the client's side
}{
	{direct, postgres, "", false}, {viaBouncer, pgbouncer, "", false}, {viaProxy, wirefence, "", false}, {byVariable, wirefence, fenceText, false},
	{"direct, TLS", postgres, "", true}, {bouncerBothTLS, encryptedBouncer, "", true}, {proxyBothTLS, encryptedProxy, "", true},
}

const (
	bouncerBothTLS = "PgBouncer, TLS on both sides"
	proxyBothTLS   = "proxy, TLS on both sides"
)

// copyCost is what the rounds of one way of COPY took, and the most memory that
// the process between grew by.
type copyCost struct {
	in, out []time.Duration
	cpuIn   []time.Duration
	cpuOut  []time.Duration
	memory  int64
}

// measureCopies copies a gigabyte in and out each way, in turn.
func (w *world) measureCopies(ctx context.Context, rounds int) (map[string]*copyCost, error) {
	costs := map[string]*copyCost{}
	for range rounds {
		for _, way := range copyWays {
			log.Printf("copy: %s", way.name)
			if err := w.exec(ctx, w.postgres.URL(database), "TRUNCATE copied"); err != nil {
				return nil, err
			}
			if costs[way.name] == nil {
				costs[way.name] = &copyCost{}
			}
			if err := w.measureCopy(ctx, way.target, way.fence, way.tls, costs[way.name]); err != nil {
				return nil, fmt.Errorf("copy, %s: %w", way.name, err)
			}
		}
	}
	return costs, w.exec(ctx, w.postgres.URL(database), "TRUNCATE copied")
}

func (w *world) measureCopy(ctx context.Context, t target, fence string, tls bool, cost *copyCost) error {
	cfg, err := pgconn.ParseConfig(urlBy(w.ports[t], tls))
	if err != nil {
		return err
	}
	if fence != "" {
		cfg.RuntimeParams["options"] = "-c wirefence.token=" + fence
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	before := int64(0)
	if pid := w.pids[t]; pid != 0 {
		if before, err = residentBytes(pid); err != nil {
			return err
		}
	}
	watched := make(chan int64, 1)
	over := make(chan struct{})
	go func() { watched <- w.highest(t, over) }()
	took, cpu, err := w.timed(t, func() error {
		_, err := conn.CopyFrom(ctx, &rows{left: copyBytes}, "COPY copied FROM STDIN")
		return err
	})
	if err == nil {
		cost.in, cost.cpuIn = append(cost.in, took), append(cost.cpuIn, cpu)
		took, cpu, err = w.timed(t, func() error {
			_, err := conn.CopyTo(ctx, io.Discard, "COPY copied TO STDOUT")
			return err
		})
		cost.out, cost.cpuOut = append(cost.out, took), append(cost.cpuOut, cpu)
	}
	close(over)
	cost.memory = max(cost.memory, <-watched-before)
	return err
}

// timed times an action, and the CPU of the process between.
func (w *world) timed(t target, do func() error) (took, cpu time.Duration, err error) {
	before, err := cpuOf(w.pids[t])
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	after, err := cpuOf(w.pids[t])
	return took, after - before, err
}

// highest watches the memory of the process between until over is closed.
func (w *world) highest(t target, over <-chan struct{}) (highest int64) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if pid := w.pids[t]; pid != 0 {
			if now, err := residentBytes(pid); err == nil {
				highest = max(highest, now)
			}
		}
		select {
		case <-over:
			return highest
		case <-ticker.C:
		}
	}
}

// rows is text for COPY: lines of 1 KiB.
type rows struct {
	left int
	rest []byte
}

var row = append(bytes.Repeat([]byte("0123456789abcdef"), 64)[:1023], '\n')

func (r *rows) Read(b []byte) (n int, err error) {
	for n < len(b) {
		if len(r.rest) == 0 {
			if r.left <= 0 {
				break
			}
			r.rest, r.left = row, r.left-len(row)
		}
		moved := copy(b[n:], r.rest)
		r.rest, n = r.rest[moved:], n+moved
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}
