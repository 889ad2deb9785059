package fencingtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
	"github.com/wirefence/wirefence/proxy"
)

// childVariable makes the test binary a process that a test can stop. Its value is "holder"
// with the URLs of Redis, of PostgreSQL and of the proxy, or "proxy" with that of its upstream.
const childVariable = "FENCINGTEST_CHILD"

const (
	// holderTTL is short, so that a test need not wait long for a stopped holder.
	holderTTL = time.Second
	// longHold is the period of a proxy that is to be stopped while its sessions hold.
	longHold = 10 * time.Second
)

// beChild plays a role until its input ends.
func beChild(role string) int {
	play := beHolder
	words := strings.Fields(role)
	if words[0] == "proxy" {
		play = beProxy
	}
	if err := play(words[1:]); err != nil {
		fmt.Println("error", err)
		return 1
	}
	return 0
}

// beHolder takes the lease of orders and puts its fence on a connection. Then it writes a row
// for each line that it reads, without asking whether it still holds the lease, and prints the
// SQLSTATE.
func beHolder(urls []string) error {
	ctx := context.Background()
	sealer, err := pgx.Connect(ctx, urls[1])
	if err != nil {
		return err
	}
	store, err := redis.Open(urls[0])
	if err != nil {
		return err
	}
	client, err := lockclient.New(store, lockclient.Options{TTL: holderTTL, Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: sealer}}})
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, urls[2])
	if err != nil {
		return err
	}
	lease, err := client.Acquire(ctx, "orders") // from here on its time runs
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, lease.Fence().Session()); err != nil {
		return err
	}
	fmt.Println("token", lease.Token())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_, err := conn.Exec(ctx, "insert into jobs values ($1, $2)", int64(lease.Token()), lines.Text())
		fmt.Printf("wrote %q\n", stack.State(err))
	}
	return nil
}

func beProxy(upstream []string) error {
	r, err := stack.Start(proxy.Options{Upstream: upstream[0], Hold: longHold, DrainTimeout: time.Second})
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
	in    io.Writer
	lines *bufio.Scanner
}

func startChild(t testing.TB, role ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childVariable+"="+strings.Join(role, " "))
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
	c.in, c.lines = in, bufio.NewScanner(out)
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

// startHolder returns a holder and its token.
func (w *world) startHolder(t testing.TB, redisURL string) (*child, fence.Token) {
	t.Helper()
	h := startChild(t, "holder", redisURL, w.URL(w.Name), fmt.Sprintf("postgres://app@%s/%s?sslmode=disable", w.proxy, w.Name))
	token, err := fence.ParseToken(h.says("token"))
	if err != nil {
		t.Fatal(err)
	}
	return h, token
}

// write lets a holder write, and returns the SQLSTATE it got.
func (c *child) write(note string) string {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.in, note); err != nil {
		c.t.Fatal(err)
	}
	return strings.Trim(c.says("wrote"), `"`)
}

// startProxy returns a proxy in a process of its own, and the world behind it.
func (w *world) startProxy(t testing.TB) (*child, *world) {
	t.Helper()
	c := startChild(t, "proxy", "postgres://"+w.Addr()+"/")
	return c, w.at(c.says("listens"))
}
