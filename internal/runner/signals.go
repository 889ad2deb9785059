package runner

import (
	"os"
	"os/signal"
	"syscall"
)

// signals are those that this process passes on to the command. SIGTSTP, SIGTTIN and
// SIGTTOU keep their effect on this process.
type signals struct{ caught chan os.Signal }

func catch() *signals {
	s := &signals{make(chan os.Signal, 16)}
	signal.Notify(s.caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT)
	return s
}

func (s *signals) stop() { signal.Stop(s.caught) }
