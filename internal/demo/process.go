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
	exited chan struct{} // closed after Wait
}

// launch starts a command in its own process group: Ctrl-C in a terminal ends the play, which
// then ends its children in order.
func launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
	// A descendant may keep an output open.
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

// end waits for the process, and kills it after the grace. SIGKILL ends a stopped process, too.
func (p *process) end(grace time.Duration) {
	select {
	case <-p.exited:
		return
	case <-time.After(grace):
	}
	_ = p.cmd.Process.Kill()
	<-p.exited
}
