// Package quietlog limits log lines that repeat, so that a failure that lasts, or an event
// that hits all clients at once, doesn't fill the log.
//
// The package imports nothing of this module.
package quietlog

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Limiter limits the lines of one event. One line passes in an interval; the others are left
// out. At the end of the interval the last of these passes, with the number of the others in
// the attribute left_out. The zero value has an interval of one second. Safe for concurrent
// use.
type Limiter struct {
	// Every is the interval. Default 1s.
	Every time.Duration

	longest time.Duration // up to which the interval doubles; 0 unless it is an outage

	mu       sync.Mutex
	began    time.Time // the first line, of an outage since the last success
	interval time.Duration
	due      time.Time // the next line may pass
	omitted  int       // since the last line that passed
	last     func() error
	timer    *time.Timer // calls flush at due; nil while nothing was left out
	ended    bool
}

// On returns a logger whose lines pass the limiter.
func (l *Limiter) On(log *slog.Logger) *slog.Logger { return slog.New(handler{log.Handler(), l}) }

// Outage returns a logger for the failures and successes of one thing that is tried again and
// again. A failure is logged at level Warn or Error: the first at once, the next ones at
// intervals that double from 1 s to 5 min. A success is logged at level Info: it passes if it
// ends an outage, with how long that lasted in the attribute after.
func Outage(log *slog.Logger) *slog.Logger { return (&Limiter{longest: 5 * time.Minute}).On(log) }

// End logs the last line that was left out, if any. Later lines pass at once, so that no timer
// is left.
func (l *Limiter) End() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.flush()
}

// flush logs the last line that was left out, if any.
func (l *Limiter) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.omitted--
		_ = l.last()
	}
}

// handler is a slog.Handler behind a limiter.
type handler struct {
	slog.Handler
	limiter *Limiter
}

// Enabled accepts all lines, since the limiter must learn of a success also where it isn't
// logged.
func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.limiter}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.limiter}
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	l := h.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	success := l.longest > 0 && r.Level < slog.LevelWarn
	switch {
	case success && l.began.IsZero():
		return nil
	case success:
		r.AddAttrs(slog.Duration("after", now.Sub(l.began).Round(time.Millisecond)))
		l.began, l.interval = time.Time{}, 0
	case now.Before(l.due) && !l.ended:
		l.omitted++
		if l.longest > 0 {
			return nil // the next failure or the success has the number
		}
		kept := r.Clone()
		l.last = func() error { return h.pass(context.WithoutCancel(ctx), kept) }
		if l.timer == nil {
			l.timer = time.AfterFunc(l.due.Sub(now), l.flush)
		}
		return nil
	case l.began.IsZero():
		l.began, l.interval = now, cmp.Or(l.Every, time.Second)
	default:
		l.interval = max(l.interval, min(2*l.interval, l.longest))
	}
	return h.pass(ctx, r)
}

// pass logs a line, and begins the next interval.
func (h handler) pass(ctx context.Context, r slog.Record) error {
	l := h.limiter
	if l.omitted > 0 {
		r.AddAttrs(slog.Int("left_out", l.omitted))
	}
	l.omitted, l.last, l.due = 0, nil, time.Now().Add(l.interval)
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// ErrorAttrs returns the attributes of an error: its text, and PostgreSQL's DETAIL and HINT.
func ErrorAttrs(err error) []any {
	attrs := []any{"error", err}
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		if refusal.Detail != "" {
			attrs = append(attrs, "detail", refusal.Detail)
		}
		if refusal.Hint != "" {
			attrs = append(attrs, "hint", refusal.Hint)
		}
	}
	return attrs
}
