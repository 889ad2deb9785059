package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// text is a statement of a given size, or one whose answer has it, that a fenced session sends.
type text struct {
	name  string
	bytes int // of the largest that is sent
	of    func(size int) string
}

// In a fenced session the message of a statement has 16 MiB at most, with the checks that a
// statement behind a COMMIT needs.
var texts = []text{
	{"2.4 MB of `commit;select 1;`", 150_000 * 16, func(size int) string { return strings.Repeat("commit;select 1;", size/16) }},
	{"one literal of 16 MiB", 16<<20 - 100, func(size int) string { return "SELECT length('" + strings.Repeat("x", size-20) + "')" }},
	{"an answer of 16 MiB", 16 << 20, func(size int) string { return fmt.Sprintf("SELECT repeat('x', %d)", size) }},
}

// neighbours are sessions of the same proxy that send small statements meanwhile.
const neighbours = 8

// measureTexts tells whether time and memory grow with the size of a text alone, by one that is
// an eighth as large, and how long it makes a neighbour wait.
func (b *book) measureTexts(ctx context.Context, w *world) (failed error) {
	const times = 8
	for _, t := range texts {
		log.Printf("texts: %s", t.name)
		small, err := w.sendText(ctx, t.of(t.bytes/times))
		if err == nil {
			var s sample
			if s, err = w.sendText(ctx, t.of(t.bytes)); err == nil {
				s[growingTime], s[growingBytes] = s[seconds]/small[seconds]/times, s[grown]/small[grown]/times
				b.add(row{work: "texts", way: t.name}, s)
			}
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return failed
}

// sendText sends a text through a proxy of its own: memory that was used once is not
// given back at once.
func (w *world) sendText(ctx context.Context, sql string) (sample, error) {
	p, err := w.start(ctx, wirefence, rivals[wirefence], w.postgres.Addr(), nil)
	if err != nil {
		return nil, err
	}
	defer p.close()
	around, err := open(ctx, url(p.port, "postgres", "sslmode=disable"), neighbours)
	if err != nil {
		return nil, err
	}
	cfg, err := pgconn.ParseConfig(url(p.port, "postgres", "sslmode=disable"))
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["options"] = "-c wirefence.token=" + fence
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	before, err := residentKiB(p.pid)
	if err != nil {
		return nil, err
	}
	var all errgroup.Group
	var over atomic.Bool
	waits, highest := make([]time.Duration, neighbours), before
	for i, neighbour := range around {
		all.Go(func() error {
			defer neighbour.Close(ctx)
			for !over.Load() {
				began := time.Now()
				if err := neighbour.Exec(ctx, "SELECT 1").Close(); err != nil {
					return err
				}
				waits[i] = max(waits[i], time.Since(began))
				time.Sleep(5 * time.Millisecond)
			}
			return nil
		})
	}
	all.Go(func() error {
		for !over.Load() {
			now, err := residentKiB(p.pid)
			if err != nil {
				return err
			}
			highest = max(highest, now)
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	})
	began := time.Now()
	_, err = conn.Exec(ctx, sql).ReadAll()
	took := time.Since(began)
	over.Store(true)
	if failed := all.Wait(); err == nil {
		err = failed
	}
	return sample{seconds: took.Seconds(), grown: highest - before, neighbour: latency(waits)[worst]}, err
}
