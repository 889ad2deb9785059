//go:build !portable

package proxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/proxy/internal/secure"
	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// stop returns when the loop's goroutine has ended: by then its descriptors are
// closed.
func TestALoopIsWaitedFor(t *testing.T) {
	for range 100 {
		l, err := newLoop()
		if err != nil {
			t.Fatal(err)
		}
		l.stop()
		for _, fd := range []int{l.epoll, l.event} {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
				t.Fatalf("after stop, descriptor %d is open: %v", fd, err)
			}
		}
	}
}

// A session whose client doesn't take its last bytes is closed when its time is up,
// by the loop itself: there is no timer that could outlive it.
func TestALingeringSessionIsClosed(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.stop()
	var ends [2][2]int // the proxy's and the peer's
	for i := range ends {
		if ends[i], err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ends[i][1])
	}
	c := &conn{}
	c.once.Do(func() {}) // no server has counted it
	p := &pair{c: c, loop: l, closing: true, lingersUntil: time.Now().Add(20 * time.Millisecond)}
	p.client, p.server = side{p: p, fd: ends[0][0]}, side{p: p, fd: ends[1][0], server: true}
	l.post(func() { l.lingering = append(l.lingering, p) })
	for _, end := range ends {
		closed := []unix.PollFd{{Fd: int32(end[1]), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(closed, 30_000)
		for err == unix.EINTR {
			n, err = unix.Poll(closed, 30_000)
		}
		if n != 1 || err != nil {
			t.Errorf("a side is left open: %v", err)
		}
	}
	if left := time.Until(p.lingersUntil); left > 0 {
		t.Errorf("it was closed %v before its time", left)
	}
}

// A session whose core has failed before its handover leaves no socket open: its clients wait
// for that end.
func TestAFailedSessionIsNotAdopted(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var ends, peers [2]net.Conn
	for i := range ends {
		if peers[i], err = net.Dial("tcp", listener.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer peers[i].Close()
		if ends[i], err = listener.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	c := &conn{client: ends[0], up: ends[1], coreFailed: true}
	func() {
		defer func() {
			if got := recover(); got != errCoreFailed {
				t.Errorf("adopt panics with %v", got)
			}
		}()
		_ = l.adopt(c, &buffer{}, &buffer{})
	}()
	for i, end := range ends {
		_ = end.Close()
		_ = peers[i].SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := peers[i].Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("behind the end of socket %d comes %v", i, err)
		}
	}
}

// While the core handles a long text of one session, the loop serves others. What is posted for
// that session waits, and a panic ends it alone.
func TestALongTextHoldsUpNobodyElse(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.stop()
	counts, err := newMetrics(new(Options))
	if err != nil {
		t.Fatal(err)
	}
	for _, panics := range []bool{false, true} {
		c := &conn{log: slog.New(slog.DiscardHandler), server: &Server{metrics: counts}}
		c.once.Do(func() {}) // no server has counted it
		p := &pair{c: c, loop: l}
		p.client, p.server = side{p: p, fd: -1}, side{p: p, fd: -1, server: true}
		release, order := make(chan struct{}), make(chan string, 3)
		l.post(func() {
			p.runApart(func(*session.Out) func() {
				<-release
				if panics {
					panic("as a defect would")
				}
				return func() { order <- "the rest" }
			})
		})
		p.post(func() { order <- "posted" })
		other := make(chan struct{})
		l.post(func() { close(other) })
		<-other // the loop goes on
		close(release)
		want := []string{"the rest", "posted"}
		if panics {
			want = want[1:]
		}
		for _, want := range want {
			if got := <-order; got != want {
				t.Errorf("%q came, want %q", got, want)
			}
		}
	}
}

// Behind a client's end the server is sent what it has not taken yet and TLS's last
// words, and nothing more, whatever the proxy has to say.
func TestBehindAClientsEnd(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	l.stop() // what it does is called from here
	more, query := passing(), []byte("Q\x00\x00\x00\x05\x00")
	for _, encrypted := range []bool{false, true} {
		p := &pair{c: &conn{}, loop: l}
		p.client = side{p: p, fd: -1}
		p.server = side{p: p, fd: -1, server: true, unsent: []byte("not taken yet")}
		if encrypted {
			p.server.tls = detached(t)
		}
		p.server.closesWrite = true
		p.server.appendFinal(nil)
		due := bytes.Clone(p.server.unsent)
		more.FromClient(query, &l.out)
		l.send(&p.server, &l.out)
		if !bytes.Equal(p.server.unsent, due) {
			t.Errorf("encrypted %v: %d bytes are due, want %d", encrypted, len(p.server.unsent), len(due))
		}
	}
}

// passing is a session that forwards what it gets.
func passing() *session.Session {
	var out session.Out
	s := session.New(session.NewConfig(session.Config{Mode: session.Off}), session.NewDatabases(time.Now), &wire.Startup{}, nil)
	s.FromServer([]byte("R\x00\x00\x00\x08\x00\x00\x00\x00Z\x00\x00\x00\x05I"), &out)
	return s
}

// detached is a client's end of a TLS connection, off its socket.
func detached(t *testing.T) *secure.Conn {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	ca := authority.New(t)
	server := tls.Server(b, &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, "db.test").Load(t)}, SessionTicketsDisabled: true})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	c := secure.Client(a, &tls.Config{RootCAs: ca.Pool(), ServerName: "db.test"})
	if err := errors.Join(c.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	c.Detach()
	return c
}
