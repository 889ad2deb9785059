package demo

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a child of the play.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has been waited for
}

// launch starts a command in a process group of its own, so that Ctrl-C in a
// terminal reaches the play alone, which then ends its children in order.
func launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
	// The play doesn't wait for a descendant that keeps an output open.
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd, make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// signal sends a signal; a process that has ended is left alone.
func (p *process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// end waits for a process that was asked to end, kills it after a time, and
// returns when it is gone. SIGKILL ends a stopped process too.
func (p *process) end(grace time.Duration) {
	select {
	case <-p.exited:
		return
	case <-time.After(grace):
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}
