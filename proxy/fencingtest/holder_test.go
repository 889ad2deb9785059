package fencingtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// holderVariable makes the test binary a holder of a lease instead: its value
// is the URLs of Redis, of PostgreSQL and of the proxy.
const holderVariable = "FENCINGTEST_HOLDER"

// holderTTL is short, so that a test need not wait long for a stopped holder.
const holderTTL = time.Second

// hold takes the lease of orders and puts its fence on a connection. Then it
// writes a row for each line that it reads, without asking whether it still
// holds the lease, and prints the SQLSTATE: the worker that never looks back.
func hold() int {
	urls := strings.Fields(os.Getenv(holderVariable))
	ctx := context.Background()
	fail := func(err error) int {
		fmt.Println("error", err)
		return 1
	}
	sealer, err := pgx.Connect(ctx, urls[1])
	if err != nil {
		return fail(err)
	}
	store, err := redis.Open(urls[0])
	if err != nil {
		return fail(err)
	}
	client, err := lockclient.New(store, lockclient.Options{TTL: holderTTL, Sealer: lockclient.PostgresSealer{Querier: sealer}})
	if err != nil {
		return fail(err)
	}
	conn, err := pgx.Connect(ctx, urls[2])
	if err != nil {
		return fail(err)
	}
	lease, err := client.Acquire(ctx, "orders") // from here on its time runs
	if err != nil {
		return fail(err)
	}
	if err := lease.SetOn(ctx, conn); err != nil {
		return fail(err)
	}
	fmt.Println("token", lease.Token())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_, err := conn.Exec(ctx, "insert into jobs values ($1, $2)", int64(lease.Token()), lines.Text())
		fmt.Printf("wrote %q\n", stack.State(err))
	}
	return 0
}

// holder is such a process.
type holder struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
	token fence.Token
}

func startHolder(t *testing.T, redisURL, postgresURL, proxyURL string) *holder {
	t.Helper()
	h := &holder{t: t, cmd: exec.Command(os.Args[0])}
	h.cmd.Env = append(os.Environ(), holderVariable+"="+redisURL+" "+postgresURL+" "+proxyURL)
	h.cmd.Stderr = os.Stderr
	in, err := h.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.signal(syscall.SIGCONT)
		_ = in.Close()
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	})
	h.in, h.lines = in, bufio.NewScanner(out)
	answer := h.answer()
	if len(answer) != 2 || answer[0] != "token" {
		t.Fatalf("the holder did not start: %s", answer)
	}
	if h.token, err = fence.ParseToken(answer[1]); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *holder) answer() []string {
	h.t.Helper()
	if !h.lines.Scan() {
		h.t.Fatalf("the holder is gone: %v", h.lines.Err())
	}
	return strings.Fields(h.lines.Text())
}

// write lets the holder write, and returns the SQLSTATE it got.
func (h *holder) write(note string) string {
	h.t.Helper()
	if _, err := fmt.Fprintln(h.in, note); err != nil {
		h.t.Fatal(err)
	}
	answer := h.answer()
	if len(answer) != 2 || answer[0] != "wrote" {
		h.t.Fatalf("the holder said %q", answer)
	}
	return strings.Trim(answer[1], `"`)
}

func (h *holder) signal(s syscall.Signal) { _ = h.cmd.Process.Signal(s) }

// gate lets test code wait for what others count.
type gate struct {
	mu    sync.Mutex
	count int
	want  int
	open  chan struct{}
}

func newGate(want int) *gate { return &gate{want: want, open: make(chan struct{})} }

func (g *gate) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count++; g.count == g.want {
		close(g.open)
	}
}

func (g *gate) wait(t *testing.T) {
	t.Helper()
	select {
	case <-g.open:
	case <-time.After(stack.Patience):
		t.Fatal("nothing happened")
	}
}
