package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// asCommand makes this test binary be wirefence. Children inherit it, so that
// what the binary starts of itself is wirefence too.
const asCommand = "WFTEST_AS_COMMAND"

// asPgx makes this test binary be a program with pgx that runs this SQL where libpq's variables
// lead.
const asPgx = "WFTEST_PGX"

func runPgx(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func TestMain(m *testing.M) {
	if sql := os.Getenv(asPgx); sql != "" {
		if err := runPgx(context.Background(), sql); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if mode := os.Getenv(inMode); mode != "" {
		if err := runDemo(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(asCommand) != "" {
		main()
	}
	servers.ClearSettings()
	os.Setenv(asCommand, "1")
	if signal.Ignored(syscall.SIGHUP) { // as under nohup: commands would ignore it, too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	os.Exit(suite.Run(m, func() {
		for _, end := range shared.closers {
			end()
		}
	}))
}

var suite = stack.Suite{Parallel: 6} // they wait more than they compute

// shared are the servers that the tests have in common, started by the first
// that wants them.
var shared struct {
	mu        sync.Mutex
	redis     *servers.Redis
	etcd      *servers.Etcd
	zookeeper *servers.ZooKeeper
	healthy   *servers.Postgres // see healthyServer
	closers   []func()
}

// share returns one of the shared servers, and starts it if it doesn't run yet.
func share[S interface {
	comparable
	Close()
}](t *testing.T, server *S, start func(context.Context) (S, error)) S {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if none := *new(S); *server == none {
		started, err := start(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		*server = started
		shared.closers = append(shared.closers, started.Close)
	}
	return *server
}

func postgres(t *testing.T) *servers.Postgres {
	t.Helper()
	return suite.Server(t, 0)
}

func redisServer(t *testing.T) *servers.Redis {
	t.Helper()
	return share(t, &shared.redis, func(ctx context.Context) (*servers.Redis, error) { return servers.StartRedis(ctx) })
}

func etcdServer(t *testing.T) *servers.Etcd {
	t.Helper()
	stack.NeedsMore(t, "etcd")
	return share(t, &shared.etcd, func(ctx context.Context) (*servers.Etcd, error) { return servers.StartEtcd(ctx) })
}

func zookeeperServer(t *testing.T) *servers.ZooKeeper {
	t.Helper()
	stack.NeedsMore(t, "ZooKeeper")
	return share(t, &shared.zookeeper, func(ctx context.Context) (*servers.ZooKeeper, error) { return servers.StartZooKeeper(ctx) })
}

// database makes a database, with the schema or without, and returns the
// superuser's connection string.
func database(t *testing.T, migrated bool) string {
	t.Helper()
	pg := postgres(t)
	if migrated {
		return pg.URL(stack.Database(t, pg))
	}
	name := fmt.Sprintf("bare_%d", time.Now().UnixNano())
	if err := stack.CreateBare(t.Context(), pg, name, ""); err != nil {
		t.Fatal(err)
	}
	return pg.URL(name)
}

// result is what a command left.
type result struct {
	status         int
	stdout, stderr string
}

// wirefence runs a command to its end. Settings are NAME=value.
func wirefence(t *testing.T, settings []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := command(ctx, settings, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func command(ctx context.Context, settings []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), settings...)
	return cmd
}

// expect fails the test unless the command ended with a status and said the
// words on standard error.
func (r result) expect(t *testing.T, status int, words ...string) result {
	t.Helper()
	if r.status != status {
		t.Errorf("exit status %d, not %d\n%s%s", r.status, status, r.stdout, r.stderr)
	}
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			t.Errorf("%q is missing in:\n%s", word, r.stderr)
		}
	}
	return r
}

// says fails the test unless the command printed the words.
func (r result) says(t *testing.T, words ...string) result {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(r.stdout, word) {
			t.Errorf("%q is missing in:\n%s", word, r.stdout)
		}
	}
	return r
}

// running is a command that has been started.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr stack.Log
	exited         chan struct{}
}

// start starts a command that is killed with the test at the latest.
func start(t *testing.T, settings []string, args ...string) *running {
	t.Helper()
	return startCommand(t, command(context.Background(), settings, args...))
}

func startCommand(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{cmd: cmd, exited: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.exited)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.exited
	})
	return r
}

func (r *running) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// end waits for the end and returns what it left.
func (r *running) end(t *testing.T) result {
	t.Helper()
	select {
	case <-r.exited:
	case <-time.After(time.Minute):
		t.Fatalf("the command did not end:\n%s%s", &r.stdout, &r.stderr)
	}
	return result{r.cmd.ProcessState.ExitCode(), r.stdout.String(), r.stderr.String()}
}
