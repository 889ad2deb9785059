package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
)

// streamCost is what it costs a proxy that it is watched.
type streamCost struct {
	alone, watched []sample
	events         []float64 // a second and stream
	streamBytes    int64     // what a stream makes the process grow by
}

const (
	openStreams = 200
	// takeoverPause is between two takeovers, each of which every stream tells.
	takeoverPause = 100 * time.Millisecond
)

// measureStreams measures sessions that run selects, 8 clients, while a resource is taken
// over again and again, without streams of events and with many.
func (w *world) measureStreams(ctx context.Context, rounds, seconds int) (*streamCost, error) {
	port, err := servers.FreePort()
	if err != nil {
		return nil, err
	}
	p, err := w.startProxy(ctx, w.postgres.Addr(), launch{w.binary, []string{
		w.issuer(), fmt.Sprintf("WIREFENCE_ADMIN_LISTEN=127.0.0.1:%d", port),
	}})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	events := fmt.Sprintf("http://127.0.0.1:%d/v1/events", port)
	cost := &streamCost{}
	for range rounds {
		log.Print("streams")
		alone, err := w.underTakeovers(ctx, p, seconds)
		if err != nil {
			return nil, err
		}
		before, err := residentBytes(p.Pid())
		if err != nil {
			return nil, err
		}
		s, err := openAll(ctx, events)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		watched, err := w.underTakeovers(ctx, p, seconds)
		after, failed := residentBytes(p.Pid())
		rate := float64(s.lines.Load()) / time.Since(began).Seconds() / openStreams
		s.close()
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
		cost.alone, cost.watched = append(cost.alone, alone), append(cost.watched, watched)
		cost.events = append(cost.events, rate)
		cost.streamBytes = max(cost.streamBytes, (after-before)/openStreams)
	}
	return cost, nil
}

// underTakeovers runs the load of selects through a proxy while a resource is taken over.
func (w *world) underTakeovers(ctx context.Context, p *servers.Wirefence, seconds int) (sample, error) {
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- w.takeOver(ctx) }()
	before, err := cpuTime(p.Pid())
	if err != nil {
		cancel()
		return sample{}, errors.Join(err, <-failed)
	}
	s, err := load{host: "127.0.0.1", port: p.Port, database: database, script: filepath.Join(w.dir, "scripts", "select.sql"),
		protocol: "prepared", clients: 8, seconds: seconds}.run(ctx)
	after, errCPU := cpuTime(p.Pid())
	cancel()
	if err := errors.Join(err, errCPU, <-failed); err != nil {
		return s, err
	}
	s.cpu = (after - before) / time.Duration(seconds)
	return s, nil
}

// takeOver grants a resource to another again and again, until ctx ends.
func (w *world) takeOver(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.postgres.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	ticks := time.NewTicker(takeoverPause)
	defer ticks.Stop()
	for {
		if _, err := conn.Exec(ctx, `SELECT wirefence.seal('watched', l.last_token + 1, 'holder-' || l.last_token + 1)
			FROM (SELECT coalesce(max(last_token), 0) AS last_token FROM wirefence.resource_locks WHERE resource_id = 'watched') AS l`); err != nil && ctx.Err() == nil {
			return fmt.Errorf("take over: %w", err)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// streams are open streams of events, all read.
type streams struct {
	lines  atomic.Int64 // of events
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func openAll(ctx context.Context, url string) (*streams, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &streams{cancel: cancel}
	client := &http.Client{Transport: &http.Transport{}}
	for range openStreams {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			s.close()
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			s.close()
			return nil, err
		}
		s.wg.Go(func() {
			defer response.Body.Close()
			for lines := bufio.NewScanner(response.Body); lines.Scan(); {
				if len(lines.Bytes()) > 5 && string(lines.Bytes()[:5]) == "data:" {
					s.lines.Add(1)
				}
			}
		})
		if response.StatusCode != http.StatusOK {
			s.close()
			return nil, fmt.Errorf("%s: %s", url, response.Status)
		}
	}
	return s, nil
}

func (s *streams) close() {
	s.cancel()
	s.wg.Wait()
}
