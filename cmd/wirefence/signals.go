package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/wirefence/wirefence/proxy"
)

// signals are those that the proxy handles, besides the first SIGTERM or SIGINT,
// which ends the command's context. They are caught from the beginning on and
// wait until they are handled.
type signals struct {
	hangups chan os.Signal
	ends    chan os.Signal // the first one, too
	over    chan struct{}  // closed when no more hangups are handled
}

func catchSignals() *signals {
	s := &signals{hangups: make(chan os.Signal, 1), ends: make(chan os.Signal, 2)}
	signal.Notify(s.hangups, syscall.SIGHUP)
	signal.Notify(s.ends, syscall.SIGTERM, syscall.SIGINT)
	return s
}

// reload calls all reloads at each SIGHUP, until stop.
func (s *signals) reload(log *slog.Logger, reloads ...func() error) {
	s.over = make(chan struct{})
	go func() {
		defer close(s.over)
		for range s.hangups {
			for _, reload := range reloads {
				if err := reload(); err != nil {
					log.Error("some files could not be reloaded; their last good state stays in use", "error", err)
				}
			}
			log.Info("SIGHUP: other settings come from flags and the environment; to change them without losing clients, " +
				"start a second process, both with WIREFENCE_REUSE_PORT=true, then end this one with SIGTERM")
		}
	}()
}

// abortTime bounds the end of the sessions after a second signal.
const abortTime = 2 * time.Second

// serve serves until the context is done and the server has drained, or until a
// second signal. Then the exit status is that of a process which the signal has
// ended, as a shell tells it: 130 for SIGINT, 143 for SIGTERM.
func (s *signals) serve(ctx context.Context, server *proxy.Server, log *slog.Logger) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	stop := context.AfterFunc(ctx, func() { _ = server.Shutdown(context.Background()) }) // it ends with Serve
	defer stop()
	var last os.Signal
	for range 2 {
		select {
		case err := <-served:
			if last == nil { // the first may have come meanwhile
				select {
				case <-s.ends:
				default:
				}
			}
			return err
		case last = <-s.ends:
		}
	}
	log.Warn("second signal: ending all sessions now", "signal", last.String())
	server.Abort()
	select {
	case <-served:
	case <-time.After(abortTime):
	}
	number, _ := last.(syscall.Signal)
	return &exitStatus{status: 128 + int(number)}
}

// stop waits for a reload that is under way. From now on SIGHUP is ignored.
func (s *signals) stop() {
	signal.Ignore(syscall.SIGHUP)
	signal.Stop(s.ends)
	close(s.hangups)
	if s.over != nil {
		<-s.over
	}
}
