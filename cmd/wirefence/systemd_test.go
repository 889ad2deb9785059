package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
)

// unit is what systemd does for a service with a socket unit: it keeps the sockets open,
// passes them to each process, and hears of its state.
type unit struct {
	settings []string
	names    string
	sockets  []*os.File
	states   *net.UnixConn
	last     *running
}

func newUnit(t *testing.T, settings []string, names string, sockets ...net.Listener) *unit {
	t.Helper()
	u := &unit{names: names}
	for _, l := range sockets {
		file, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		t.Cleanup(func() { _ = file.Close() })
		u.sockets = append(u.sockets, file)
	}
	path := filepath.Join(folder(t), "notify")
	var err error
	if u.states, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.states.Close() })
	u.settings = append(settings, "NOTIFY_SOCKET="+path, "LISTEN_FDNAMES="+names, fmt.Sprint("LISTEN_FDS=", len(sockets)))
	return u
}

// folder has a short name: a socket's is bounded.
func folder(t *testing.T) string {
	t.Helper()
	name, err := os.MkdirTemp("", "wf-unit-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(name) })
	return name
}

// start starts a process with the sockets. Only a process itself knows LISTEN_PID
// beforehand.
func (u *unit) start(t *testing.T) *running {
	t.Helper()
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0], "proxy")
	cmd.Env = append(os.Environ(), u.settings...)
	cmd.ExtraFiles = u.sockets
	u.last = startCommand(t, cmd)
	return u.last
}

// hears waits for the next state, which must have the lines.
func (u *unit) hears(t *testing.T, lines ...string) {
	t.Helper()
	_ = u.states.SetReadDeadline(time.Now().Add(time.Minute))
	text := make([]byte, 4096)
	n, err := u.states.Read(text)
	if err != nil {
		t.Fatalf("no state was told; expected %q: %v\n%s", lines, err, &u.last.stderr)
	}
	told := strings.Split(string(text[:n]), "\n")
	for _, line := range lines {
		if !strings.Contains("\n"+string(text[:n]), "\n"+line) {
			t.Errorf("told %q; expected %q", told, line)
		}
	}
}

func listenAt(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	if file, ok := l.(*net.UnixListener); ok {
		file.SetUnlinkOnClose(false)
	}
	return l
}

// With sockets that systemd keeps, a service is restarted again and again, and clients
// that connect meanwhile wait but are served, by TCP and by a Unix socket.
func TestRestartWithPassedSockets(t *testing.T) {
	stack.NeedsMore(t, "5 s of CPU")
	t.Parallel()
	url := database(t, true)
	settings, _, _ := proxySettingsFor(t, url)
	settings = append(settings, "WIREFENCE_LISTEN=fd:clients", "WIREFENCE_ADMIN_LISTEN=fd:admin", "WIREFENCE_DRAIN_TIMEOUT=7s")
	dir := folder(t)
	tcp, unix, admin := listenAt(t, "tcp", "127.0.0.1:0"), listenAt(t, "unix", dir+"/.s.PGSQL.6433"), listenAt(t, "tcp", "127.0.0.1:0")
	at, adminAt := tcp.Addr().String(), admin.Addr().String()
	u := newUnit(t, settings, "clients:clients:admin", tcp, unix, admin)
	name := url[strings.LastIndex(url, "/")+1 : strings.Index(url, "?")]

	process := u.start(t)
	u.hears(t, "READY=1", "STATUS=Serving at "+at+", "+dir+"/.s.PGSQL.6433")
	all := startComers(t, stack.URL(at, name), "postgres://postgres@/"+name+"?port=6433&host="+dir)
	for range 3 {
		all.more(t)
		process.signal(t, syscall.SIGHUP)
		u.hears(t, "RELOADING=1", "MONOTONIC_USEC=")
		u.hears(t, "READY=1")
		process.signal(t, syscall.SIGTERM)
		u.hears(t, "STOPPING=1", "EXTEND_TIMEOUT_USEC=22000000")
		process.end(t).expect(t, 0, "drained")
		process = u.start(t)
		u.hears(t, "READY=1")
	}
	all.more(t)
	all.end()
	if n := all.failed.Load(); n > 0 {
		t.Errorf("%d of %d clients were not served; the first: %v", n, all.served.Load(), all.first.Load())
	}
	get(t, "http://"+adminAt+"/readyz")
	process.signal(t, syscall.SIGTERM)
	process.end(t).expect(t, 0)
}

// The proxy refuses unusable sockets before it serves.
func TestPassedSocketsThatCantBeUsed(t *testing.T) {
	t.Parallel()
	settings := []string{"WIREFENCE_UPSTREAM=postgres://127.0.0.1:1/", "WIREFENCE_ADMIN_LISTEN=off"}
	wirefence(t, append(settings, "WIREFENCE_LISTEN=fd:clients"), "proxy").expect(t, 2, "fd:clients", "FileDescriptorName=clients")
	// They are another process's.
	wirefence(t, append(settings, "WIREFENCE_LISTEN=fd:clients", "LISTEN_PID=1", "LISTEN_FDS=1", "LISTEN_FDNAMES=clients"), "proxy").expect(t, 2, "fd:clients")

	u := newUnit(t, append(settings, "WIREFENCE_LISTEN=fd:clients"), "others", listenAt(t, "tcp", "127.0.0.1:0"))
	u.start(t).end(t).expect(t, 2, "fd:clients")

	u = newUnit(t, append(settings, "WIREFENCE_LISTEN=127.0.0.1:0", "WIREFENCE_API_LISTEN=fd:api", "WIREFENCE_DATABASE_URL=postgres://127.0.0.1:1/none"), "clients:api",
		listenAt(t, "tcp", "127.0.0.1:0"), listenAt(t, "tcp", "127.0.0.1:0"))
	process := u.start(t)
	process.stderr.Await(t, "systemd passed a socket that no setting names")
	u.hears(t, "READY=1")
	if told := process.stderr.String(); strings.Contains(told, `"socket":"fd:api"`) {
		t.Errorf("a socket of the API is told of: %s", told)
	}
	process.signal(t, syscall.SIGTERM)
	process.end(t).expect(t, 0)

	dgram, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := dgram.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_ = dgram.Close()
	u = newUnit(t, append(settings, "WIREFENCE_LISTEN=fd:clients"), "clients", listenAt(t, "tcp", "127.0.0.1:0"))
	u.sockets = []*os.File{file}
	u.start(t).end(t).expect(t, 1, "it doesn't listen", "ListenStream=")
}
