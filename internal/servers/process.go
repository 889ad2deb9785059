package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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

	dir       string // holds data and server.log
	account   *syscall.Credential
	ask, kill syscall.Signal // end it in order, and at once
}

// newProcess finds a free port and makes a folder, named after the kind of
// server.
func newProcess(kind string) (process, error) {
	p := process{ask: syscall.SIGTERM, kill: syscall.SIGKILL}
	var err error
	if p.Port, err = FreePort(); err == nil {
		p.dir, err = os.MkdirTemp("", "wf-"+kind+"-")
	}
	return p, err
}

// newForeign is newProcess for a server that refuses to run as root.
func newForeign(kind string) (process, error) {
	account, err := serverAccount()
	if err != nil {
		return process{}, err
	}
	p, err := newProcess(kind)
	p.account = account
	if err == nil {
		err = p.own(p.dir)
	}
	return p, err
}

func (p *process) data() string { return filepath.Join(p.dir, "data") }

// own gives a file or a folder to the account that the server runs as.
func (p *process) own(path string) error {
	if p.account == nil {
		return nil
	}
	return os.Chown(path, int(p.account.Uid), int(p.account.Gid))
}

// copyFile copies a file for the server alone to read. One that has gone is none.
func (p *process) copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer in.Close()
	return p.write(to, in, os.O_TRUNC)
}

// write writes a file for the server alone to read, by O_TRUNC or O_APPEND.
func (p *process) write(path string, text io.Reader, flag int) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flag, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, text)
	return cmp.Or(err, f.Close(), p.own(path))
}

// run starts a command and returns when it is ready, within a minute. The kernel ends the server
// with this process.
func (p *process) run(ctx context.Context, cmd *exec.Cmd, ready func(context.Context) error) error {
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = p.account
	endWithParent(cmd.SysProcAttr, p.kill)
	if err := p.start(cmd); err != nil {
		return err
	}
	return p.awaitReady(ctx, cmd.Path, ready, p.Log)
}

// startTogether starts the members of a cluster, none of which is ready before there is a majority.
// If one fails, all are closed.
func startTogether[S interface {
	Start(context.Context) error
	Close()
}](ctx context.Context, members []S) error {
	errs := make([]error, len(members))
	var starts sync.WaitGroup
	for i, m := range members {
		starts.Go(func() { errs[i] = m.Start(ctx) })
	}
	starts.Wait()
	err := errors.Join(errs...)
	if err != nil {
		for _, m := range members {
			m.Close()
		}
	}
	return err
}

// lookUp finds a command, by the first of its names that is on the PATH, or where Debian has what an
// ordinary user's PATH doesn't lead to.
func lookUp(names ...string) (string, error) {
	for _, name := range names {
		for _, where := range []string{name, "/usr/sbin/" + name} {
			if path, err := exec.LookPath(where); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("no %s found: run scripts/install-servers --test (Debian, Ubuntu), or put it on the PATH", strings.Join(names, " or "))
}

// answersOK is nil if a URL answers with 200.
func answersOK(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s, %w", url, answer.Status, err)
	}
	return nil
}

// logsIn is nil if a PostgreSQL, or what pools one, lets a client in.
func logsIn(ctx context.Context, url string) error {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Stop asks the server to end and waits for it, Kill ends it at once. Both keep
// its data, and may be called on a server that isn't running.
func (p *process) Stop() { p.end(p.ask) }
func (p *process) Kill() { p.end(p.kill) }

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
