package proxy

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// socketOptions reads back what the kernel has been told of a connection.
func socketOptions(t *testing.T, conn any) (all [5]int) {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		for i, o := range [5][2]int{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT}, {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		} {
			if all[i], err = unix.GetsockoptInt(int(fd), o[0], o[1]); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What is set reaches the sockets of both sides.
func TestSocketsNoticeDeadPeers(t *testing.T) {
	for name, c := range map[string]struct {
		keepalive, user time.Duration
		want            [5]int // of no probes only the first and the last count
	}{
		"default": {0, 0, [5]int{1, 60, 10, 6, 0}},
		"set":     {12 * time.Second, 90 * time.Second, [5]int{1, 12, 2, 6, 90_000}},
		"short":   {time.Second, time.Millisecond, [5]int{1, 1, 1, 6, 1}},
		"off":     {-1, 0, [5]int{}},
	} {
		o := Options{Upstream: "postgres://db/", TCPKeepalive: c.keepalive, TCPUserTimeout: c.user}
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		l, err := o.listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server, err := o.dialer().Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		client, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for side, conn := range map[string]net.Conn{"client's": client, "server's": server} {
			got := socketOptions(t, conn)
			if c.want[0] == 0 {
				got[1], got[2], got[3] = 0, 0, 0
			}
			if got != c.want {
				t.Errorf("%s: the %s socket has %v, not %v", name, side, got, c.want)
			}
			_ = conn.Close()
		}
		_ = l.Close()
	}
}

// Who waits when a listener closes is let in.
func TestTheBacklogIsTaken(t *testing.T) {
	folder := t.TempDir()
	o := Options{Upstream: "postgres://db/"}
	for _, at := range []string{"127.0.0.1:0", "unix:" + filepath.Join(folder, "s"), "unix:@" + filepath.Base(folder) + t.Name()} {
		l, err := o.listen(at)
		if err != nil {
			t.Fatal(err)
		}
		waiting, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		var taken []net.Conn
		if err := takeBacklog(l.(syscall.Conn), func(c net.Conn) { taken = append(taken, c) }); err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if len(taken) != 1 {
			t.Fatalf("%s: %d were let in", at, len(taken))
		}
		if _, err := io.WriteString(taken[0], "hello"); err != nil {
			t.Error(err)
		}
		_ = taken[0].Close()
		if got, err := io.ReadAll(waiting); string(got) != "hello" || err != nil {
			t.Errorf("%s: got %q, %v", at, got, err)
		}
		_ = waiting.Close()
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestUnixSocketsAreReplacedWithCare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	plain, reuse := Options{Upstream: "postgres://db/"}, Options{Upstream: "postgres://db/", ReusePort: true}
	old, err := plain.listen("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	if file, err := os.Stat(path); err != nil || file.Mode().Perm() != 0o777 || old.Addr().String() != path {
		t.Errorf("%v, %v, %s", file, err, old.Addr())
	}
	if _, err := plain.listen("unix:" + path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a socket that is served is taken: %v", err)
	}
	next, err := reuse.listen("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	_ = old.Close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the old process removed the new one's socket: %v", err)
	}
	next.(*unixListener).path = "" // as a process that is killed
	_ = next.Close()
	last, err := plain.listen("unix:" + path)
	if err != nil {
		t.Fatalf("a socket that was left behind: %v", err)
	}
	_ = last.Close()
	if _, err := os.Stat(path); err == nil {
		t.Error("the last process left its socket behind")
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := reuse.listen("unix:" + path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file that is no socket is replaced: %v", err)
	}
}

// Clients of a passed socket have the settings of the process that accepts them, whatever
// an earlier one has set on the socket.
func TestPassedSocketsHaveOptions(t *testing.T) {
	plain := net.ListenConfig{}
	plain.SetMultipathTCP(false) // as systemd's
	socket, err := plain.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, c := range []struct {
		keepalive, user time.Duration
		want            [5]int
	}{
		{12 * time.Second, 90 * time.Second, [5]int{1, 12, 2, 6, 90_000}},
		{0, 0, [5]int{1, 60, 10, 6, 0}},
		{-1, 0, [5]int{}},
	} {
		o := Options{Upstream: "postgres://db/", Listen: []string{"fd:clients"}, TCPKeepalive: c.keepalive, TCPUserTimeout: c.user,
			Sockets: map[string][]net.Listener{"clients": {socket}}}
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		all, err := o.open("fd:clients")
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		server, err := net.Dial("tcp", socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		client, err := all[0].Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := socketOptions(t, client)
		if c.want[0] == 0 {
			got[1], got[2], got[3] = 0, 0, 0
		}
		if got != c.want {
			t.Errorf("the client's socket has %v, not %v", got, c.want)
		}
		_ = client.Close()
		_ = server.Close()
	}
	o := Options{Upstream: "postgres://db/", Listen: []string{"fd:others"}, Sockets: map[string][]net.Listener{"clients": {socket}}}
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "FileDescriptorName=others") {
		t.Errorf("a name that nobody passed: %v", err)
	}
}
