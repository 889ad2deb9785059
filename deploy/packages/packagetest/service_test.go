//go:build linux

package packagetest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// service does for the installed units what systemd does: it opens the socket, starts
// ExecStart with the unit's environment under its user, and hears of its state.
type service struct {
	system  *system
	command []string
	env     []string
	user    *syscall.Credential
	socket  *os.File
	states  *net.UnixConn
	process *exec.Cmd
	log     stack.Log
}

func newService(t *testing.T, s *system) (*service, string) {
	t.Helper()
	unit, socket := s.unit(t, "wirefence.service"), s.unit(t, "wirefence.socket")
	uid, gid := s.account(t, unit.one(t, "Service.User"))
	v := &service{system: s, command: strings.Fields(unit.one(t, "Service.ExecStart")), user: &syscall.Credential{Uid: uid, Gid: gid}}
	address := socket.one(t, "Socket.ListenStream")
	host, _, err := net.SplitHostPort(address)
	if err != nil || host != "127.0.0.1" {
		t.Fatalf("clients connect at %s by default: %v", address, err)
	}
	l, err := net.Listen("tcp", host+":0") // the port itself may be taken here
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if v.socket, err = l.(*net.TCPListener).File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.socket.Close() })
	if v.states, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path("/run/notify"), Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.states.Close() })
	if err := os.Chmod(s.path("/run/notify"), 0o777); err != nil {
		t.Fatal(err)
	}
	v.env = append(unit["Service.Environment"], "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET=/run/notify", "LISTEN_FDS=1",
		"LISTEN_FDNAMES="+socket.one(t, "Socket.FileDescriptorName"))
	t.Cleanup(func() {
		if v.process != nil {
			_ = v.process.Process.Kill()
			_ = v.process.Wait()
		}
	})
	return v, l.Addr().String()
}

// start returns when the service has said that it is ready.
func (v *service) start(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(v.system.path(settingsFile))
	if err != nil {
		t.Fatal(err)
	}
	env := v.env
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, line)
		}
	}
	v.process = exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`}, v.command...)...)
	v.process.Env, v.process.Dir = env, "/"
	v.process.ExtraFiles = []*os.File{v.socket}
	v.process.Stdout, v.process.Stderr = &v.log, &v.log
	v.process.SysProcAttr = &syscall.SysProcAttr{Chroot: v.system.root, Credential: v.user}
	if err := v.process.Start(); err != nil {
		t.Fatal(err)
	}
	v.hears(t, "READY=1")
}

func (v *service) stop(t *testing.T) {
	t.Helper()
	if err := v.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	v.hears(t, "STOPPING=1")
	if err := v.process.Wait(); err != nil {
		t.Fatalf("the service ended with %v:\n%s", err, &v.log)
	}
}

func (v *service) hears(t *testing.T, state string) {
	t.Helper()
	_ = v.states.SetReadDeadline(time.Now().Add(time.Minute))
	text := make([]byte, 4096)
	n, err := v.states.Read(text)
	if err != nil || !strings.HasPrefix(string(text[:n]), state) {
		t.Fatalf("the service told %q, not %s; %v\n%s", text[:n], state, err, &v.log)
	}
}

// clients connect, ask and leave until they are ended.
type clients struct {
	served, failed atomic.Int64
	first          atomic.Value
	end            func()
}

func connectInALoop(t *testing.T, url string) *clients {
	ctx, cancel := context.WithCancel(t.Context())
	c := &clients{}
	var running sync.WaitGroup
	c.end = func() {
		cancel()
		running.Wait()
	}
	for range 4 {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := visit(url); err != nil {
					c.failed.Add(1)
					c.first.CompareAndSwap(nil, err.Error())
				}
				c.served.Add(1)
			}
		})
	}
	t.Cleanup(c.end)
	return c
}

func visit(url string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "SELECT 1")
	_ = conn.Close(ctx)
	return err
}

// more waits until a good number have come and gone.
func (c *clients) more(t *testing.T) {
	t.Helper()
	goal := c.served.Load() + 50
	stack.Eventually(t, "50 more clients", func() bool { return c.served.Load() >= goal })
}

// The service restarts, over an upgrade of its package too, and no client that connects
// meanwhile is refused.
func TestServiceRestarts(t *testing.T) {
	s := newSystem(t)
	deb := artifact(t, "*_"+runtime.GOARCH+".deb")
	s.install(t, deb)
	pg := stack.Postgres(t, 0)
	database := stack.Database(t, pg)
	settings := fmt.Sprintf("WIREFENCE_UPSTREAM=postgres://%s/?sslmode=disable\nWIREFENCE_DATABASE_URL=%s\nWIREFENCE_ADMIN_LISTEN=127.0.0.1:0\n",
		pg.Addr(), pg.URL(database))
	if err := os.WriteFile(s.path(settingsFile), []byte(settings), 0o640); err != nil {
		t.Fatal(err)
	}
	v, address := newService(t, s)
	v.start(t)
	all := connectInALoop(t, stack.URL(address, database))
	for i := range 3 {
		all.more(t)
		v.stop(t)
		if i == 1 {
			s.install(t, deb)
		}
		v.start(t)
	}
	all.more(t)
	if err := v.process.Process.Signal(syscall.SIGHUP); err != nil { // as ExecReload does
		t.Fatal(err)
	}
	v.hears(t, "RELOADING=1")
	v.hears(t, "READY=1")
	all.more(t)
	all.end()
	if n := all.failed.Load(); n > 0 {
		t.Errorf("%d of %d clients were not served; the first: %v\n%s", n, all.served.Load(), all.first.Load(), &v.log)
	}
	t.Logf("%d clients were served over 3 restarts", all.served.Load())
	v.stop(t)
}
