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

// process is a server of one process with a folder of its own. The type that embeds it
// describes the server: prepare, and then what Start runs.
type process struct {
	Port int // for clients, on the loopback

	dir       string // holds data and server.log
	account   *syscall.Credential
	ask, kill syscall.Signal // end it in order, and at once
	command   []string       // the program and its arguments
	env       []string       // NAME=value, beside what this process has
	apart     bool           // Ctrl-C is for this process, which ends the server
	ready     func(context.Context) error

	running *exec.Cmd     // nil while there is none
	exited  chan struct{} // closed when it has been waited for
	failed  error         // of the last one that has ended
}

// prepare finds the program and free ports, and makes the folder.
func (p *process) prepare(program string, ports ...*int) error {
	path, err := lookUp(program)
	if err != nil {
		return err
	}
	for _, port := range append(ports, &p.Port) {
		if *port, err = FreePort(); err != nil {
			return err
		}
	}
	p.command = []string{path}
	p.ask, p.kill = cmp.Or(p.ask, syscall.SIGTERM), cmp.Or(p.kill, syscall.SIGKILL)
	if p.dir, err = os.MkdirTemp("", "wf-"+filepath.Base(path)+"-"); err != nil {
		return err
	}
	return p.own(p.dir)
}

// prepareUnprivileged is prepare for a server that refuses to run as root.
func (p *process) prepareUnprivileged(program string, ports ...*int) (err error) {
	if p.account, err = serverAccount(); err != nil {
		return err
	}
	return p.prepare(program, ports...)
}

func (p *process) data() string { return p.file("data") }

// file is the path of a file in the server's folder.
func (p *process) file(name string) string { return filepath.Join(p.dir, name) }

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

// program is a command that runs as the server does. The kernel ends it with this process.
func (p *process) program(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.account, Setpgid: p.apart}
	endWithParent(cmd.SysProcAttr, p.kill)
	return cmd
}

// Start starts a server that doesn't run, on its ports and with the data that it has, and returns
// when it is ready, within a minute. A member of a cluster is when there is a majority. An error
// has the log.
func (p *process) Start(ctx context.Context) error {
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, exited := p.program(context.Background(), p.command[0], p.command[1:]...), make(chan struct{})
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p.running, p.exited = cmd, exited
	go func() {
		p.failed = cmd.Wait()
		close(exited)
	}()
	late := await(ctx, "its start", func(ctx context.Context) bool {
		err = p.ready(ctx)
		return err == nil || p.Ended()
	})
	switch {
	case err == nil:
		return nil
	case late == nil:
		return fmt.Errorf("%s ended while starting:\n%s", cmd.Path, p.Log())
	default:
		return fmt.Errorf("%s did not start: %w\n%s", cmd.Path, err, p.Log())
	}
}

// await returns when done does with true, or with an error after a minute.
func await(ctx context.Context, what string, done func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for !done(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// closer is a server, or several.
type closer interface{ Close() }

// orClosed returns a server that was started, or closes what there is of one that was not.
func orClosed[S closer](s S, err error) (S, error) {
	if err != nil {
		s.Close()
		return *new(S), err
	}
	return s, nil
}

// startTogether starts the members of a cluster, none of which is ready before there is a majority,
// unless one could not be prepared. If anything fails, all are closed.
func startTogether[S interface {
	comparable
	closer
	Start(context.Context) error
}](ctx context.Context, members []S, prepared error) ([]S, error) {
	err := prepared
	if err == nil {
		err = atOnce(members, func(_ int, m S) error { return m.Start(ctx) })
	}
	if err != nil {
		closeAll(members)
		return nil, err
	}
	return members, nil
}

// atOnce calls a function for all servers at the same time.
func atOnce[S any](all []S, do func(i int, s S) error) error {
	errs := make([]error, len(all))
	var calls sync.WaitGroup
	for i, s := range all {
		calls.Go(func() { errs[i] = do(i, s) })
	}
	calls.Wait()
	return errors.Join(errs...)
}

// closeAll closes those servers that there are.
func closeAll[S interface {
	comparable
	closer
}](all []S) {
	for _, s := range all {
		if s != *new(S) {
			s.Close()
		}
	}
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

// Ended reports whether the process has ended.
func (p *process) Ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// end sends a signal and waits for the process, which gets SIGKILL after a minute.
func (p *process) end(sig syscall.Signal) {
	if p.running == nil {
		return
	}
	_ = p.running.Process.Signal(sig)
	_ = p.Resume()
	select {
	case <-p.exited:
	case <-time.After(time.Minute):
		_ = p.running.Process.Kill()
		<-p.exited
	}
	p.running = nil
}

// Pid is the process id.
func (p *process) Pid() int { return p.running.Process.Pid }

// Pause stops the process with SIGSTOP and returns when it has stopped; Resume
// lets it go on.
func (p *process) Pause() error {
	if err := p.running.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return AwaitStopped(p.Pid())
}

func (p *process) Resume() error { return p.running.Process.Signal(syscall.SIGCONT) }

// Stop asks the server to end and waits for it, Kill ends it at once. Both keep
// its data, and may be called on a server that isn't running.
func (p *process) Stop() { p.end(p.ask) }
func (p *process) Kill() { p.end(p.kill) }

// SaveData copies the data of a server that isn't running, and returns a folder
// for RestoreData, which Close removes.
func (p *process) SaveData() (string, error) {
	if p.running != nil {
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
	if p.running != nil {
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
func (p *process) LogFile() string { return p.file("server.log") }

// Log returns what the server has logged.
func (p *process) Log() string {
	text, _ := os.ReadFile(p.LogFile())
	return string(text)
}
