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

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// asCommand makes this test binary be wirefence. Children inherit it, so that
// what the binary starts of itself is wirefence too.
const asCommand = "WFTEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, prefix) && name != "WIREFENCE_CACHE" {
			os.Unsetenv(name)
		}
	}
	os.Setenv(asCommand, "1")
	if signal.Ignored(syscall.SIGHUP) { // as under nohup: commands would ignore it, too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	status := m.Run()
	shared.close()
	if healthy.Postgres != nil {
		healthy.Close()
	}
	os.Exit(status)
}

// shared are the servers that the tests have in common, started by the first
// that wants them.
var shared commonServers

type commonServers struct {
	mu        sync.Mutex
	postgres  *servers.Postgres
	redis     *servers.Redis
	etcd      *servers.Etcd
	zookeeper *servers.ZooKeeper
}

func (s *commonServers) close() {
	if s.postgres != nil {
		s.postgres.Close()
	}
	if s.redis != nil {
		s.redis.Close()
	}
	if s.etcd != nil {
		s.etcd.Close()
	}
	if s.zookeeper != nil {
		s.zookeeper.Close()
	}
}

func postgres(t *testing.T) *servers.Postgres {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.postgres == nil {
		pg, err := servers.StartPostgres(context.Background(), servers.PostgresConfig{})
		if err != nil {
			t.Fatal(err)
		}
		shared.postgres = pg
	}
	return shared.postgres
}

func redisServer(t *testing.T) *servers.Redis {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.redis == nil {
		redis, err := servers.StartRedis(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		shared.redis = redis
	}
	return shared.redis
}

func etcdServer(t *testing.T) *servers.Etcd {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.etcd == nil {
		etcd, err := servers.StartEtcd(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		shared.etcd = etcd
	}
	return shared.etcd
}

func zookeeperServer(t *testing.T) *servers.ZooKeeper {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.zookeeper == nil {
		zookeeper, err := servers.StartZooKeeper(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		shared.zookeeper = zookeeper
	}
	return shared.zookeeper
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
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE "+name)
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
	r := &running{cmd: command(context.Background(), settings, args...), exited: make(chan struct{})}
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
