package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// process is a server of one process with a folder of its own. What embeds it
// says how it is started.
type process struct {
	Port int // for clients, on the loopback

	dir    string // holds data and server.log
	cmd    *exec.Cmd
	exited chan struct{}
}

// newProcess finds a free port and makes a folder, named after the kind of
// server.
func newProcess(kind string) (process, error) {
	port, err := FreePort()
	if err != nil {
		return process{}, err
	}
	dir, err := os.MkdirTemp("", "wf-"+kind+"-")
	return process{Port: port, dir: dir}, err
}

func (p *process) data() string { return filepath.Join(p.dir, "data") }

// run starts a command and returns when it is ready, within a minute.
func (p *process) run(ctx context.Context, cmd *exec.Cmd, ready func(context.Context) bool) error {
	log, err := os.OpenFile(filepath.Join(p.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	dieWithParent(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !ready(ctx) {
		select {
		case <-exited:
			return fmt.Errorf("%s ended while starting:\n%s", cmd.Path, p.Log())
		case <-ctx.Done():
			return fmt.Errorf("%s did not start: %w\n%s", cmd.Path, ctx.Err(), p.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Stop asks the server to end and waits for it, Kill ends it at once. Both keep
// its data, and may be called on a server that isn't running.
func (p *process) Stop() { p.end(syscall.SIGTERM) }
func (p *process) Kill() { p.end(syscall.SIGKILL) }

func (p *process) end(sig syscall.Signal) {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	p.cmd = nil
}

// Pause stops the process with SIGSTOP and returns when it has stopped; Resume
// lets it go on.
func (p *process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return AwaitStopped(p.cmd.Process.Pid)
}

func (p *process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// SaveData copies the data of a server that isn't running, and returns a folder
// for RestoreData, which Close removes.
func (p *process) SaveData() (string, error) {
	if p.cmd != nil {
		return "", errors.New("data of a running server can't be saved")
	}
	saved, err := os.MkdirTemp(p.dir, "saved-")
	if err != nil {
		return "", err
	}
	return saved, os.CopyFS(saved, os.DirFS(p.data()))
}

// RestoreData puts saved data in the place of what a server has that isn't
// running: it forgets all that came later.
func (p *process) RestoreData(saved string) error {
	if p.cmd != nil {
		return errors.New("data of a running server can't be restored")
	}
	if err := os.RemoveAll(p.data()); err != nil {
		return err
	}
	if err := os.CopyFS(p.data(), os.DirFS(saved)); err != nil {
		return err
	}
	return os.Chmod(p.data(), 0o700)
}

// Close ends the server and removes its folder. It may be called twice.
func (p *process) Close() {
	p.Kill()
	_ = os.RemoveAll(p.dir)
}

// Addr is host:port of the server.
func (p *process) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)) }

// Log returns what the server has logged.
func (p *process) Log() string {
	text, _ := os.ReadFile(filepath.Join(p.dir, "server.log"))
	return string(text)
}
