package proxy

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// A core that has panicked is not called again, since what it would send can't be
// trusted. The bug is reported once, and the driver ends the session.
func TestAFailedCoreIsLeftAlone(t *testing.T) {
	metrics, err := newMetrics(&Options{})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	d := &wakeCounter{}
	c := &conn{server: &Server{metrics: metrics}, log: slog.New(slog.NewTextHandler(&log, nil)), driver: d}
	call := func(do func(*session.Session)) (failed bool) {
		defer func() { failed = recover() != nil }()
		c.withCore(do)
		return false
	}
	called := false
	if !call(func(*session.Session) { panic("a bug") }) || !call(func(*session.Session) { called = true }) {
		t.Error("a call into a core that has failed comes back")
	}
	if called {
		t.Error("a core that has failed is called again")
	}
	if d.times != 1 {
		t.Errorf("the driver was woken %d times, want once", d.times)
	}
	if n := strings.Count(log.String(), "a session failed"); n != 1 {
		t.Errorf("reported %d times, want once: %s", n, log.String())
	}
}

// wakeCounter is a driver that counts the calls of wakeServerSide.
type wakeCounter struct {
	driver
	times int
}

func (w *wakeCounter) wakeServerSide() { w.times++ }
