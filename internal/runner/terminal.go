package runner

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the terminal whose foreground this process had and the command
// gets. A nil terminal is none.
type terminal struct{ fd, own int }

// openTerminal returns nil unless file is a terminal with this process in its
// foreground.
func openTerminal(file *os.File) *terminal {
	if file == nil {
		return nil
	}
	fd, own := int(file.Fd()), unix.Getpgrp()
	if t := (&terminal{fd, own}); t.foreground() == own {
		return t
	}
	return nil
}

// give makes a group the foreground. A process of it that was quicker to read
// was stopped by SIGTTIN; suspend lets it go on.
func (t *terminal) give(group int) {
	if t != nil {
		_ = t.set(group)
	}
}

// takeBack makes this process's group the foreground again.
func (t *terminal) takeBack() {
	if t != nil {
		_ = t.set(t.own)
	}
}

// set asks for another foreground. From the background that raises SIGTTOU.
func (t *terminal) set(group int) error {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
}

// foreground is the group that has the terminal, 0 if there is none.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// suspend follows the command into a stop, as a shell expects of its job:
// Control-Z stops the command's group only. The lease isn't renewed meanwhile.
// When the shell lets this process go on, the command goes on too, unless the
// lease has ended. Without a terminal this process doesn't stop.
func (r *run) suspend(by syscall.Signal) {
	t := r.terminal
	if t == nil {
		return
	}
	if (by == syscall.SIGTTIN || by == syscall.SIGTTOU) && t.foreground() == r.id {
		r.signal(syscall.SIGCONT) // it was quicker than give
		return
	}
	t.takeBack()
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	for { // the stop may take effect a moment later
		select {
		case <-r.lease.Context().Done():
			return
		case signal := <-r.signals.caught:
			r.pass(signal)
			if signal == syscall.SIGCONT {
				return
			}
		}
	}
}

// pass passes a signal on to the group. SIGCONT may come from a shell that has
// put this process into its foreground; then the group gets it.
func (r *run) pass(signal os.Signal) {
	if signal == syscall.SIGCONT {
		if r.lease.Context().Err() != nil || r.lease.Remaining() == 0 {
			return // a command that is stopped must not go on without the lease
		}
		if r.terminal != nil && r.terminal.foreground() == r.terminal.own {
			r.terminal.give(r.id)
		}
	}
	r.signal(signal.(syscall.Signal))
}
