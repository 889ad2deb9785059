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

// child is a process that was started here.
type child struct {
	cmd    *exec.Cmd     // nil while it isn't running
	exited chan struct{} // closed when it has been waited for
	failed error         // of the last one that has ended
}

// start starts a command.
func (c *child) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	c.cmd, c.exited = cmd, exited
	go func() {
		c.failed = cmd.Wait()
		close(exited)
	}()
	return nil
}

// awaitReady returns when ready returns no error, within a minute. An error has the log.
func (c *child) awaitReady(ctx context.Context, name string, ready func(context.Context) error, log func() string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.exited:
			return fmt.Errorf("%s ended while starting:\n%s", name, log())
		case <-ctx.Done():
			return fmt.Errorf("%s did not start: %w\n%s", name, err, log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Ended reports whether the process has ended.
func (c *child) Ended() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// end sends a signal and waits for the process, which gets SIGKILL after a minute.
func (c *child) end(sig syscall.Signal) {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(sig)
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-c.exited:
	case <-time.After(time.Minute):
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
	c.cmd = nil
}

// Pid is the process id.
func (c *child) Pid() int { return c.cmd.Process.Pid }

// Pause stops the process with SIGSTOP and returns when it has stopped; Resume
// lets it go on.
func (c *child) Pause() error {
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return AwaitStopped(c.cmd.Process.Pid)
}

func (c *child) Resume() error { return c.cmd.Process.Signal(syscall.SIGCONT) }

// orClosed returns a server that was started, or closes what there is of one that was not.
func orClosed[S interface{ Close() }](s S, err error) (S, error) {
	if err != nil {
		s.Close()
		return *new(S), err
	}
	return s, nil
}

// process is a server of one process with a folder of its own. The type that embeds it
// starts it.
type process struct {
	child
	Port int // for clients, on the loopback

	dir string // holds data and server.log
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
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	dieWithParent(cmd.SysProcAttr)
	if err := p.start(cmd); err != nil {
		return err
	}
	return p.awaitReady(ctx, cmd.Path, func(ctx context.Context) error {
		if !ready(ctx) {
			return errors.New("it doesn't answer")
		}
		return nil
	}, p.Log)
}

// Stop asks the server to end and waits for it, Kill ends it at once. Both keep
// its data, and may be called on a server that isn't running.
func (p *process) Stop() { p.end(syscall.SIGTERM) }
func (p *process) Kill() { p.end(syscall.SIGKILL) }

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

// LogFile is the path of the server's log.
func (p *process) LogFile() string { return filepath.Join(p.dir, "server.log") }

// Log returns what the server has logged.
func (p *process) Log() string {
	text, _ := os.ReadFile(p.LogFile())
	return string(text)
}
