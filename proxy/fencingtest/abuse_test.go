package fencingtest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

// A client that sends tiny messages and reads nothing uses little of the proxy's memory.
func TestPipelineOfTinyMessages(t *testing.T) {
	w := newWorld(t, 15)
	conn := stack.Raw(t, w.proxy)
	if _, err := conn.Write(stack.Startup(pgproto3.ProtocolVersion30, w.Name)); err != nil {
		t.Fatal(err)
	}
	tiny := []byte(strings.Repeat("C\x00\x00\x00\x06S\x00", 10_000))
	before := heap()
	var sent int
	var err error
	for sent < 64<<20 && err == nil {
		if err = conn.SetWriteDeadline(time.Now().Add(2 * time.Second)); err == nil {
			var n int
			n, err = conn.Write(tiny)
			sent += n
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("behind %d bytes the writer wasn't held back: %v", sent, err)
	}
	if grown := int(heap()) - int(before); grown > 16<<20 {
		t.Errorf("%d bytes of tiny messages take %d bytes of memory", sent, grown)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Failed logins leave nothing in memory, however long their database names are.
func TestFailedLogins(t *testing.T) {
	addr := suite.Proxy(t, 15)
	failing := func(t *testing.T, i int) {
		if _, err := stack.TryLogin(t, addr, fmt.Sprintf("none_%d_%s", i, strings.Repeat("x", 9_000))); err == nil {
			t.Fatal("logged in to a database that isn't there")
		}
	}
	failing(t, 0)
	before := heap()
	const logins = 200
	t.Run("clients", func(t *testing.T) { // which are gone with it
		for i := range logins {
			failing(t, i)
		}
	})
	if grown := int(heap()) - int(before); grown > logins*9_000/2 {
		t.Errorf("%d failed logins take %d bytes", logins, grown)
	}
}
