package main

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func dialHTTP(t *testing.T, at string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// One connection more than the limit waits, and is served when another was closed: clients
// that send nothing are, after a while.
func TestHTTPConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	at := freeAddress(t)
	startProxy(t, database(t, true), "WIREFENCE_API_LISTEN="+at, "WIREFENCE_MAX_HTTP_CONNECTIONS=2")
	silent := []net.Conn{dialHTTP(t, at), dialHTTP(t, at)}
	waiting := dialHTTP(t, at)
	if _, err := io.WriteString(waiting, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = waiting.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the third connection is served: %v", err)
	}
	for _, conn := range silent {
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.ReadAll(conn); err != nil {
			t.Errorf("a connection without a request isn't closed: %v", err)
		}
	}
	_ = waiting.SetReadDeadline(time.Now().Add(30 * time.Second))
	response, err := http.ReadResponse(bufio.NewReader(waiting), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _ = response.Body.Close(); response.StatusCode != http.StatusOK {
		t.Errorf("it gets %s", response.Status)
	}
}

// A service manager that reads nothing is given up on, and logged.
func TestAServiceManagerThatHangs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(folder(t), "notify")
	states, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer states.Close()
	fill(t, path)
	var log strings.Builder
	m := &serviceManager{address: path, log: slog.New(slog.NewTextHandler(&log, nil))}
	told := make(chan struct{})
	go func() {
		m.ready([]string{"127.0.0.1:6433"})
		close(told)
	}()
	select {
	case <-told:
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for ever")
	}
	if !strings.Contains(log.String(), "cannot report the state") || !strings.Contains(log.String(), "i/o timeout") {
		t.Errorf("the log has %q", log.String())
	}
}

// fill sends to a socket until its queue is full. Each sender has a buffer of its own, which
// may be full before.
func fill(t *testing.T, path string) {
	t.Helper()
	for sent := 1; sent > 0; {
		conn, err := net.Dial("unixgram", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		for sent = 0; ; sent++ {
			if _, err := conn.Write([]byte("STATUS=filling the queue")); err != nil {
				break
			}
		}
	}
}
