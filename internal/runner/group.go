package runner

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
)

// group is a process group, led by the command.
type group struct {
	id       int // of the group and its leader
	terminal *terminal
	follow   bool // also end processes that left the group

	stopped chan syscall.Signal // the command was stopped, by this signal
	exited  chan struct{}       // closed when the command has ended
	gone    chan struct{}       // closed when no process of the group is left
	status  syscall.WaitStatus  // of the command, once it has exited
}

// startGroup executes the command and starts a goroutine that waits for the group.
func startGroup(path string, command, env []string, options Options) (*group, error) {
	files, closeNull, err := standardFiles(options)
	if err != nil {
		return nil, err
	}
	defer closeNull()
	g := &group{
		terminal: openTerminal(options.Stdin), follow: options.OnlyChild && canFollow(),
		stopped: make(chan syscall.Signal, 1), exited: make(chan struct{}), gone: make(chan struct{}),
	}
	adoptOrphans()
	started := make(chan error)
	go func() {
		// The kernel ends the command with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := g.start(path, command, &syscall.ProcAttr{Env: env, Files: files})
		started <- err
		if err == nil {
			g.wait()
			close(g.gone)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	g.terminal.give(g.id)
	return g, nil
}

// start executes the command, or, as execvp does, a script without an interpreter line with sh.
func (g *group) start(path string, command []string, attr *syscall.ProcAttr) (err error) {
	attr.Sys = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(attr.Sys)
	g.id, err = syscall.ForkExec(path, command, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		g.id, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, command[1:]...), attr)
	}
	return err
}

// standardFiles returns the descriptors of the command's standard files.
func standardFiles(options Options) (files []uintptr, closeNull func(), err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	for _, file := range []*os.File{options.Stdin, options.Stdout, options.Stderr} {
		if file == nil {
			file = null
		}
		files = append(files, file.Fd())
	}
	return files, func() { null.Close() }, nil
}

// wait reaps the group, on Linux with the command's orphans, and returns when no process is left
// in it. With follow, none is left when this process has no child.
func (g *group) wait() {
	children := -g.id
	if g.follow {
		children = -1
	}
	exited := false
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(children, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no child of ours is left in the group
			g.awaitStrangers()
			return
		case pid != g.id:
		case status.Stopped():
			select {
			case g.stopped <- status.StopSignal():
			default:
			}
		case !exited:
			exited = true
			g.status = status
			close(g.exited)
		}
	}
}

// awaitStrangers polls for processes of the group that are not children of this process, since
// no event reports their end: children of a living parent that left the group, and orphans on
// systems where they can't be adopted.
func (g *group) awaitStrangers() {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(-g.id, 0) == nil {
		<-tick.C
	}
}

func (g *group) isGone() bool {
	select {
	case <-g.gone:
		return true
	default:
		return false
	}
}

// signal sends a signal to every process of the group, unless it is gone: its number may be
// another group's.
func (g *group) signal(signal syscall.Signal) {
	if !g.isGone() {
		_ = syscall.Kill(-g.id, signal)
	}
}

// signalAll also signals processes that left the group, with follow. Then it doesn't use the
// group's number, which may be free while such processes are left.
func (g *group) signalAll(signal syscall.Signal) {
	if g.follow {
		signalDescendants(signal, others{})
		return
	}
	g.signal(signal)
}

// kill ends the group with SIGKILL and waits for its end within killTime: a process may hang in
// the kernel. It repeats the signal for processes that were forked before their parent got it.
func (g *group) kill() error {
	timer := time.NewTimer(killTime)
	defer timer.Stop()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		g.signalAll(syscall.SIGKILL)
		for waiting := true; waiting; {
			select {
			case <-g.gone:
				return nil
			case <-timer.C:
				return fmt.Errorf("process group %d is still there %v after SIGKILL", g.id, killTime)
			case <-again.C:
				waiting = !g.follow
			}
		}
	}
}

// exit returns the command's exit status in a shell's terms.
func (g *group) exit() int {
	select {
	case <-g.exited:
	default:
		return 128 + int(syscall.SIGKILL)
	}
	if g.status.Signaled() {
		return 128 + int(g.status.Signal())
	}
	return g.status.ExitStatus()
}
