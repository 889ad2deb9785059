package fencingtest

import (
	"bufio"
	"fmt"
	"io"
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

// childVariable makes the test binary a proxy that a test can stop. Its value is the URL of its upstream.
const childVariable = "FENCINGTEST_CHILD"

// longHold is the period of a proxy that is to be stopped while its sessions hold.
const longHold = 10 * time.Second

// beChild is a proxy until its input ends.
func beChild(upstream string) int {
	if err := beProxy(upstream); err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

func beProxy(upstream string) error {
	r, err := stack.Start(proxy.Options{Upstream: upstream, Hold: longHold, DrainTimeout: time.Second})
	if err != nil {
		return err
	}
	fmt.Println("listens", r.Addr)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return r.Stop()
}

// child is such a process.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(t testing.TB, upstream string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childVariable+"="+upstream)
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
		c.signal(syscall.SIGCONT)
		_ = in.Close()
		if err := c.cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	c.lines = bufio.NewScanner(out)
	return c
}

// says returns the second word of the child's next line, whose first is known.
func (c *child) says(first string) string {
	c.t.Helper()
	if !c.lines.Scan() {
		c.t.Fatalf("the child is gone: %v", c.lines.Err())
	}
	words := strings.Fields(c.lines.Text())
	if len(words) != 2 || words[0] != first {
		c.t.Fatalf("the child said %q, not %s", words, first)
	}
	return words[1]
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Error(err)
	}
}

// freeze returns when the child has stopped: until then a proxy may still send something on.
func (c *child) freeze() {
	c.t.Helper()
	c.signal(syscall.SIGSTOP)
	if err := servers.AwaitStopped(c.cmd.Process.Pid); err != nil {
		c.t.Fatal(err)
	}
}

// startProxy returns a proxy in a process of its own, and the world behind it.
func (w *world) startProxy(t testing.TB) (*child, *world) {
	t.Helper()
	c := startChild(t, "postgres://"+w.Addr()+"/")
	return c, w.at(c.says("listens"))
}
