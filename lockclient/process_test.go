package lockclient_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// holderProcess as an argument makes the test binary a process that holds a
// lease in Redis, whose connection string is the next argument.
const holderProcess = "hold-a-lease"

// hold acquires the lease of orders. For each line of its input it prints whether it holds it.
func hold(redisURL string) int {
	ctx := context.Background()
	err := func() error {
		store, err := redis.Open(redisURL)
		if err != nil {
			return err
		}
		// It would not renew for more than half of the lease, so no renewal is
		// under way when it is stopped.
		client, err := lockclient.New(store, lockclient.Options{Unsealed: true, TTL: 3 * time.Second, RenewEvery: 1800 * time.Millisecond})
		if err != nil {
			return err
		}
		lease, err := client.Acquire(ctx, "orders")
		if err != nil {
			return err
		}
		fmt.Println("holds")
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			fmt.Println("ended:", lease.Err())
		}
		return nil
	}()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// A process that was stopped while its lease expired learns of it before it uses the
// lease again.
func TestAStoppedProcessFindsOut(t *testing.T) {
	ctx := t.Context()
	server := startRedis(t)
	rival := newClient(t, redisStore(t, server), lockclient.Options{})

	process := exec.Command(os.Args[0], holderProcess, server.URL())
	process.Stderr = os.Stderr
	in, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill() })
	lines := bufio.NewReader(out)
	wantLine := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); !strings.Contains(line, want) {
			t.Fatalf("says %q, %v; want %q", line, err, want)
		}
	}
	wantLine("holds")
	if err := process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	lease, err := rival.Acquire(ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token() != 2 {
		t.Errorf("token %d", lease.Token())
	}
	fmt.Fprintln(in, "go on")
	if err := process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wantLine(`ended: lease expired: "orders"`)
	in.Close()
	if err := process.Wait(); err != nil {
		t.Error(err)
	}
}
