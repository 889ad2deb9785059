package storetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/lockclient"
)

// Main is the body of a store's TestMain: it starts the shared server, runs the tests,
// calls end, which closes the servers, and then leaks, which looks for goroutines that
// still run. It returns the exit status.
func Main(m *testing.M, start func(context.Context) error, end func(), leaks func() error) int {
	if err := start(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	status := m.Run()
	end()
	if status != 0 {
		return status
	}
	if err := leaks(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// PausedServer is a server that can be paused without notice to its clients.
type PausedServer interface {
	Addr() string
	Pause() error
	Resume() error
}

// ADeadlineEndsACall checks that a renewal respects its context while the server is
// paused, and that its error names the server.
func ADeadlineEndsACall(t *testing.T, store lockclient.Store, server PausedServer) {
	t.Helper()
	if attempt, err := store.Acquire(t.Context(), "r", "me", time.Minute); err != nil || !attempt.Won() {
		t.Fatal(attempt, err)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := store.Renew(ctx, "r", "me", time.Minute)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), server.Addr()) {
		t.Error(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}
