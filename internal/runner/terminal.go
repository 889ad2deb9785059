package runner

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is a terminal with this process in its foreground, which the command gets. A nil
// terminal is none.
type terminal struct{ fd, own int }

// openTerminal returns nil unless file is a terminal with this process in its foreground.
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

// give makes a group the foreground. A process of the group that read before was stopped by
// SIGTTIN; suspend continues it.
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

// set changes the foreground group, which raises SIGTTOU in a background process.
func (t *terminal) set(group int) error {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
}

// foreground returns the terminal's foreground group, or 0.
func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// suspend stops this process with the command, as a shell expects of its job: Control-Z stops
// only the command's group. The lease isn't renewed meanwhile. When the shell continues this
// process, the command continues, too, unless the lease has ended. Without a terminal this
// process doesn't stop.
func (r *run) suspend(by syscall.Signal) {
	t := r.terminal
	if t == nil {
		return
	}
	if (by == syscall.SIGTTIN || by == syscall.SIGTTOU) && t.foreground() == r.id {
		r.signal(syscall.SIGCONT) // it read before give
		return
	}
	t.takeBack()
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	for { // the stop may take effect a moment later
		select {
		case <-r.lease.Context().Done():
			return
		case signal := <-r.signals:
			r.pass(signal)
			if signal == syscall.SIGCONT {
				return
			}
		}
	}
}

// pass passes a signal on to the group. SIGCONT may come from a shell that made this process the
// foreground; then the group becomes the foreground.
func (r *run) pass(signal os.Signal) {
	if signal == syscall.SIGCONT {
		if r.lease.Context().Err() != nil || r.lease.Remaining() == 0 {
			return // a stopped command must not continue without the lease
		}
		if r.terminal != nil && r.terminal.foreground() == r.terminal.own {
			r.terminal.give(r.id)
		}
	}
	r.signal(signal.(syscall.Signal))
}
