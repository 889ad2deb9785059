package holdtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// proxyVariable makes the test binary a proxy instead, before the server that it names.
const proxyVariable = "HOLDTEST_UPSTREAM"

// longHold is the period of a proxy that is to be stopped while its sessions hold.
const longHold = 10 * time.Second

// serve is the proxy in a process of its own.
func serve(upstream string) int {
	r, err := stack.Start(proxy.Options{Upstream: upstream, Hold: longHold, DrainTimeout: time.Second})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("listens", r.Addr)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	if err := r.Stop(); err != nil {
		return 1
	}
	return 0
}

// child is such a process.
type child struct {
	cmd  *exec.Cmd
	addr string
}

func startChild(t *testing.T, w *world) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), proxyVariable+"=postgres://"+w.Addr()+"/")
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.signal(t, syscall.SIGCONT)
		_ = in.Close()
		if err := c.cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "listens ") {
		t.Fatalf("the proxy did not start: %q, %v", line, err)
	}
	c.addr = strings.Fields(line)[1]
	return c
}

func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Error(err)
	}
}

// freeze returns when the proxy has stopped: until then it may still send something on.
func (c *child) freeze(t *testing.T) {
	t.Helper()
	c.signal(t, syscall.SIGSTOP)
	if err := servers.AwaitStopped(c.cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
}

// login opens a session that can be ended: no takeover ends a superuser's.
func (c *child) login(t *testing.T, w *world) *stack.Client {
	t.Helper()
	return stack.Login(t, c.addr, w.Name, "user", "app", "options", "-c wirefence.token=orders=34")
}

// wantOver fails the test if a session whose proxy goes on can still write.
func (w *world) wantOver(t *testing.T, c *stack.Client, sql string) {
	t.Helper()
	if err := c.Simple(sql); err == nil {
		t.Errorf("%s succeeded behind the seal", sql)
	}
	if n := w.number(t, "SELECT count(*) FROM t WHERE what = 'late'"); n > 0 {
		t.Errorf("%d late rows", n)
	}
}

const late = "INSERT INTO t (what) VALUES ('late')"

// Sessions of a frozen proxy that hold, but are idle, keep nobody out, whatever
// preempt_after says.
func TestFrozenProxyWithIdleSessions(t *testing.T) {
	onEach(t, stack.OldAndNew, func(t *testing.T, w *world) {
		w.never(t)
		c := startChild(t, w)
		var sessions []*stack.Client
		for range 8 {
			s := c.login(t, w)
			s.Must("SELECT 1", "SELECT 2", "SELECT 3")
			sessions = append(sessions, s)
		}
		if n := w.held(t); n != len(sessions) {
			t.Fatalf("%d sessions hold", n)
		}
		c.freeze(t)
		w.rival(t).within(t, 600*time.Millisecond+slack)
		c.signal(t, syscall.SIGCONT)
		for _, s := range sessions {
			w.wantOver(t, s, late)
		}
	})
}

// slack is what a crowded machine may add to the bounds of a takeover.
const slack = time.Second

// An open transaction of a frozen proxy is ended after preempt_after.
func TestFrozenProxyWithAnOpenTransaction(t *testing.T) {
	onEach(t, stack.OldAndNew, func(t *testing.T, w *world) {
		const preempt = time.Second
		w.exec(t, "UPDATE wirefence.resource_locks SET preempt_after = $1", preempt)
		c := startChild(t, w)
		s := c.login(t, w)
		s.Must("SELECT 1", "SELECT 2", "SELECT 3", "BEGIN", late)
		c.freeze(t)
		r := w.rival(t)
		r.within(t, preempt+100*time.Millisecond+slack)
		if r.took < preempt {
			t.Errorf("the transaction was ended after %s", r.took)
		}
		c.signal(t, syscall.SIGCONT)
		w.wantOver(t, s, "COMMIT")
	})
}

// A proxy is frozen while it waits for a hold. The server gives it the lock, and nobody
// takes note of that.
func TestFrozenProxyThatTakesAHold(t *testing.T) {
	onEach(t, stack.OldAndNew, func(t *testing.T, w *world) {
		w.never(t)
		c := startChild(t, w)
		s := c.login(t, w)
		s.Must("SELECT 1")
		free := w.blocks(t)
		over := make(chan error, 1)
		go func() { over <- s.Simple("CALL commits(1)") }()
		stack.Eventually(t, "the session waits for its hold", func() bool { return w.waiting(t) == 1 })
		c.freeze(t)
		free()
		stack.Eventually(t, "the hold is granted", func() bool { return w.waiting(t) == 0 && w.held(t) == 1 })
		w.rival(t).within(t, 600*time.Millisecond+slack)
		c.signal(t, syscall.SIGCONT)
		if err := <-over; err == nil {
			t.Error("CALL succeeded behind the seal")
		}
		if n := w.number(t, "SELECT count(*) FROM t"); n > 0 {
			t.Errorf("%d late rows", n)
		}
	})
}
