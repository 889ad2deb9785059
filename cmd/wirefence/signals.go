package main

import (
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// hangups are the SIGHUPs of a process that a SIGHUP must not end. They are
// caught from the beginning on, and wait until something answers them.
type hangups struct {
	caught chan os.Signal
	over   chan struct{}
}

func catchHangups() *hangups {
	h := &hangups{caught: make(chan os.Signal, 1)}
	signal.Notify(h.caught, syscall.SIGHUP)
	return h
}

// answer reloads for each SIGHUP until stop.
func (h *hangups) answer(reload func() error, log *slog.Logger) {
	h.over = make(chan struct{})
	go func() {
		defer close(h.over)
		for range h.caught {
			if err := reload(); err != nil {
				log.Error("not all could be reloaded; what could not stays as it was", "error", err)
			}
			log.Info("SIGHUP: other settings come from flags and the environment; to change them, restart")
		}
	}()
}

// stop waits for a reload that is under way. SIGHUP stays without effect.
func (h *hangups) stop() {
	signal.Ignore(syscall.SIGHUP)
	close(h.caught)
	if h.over != nil {
		<-h.over
	}
}
