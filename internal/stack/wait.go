package stack

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// Eventually polls until a condition is true, within Patience.
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	if !within(Patience, so) {
		t.Fatalf("not in %s: %s", Patience, what)
	}
}

// within polls often at first, and then rarely: many a condition costs a query, a request or a
// process, which take from what is awaited.
func within(limit time.Duration, so func() bool) bool {
	end := time.Now().Add(limit)
	for pause := 2 * time.Millisecond; !so(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Log collects what is logged. It is safe for concurrent use; its zero value is
// empty.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns all that was logged.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Await waits until a text is in the log.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	if !within(Patience, func() bool { return strings.Contains(l.String(), text) }) {
		t.Fatalf("%q was not written in %s, but:\n%s", text, Patience, l)
	}
}

// Logger writes to the Log from the debug level on.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
