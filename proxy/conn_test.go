package proxy

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// A core that has panicked is not called again, since what it would send can't be
// trusted. The bug is reported once, and the driver ends the session.
func TestAFailedCoreIsLeftAlone(t *testing.T) {
	metrics, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	nudged := 0
	c := &conn{server: &Server{metrics: metrics}, log: slog.New(slog.NewTextHandler(&log, nil)), nudge: func() { nudged++ }}
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
	if nudged != 1 {
		t.Errorf("the driver was told %d times, want once", nudged)
	}
	if n := strings.Count(log.String(), "a session failed"); n != 1 {
		t.Errorf("reported %d times, want once: %s", n, log.String())
	}
}
