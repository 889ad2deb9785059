package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// awaited is something that the proxy isn't ready without, and waits for where waiting can help. If
// the proxy ended instead, its supervisor would restart it after growing pauses, and it would still
// be away when that is back.
type awaited struct {
	look       func(context.Context) error // is nil once it is there
	mayComeYet func(error) bool            // whether waiting can help
	lacks, has string                      // what the log says
	log        *slog.Logger

	mu      sync.Mutex
	why     error // why the proxy isn't ready; nil once it is
	useless error // why it never will be
}

// lookPause is the time between two looks.
const lookPause = 2 * time.Second

// begin looks for it. If it may still come, begin looks again and again in the background until ctx
// ends or end is called. It calls useless when it can't come any more.
func (w *awaited) begin(ctx context.Context, useless func()) (end func(), err error) {
	err = w.look(ctx)
	if err == nil {
		return func() {}, nil
	}
	if !w.mayComeYet(err) || ctx.Err() != nil {
		return nil, err
	}
	w.set(err, nil)
	w.log.Error("not ready: "+w.lacks+", retrying", "every", lookPause, "error", err)
	return inBackground(ctx, func(ctx context.Context) {
		if err := w.wait(ctx); err != nil && ctx.Err() == nil {
			w.set(err, err)
			useless()
		}
	}), nil
}

func (w *awaited) set(why, useless error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why, w.useless = why, useless
}

// failed returns why it can't come any more, if it can't.
func (w *awaited) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.useless
}

// ready returns why the proxy isn't ready, or nil.
func (w *awaited) ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// wait looks until it is there, or can't come any more.
func (w *awaited) wait(ctx context.Context) error {
	ticks := time.NewTicker(lookPause)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := w.look(ctx)
		if err != nil && !w.mayComeYet(err) {
			return err
		}
		before := w.ready()
		w.set(err, nil)
		switch {
		case err == nil:
			w.log.Info("ready: " + w.has)
			return nil
		case err.Error() != before.Error():
			w.log.Error("still not ready", "error", err)
		}
	}
}
