package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/servers"
)

// proxy is a proxy that runs as a process of its own.
type proxy struct {
	cmd    *exec.Cmd
	exited chan struct{}
	port   int
}

// startProxy starts a proxy in front of upstream and waits until it serves.
func (w *world) startProxy(ctx context.Context, upstream string, how launch) (*proxy, error) {
	port, err := servers.FreePort()
	if err != nil {
		return nil, err
	}
	logs, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("proxy-%d.log", port)))
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	cmd := exec.Command(how.binary, "proxy")
	cmd.Env = append(os.Environ(), fmt.Sprintf("WIREFENCE_LISTEN=127.0.0.1:%d", port),
		"WIREFENCE_UPSTREAM=postgres://"+upstream+"/?sslmode=disable",
		"WIREFENCE_ADMIN_LISTEN=off", "WIREFENCE_LOG_LEVEL=warn", fmt.Sprintf("WIREFENCE_MAX_CONNECTIONS=%d", maxClients))
	cmd.Env = append(cmd.Env, how.settings...)
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process, which ends it
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &proxy{cmd, make(chan struct{}), port}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	if err := p.serves(ctx); err != nil {
		p.close()
		text, _ := os.ReadFile(logs.Name())
		return nil, fmt.Errorf("the proxy did not start: %w\n%s", err, text)
	}
	return p, nil
}

// serves waits until a client can connect.
func (p *proxy) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := pgconn.Connect(ctx, url(p.port))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.exited:
			return err
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *proxy) pid() int { return p.cmd.Process.Pid }

// freeze stops the process as a debugger would; thaw lets it go on.
func (p *proxy) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *proxy) thaw() error   { return p.cmd.Process.Signal(syscall.SIGCONT) }

// close ends the process, a stopped one too.
func (p *proxy) close() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}
