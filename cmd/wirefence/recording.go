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

// recording writes the proxy's refusals to the history; a nil one writes nothing.
type recording struct {
	journal *journal.Journal
	work    background
}

// recordingTime bounds the recording of the last refusals when the proxy ends.
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
	return &recording{journal: j}, nil
}

// processName is the name of this process in the history.
func (cfg proxySettings) processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cmp.Or(cfg.Holder, fmt.Sprintf("%s:%d", host, os.Getpid()))
}

// refusals returns the proxy's option of that name.
func (r *recording) refusals() proxy.Refusals {
	if r == nil {
		return nil
	}
	return r.journal
}

// run records until end is called.
func (r *recording) run() {
	if r != nil {
		r.work.start(context.Background(), func(ctx context.Context) { r.journal.Run(ctx, recordingTime) })
	}
}

// end waits until the last refusals are recorded, or their time is over.
func (r *recording) end() {
	if r != nil {
		r.work.end()
	}
}
