package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Redis is a running Redis server without persistence: what it held is gone
// when it is restarted.
type Redis struct {
	Port int

	dir    string
	args   []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// StartRedis starts a server on a free loopback port. Arguments are passed on
// to redis-server. It returns when the server answers.
func StartRedis(ctx context.Context, args ...string) (*Redis, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errors.New("no redis-server found: run scripts/install-servers (Debian, Ubuntu), or put redis-server on the PATH")
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "wf-redis-")
	if err != nil {
		return nil, err
	}
	r := &Redis{Port: port, dir: dir, args: args}
	if err := r.Start(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Start starts a server that was ended by Kill, empty, on the same port.
func (r *Redis) Start(ctx context.Context) error {
	args := append([]string{"--port", strconv.Itoa(r.Port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--dir", r.dir, "--logfile", filepath.Join(r.dir, "redis.log")}, r.args...)
	cmd := exec.Command("redis-server", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	endWithParent(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	r.cmd, r.exited = cmd, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		if r.ping(ctx) {
			return nil
		}
		select {
		case <-exited:
			log, _ := os.ReadFile(filepath.Join(r.dir, "redis.log"))
			return fmt.Errorf("redis-server ended while starting:\n%s", log)
		case <-ctx.Done():
			return fmt.Errorf("redis-server did not start: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *Redis) ping(ctx context.Context) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return err == nil && strings.HasPrefix(line, "+PONG")
}

// Kill ends the server at once and waits for it.
func (r *Redis) Kill() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill()
	<-r.exited
	r.cmd = nil
}

// Pause stops the process with SIGSTOP; Resume lets it go on.
func (r *Redis) Pause() error  { return r.cmd.Process.Signal(syscall.SIGSTOP) }
func (r *Redis) Resume() error { return r.cmd.Process.Signal(syscall.SIGCONT) }

// Close ends the server and removes its folder. It may be called twice.
func (r *Redis) Close() {
	if r.cmd != nil {
		_ = r.cmd.Process.Signal(syscall.SIGCONT)
	}
	r.Kill()
	_ = os.RemoveAll(r.dir)
}

// Addr is host:port of the server.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port)) }

// URL is the connection string of the server.
func (r *Redis) URL() string { return "redis://" + r.Addr() + "/0" }
