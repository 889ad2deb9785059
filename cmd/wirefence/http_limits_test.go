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
	"syscall"
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

// request sends a request, and returns the connection.
func request(t *testing.T, at, path string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn := dialHTTP(t, at)
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// answersOK waits for the whole answer to a request.
func answersOK(t *testing.T, conn net.Conn, r *bufio.Reader, within time.Duration) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(within))
	response, err := http.ReadResponse(r, nil)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
	}
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("answered %v, %v", response, err)
	}
}

// isClosed waits for the end of a connection.
func isClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection isn't closed: %v", err)
	}
}

// Connections without a request don't keep a probe waiting: the one that has had none for
// longest makes room.
func TestIdleHTTPConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	at := freeAddress(t)
	startProxy(t, database(t, true), "WIREFENCE_API_LISTEN="+at, "WIREFENCE_MAX_HTTP_CONNECTIONS=2")
	silent := dialHTTP(t, at)
	kept, reader := request(t, at, "/livez")
	answersOK(t, kept, reader, 5*time.Second)
	for _, closed := range []net.Conn{silent, kept} {
		time.Sleep(200 * time.Millisecond) // a request ends for the proxy when its answer was written
		probe, reader := request(t, at, "/livez")
		answersOK(t, probe, reader, 5*time.Second)
		isClosed(t, closed)
	}
}

// Requests whose bodies never come are answered, and don't keep a probe waiting, whether their
// senders are admitted or not.
func TestAFloodOfRequestsWithoutBodies(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(folder(t), "tokens")
	if err := os.WriteFile(tokens, []byte("app lease "+strings.Repeat("s", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const withoutBody = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
	url := database(t, true)
	for name, settings := range map[string][]string{"refused": {"WIREFENCE_ADMIN_TOKEN_FILE=" + tokens}, "admitted": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			applications := freeAddress(t)
			p := startProxy(t, url, append(settings, "WIREFENCE_API_LISTEN="+applications, "WIREFENCE_MAX_HTTP_CONNECTIONS=50")...)
			for _, at := range []string{strings.TrimPrefix(p.admin, "http://"), applications} {
				for range 10 {
					for range 15 {
						if _, err := io.WriteString(dialHTTP(t, at), withoutBody); err != nil {
							t.Fatal(err)
						}
					}
					probe, reader := request(t, at, "/livez")
					answersOK(t, probe, reader, 5*time.Second)
				}
			}
			if name == "refused" {
				conn := dialHTTP(t, applications)
				_, _ = io.WriteString(conn, withoutBody)
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err == nil {
					_, err = io.Copy(io.Discard, answer.Body)
				}
				if err != nil || answer.StatusCode != http.StatusUnauthorized {
					t.Fatalf("%v, %v", answer, err)
				}
			}
		})
	}
}

// While all connections are in a request, one more waits for the end of one.
func TestHTTPConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, begun, end := l.Addr().String(), make(chan bool), make(chan bool)
	s := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- true
		<-end
	})}
	connections := limitHTTP(l, 2)
	connections.serve(s)
	go func() { _ = s.Serve(connections) }()
	defer s.Close()
	for range 2 {
		request(t, at, "/")
		<-begun
	}
	waiting, reader := request(t, at, "/")
	select {
	case <-begun:
		t.Fatal("the third connection is served")
	case <-time.After(200 * time.Millisecond):
	}
	end <- true
	<-begun
	close(end)
	answersOK(t, waiting, reader, 5*time.Second)
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
