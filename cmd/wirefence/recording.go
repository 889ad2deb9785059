package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/internal/journal"
	"github.com/wirefence/wirefence/proxy"
)

// recording is what the proxy records in the history; a nil one records nothing.
type recording struct {
	journal *journal.Journal
	stop    context.CancelFunc
	over    chan struct{}
}

// recordingTime is what the last refusals have to be recorded in when the proxy
// ends.
const recordingTime = 2 * time.Second

func newRecording(cfg proxySettings, registry prometheus.Registerer, log *slog.Logger) (*recording, error) {
	switch {
	case !cfg.History || cfg.Mode == string(proxy.Off):
		return nil, nil
	case cfg.DatabaseURL == "":
		log.Warn("refusals are not recorded in the history, since WIREFENCE_DATABASE_URL is not set")
		return nil, nil
	}
	j, err := journal.New(journal.Options{
		Connect:    func(ctx context.Context) (*pgx.Conn, error) { return connect(ctx, cfg.DatabaseURL) },
		Proxy:      cfg.processName(),
		Logger:     log,
		Registerer: registry,
	})
	if err != nil {
		return nil, err
	}
	return &recording{journal: j, over: make(chan struct{})}, nil
}

// processName is what the history calls this process.
func (cfg proxySettings) processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cmp.Or(cfg.Holder, fmt.Sprintf("%s:%d", host, os.Getpid()))
}

// refusals is what the proxy is given.
func (r *recording) refusals() proxy.Refusals {
	if r == nil {
		return nil
	}
	return r.journal
}

// run records until end is called.
func (r *recording) run() {
	if r == nil {
		return
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	go func() {
		defer close(r.over)
		r.journal.Run(ctx, recordingTime)
	}()
}

// end waits until the last refusals are recorded, or their time is over.
func (r *recording) end() {
	if r == nil {
		return
	}
	r.stop()
	<-r.over
}
