package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Lease is the lease that a proxy holds for its clients, or waits for. It must be safe for
// concurrent use.
type Lease interface {
	session.Lease
	// Changed returns a channel that is closed when the lease is next won or lost.
	Changed() <-chan struct{}
}

// Standby says how clients are served while the proxy doesn't hold its lease. In a session
// statements with a fence of their own may always write.
type Standby string

// The ways to stand by. Refuse and Wait allow sessions only while the proxy holds the
// lease: when it is lost, each session ends with 57P01 at the end of its transaction, so
// that its client connects again.
const (
	ReadOnly Standby = "read-only" // clients may read; writes get WF007
	Refuse   Standby = "refuse"    // clients get 57P03
	Wait     Standby = "wait"      // clients wait for the lease, then get 57P03
)

// leaseLost is the FATAL of sessions that need the lease, after it is lost.
var leaseLost = wire.Error{Code: "57P01", Message: "terminating connection: Wirefence no longer holds its lease",
	Hint: "Connect again."}

// checkStandby validates the options of the lease.
func (o *Options) checkStandby() error {
	switch {
	case o.Standby != ReadOnly && o.Standby != Refuse && o.Standby != Wait:
		return fmt.Errorf("standby %q is none of read-only, refuse, wait", o.Standby)
	case o.StandbyWait < 0:
		return errors.New("standby wait is negative")
	case o.Lease == nil:
		return nil
	case o.Mode == Off:
		return errors.New("mode off checks no fences, so it can't use a lease: set mode enforce or shadow, or no lease")
	case o.Standby == Wait && o.StandbyWait >= o.StartupTimeout:
		return fmt.Errorf("the standby wait of %v is not less than the startup timeout of %v, which bounds the wait and the login", o.StandbyWait, o.StartupTimeout)
	}
	return nil
}

// Leading reports whether the server holds its lease; false without one.
func (s *Server) Leading() bool { return s.options.Lease != nil && s.options.Lease.Fence() != "" }

// allowsSessions reports whether the lease, or its absence, allows sessions.
func (s *Server) allowsSessions() bool {
	return s.options.Lease == nil || s.options.Standby == ReadOnly || s.options.Lease.Fence() != ""
}

var errStandby = errors.New("on standby")

// awaitLease returns nil when sessions are allowed. With Wait it waits up to StandbyWait
// for that; otherwise it refuses the client. Bytes that the client sends meanwhile stay
// in the buffer.
func (s *Server) awaitLease(ctx context.Context, client net.Conn, in *buffer, log *slog.Logger) error {
	changed := s.leaseChanged()
	if s.allowsSessions() {
		return nil
	}
	if s.options.Standby == Wait {
		switch err := s.waitForLease(ctx, client, in, changed); {
		case err == nil:
			return nil
		case errors.Is(err, errDraining):
			refuse(client, shutdownError)
			return err
		case !errors.Is(err, errStandby):
			log.Debug("a client disconnected while it waited for the lease", "error", err)
			return err
		}
	}
	s.metrics.rejected.WithLabelValues("standby").Inc()
	log.Debug("client refused: the proxy is on standby")
	refusal := wire.Error{Code: "57P03", Message: fmt.Sprintf("Wirefence is on standby: the lease of %q is not held here", s.options.Lease.Resource()),
		Hint: "Connect to the proxy that holds the lease: its /readyz?role=leader answers 200."}
	if holder := s.options.Lease.Holder(); holder != "" {
		refusal.Detail = fmt.Sprintf("The lease was last seen held by %q.", holder)
	}
	refuse(client, refusal)
	return errStandby
}

// leaseChanged returns Lease.Changed, or nil without a lease.
func (s *Server) leaseChanged() <-chan struct{} {
	if s.options.Lease == nil {
		return nil
	}
	return s.options.Lease.Changed()
}

// waitForLease returns nil once the lease is held, errStandby after StandbyWait,
// errDraining once the server drains, or the client's error.
func (s *Server) waitForLease(ctx context.Context, client net.Conn, in *buffer, changed <-chan struct{}) error {
	s.metrics.waiting.Inc()
	defer s.metrics.waiting.Dec()
	gone, stop := readWhileWaiting(client, in)
	defer stop()
	timeout := time.NewTimer(s.options.StandbyWait)
	defer timeout.Stop()
	for {
		select {
		case <-changed:
			changed = s.options.Lease.Changed()
			if s.allowsSessions() {
				return nil
			}
		case <-timeout.C:
			return errStandby
		case err := <-gone:
			return fmt.Errorf("the client disconnected: %w", err)
		case <-s.leaseAbandoned:
			return errDraining
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errDraining) {
				return errDraining
			}
			return errStandby
		}
	}
}

// readWhileWaiting reads once from a client that should be waiting, to notice that it
// disconnects; then gone gets the error. stop ends the read and waits for it; the caller
// sets the read deadline again.
func readWhileWaiting(client net.Conn, in *buffer) (gone <-chan error, stop func()) {
	ended, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		if _, err := in.read(client); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			ended <- err
		}
	}()
	return ended, func() {
		_ = client.SetReadDeadline(past)
		<-over
	}
}

// startLeaseWatch ends the sessions when the lease is lost, if they need it. It returns
// the function that stops that.
func (s *Server) startLeaseWatch() (stop func()) {
	if s.options.Lease == nil || s.options.Standby == ReadOnly {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			changed := s.leaseChanged()
			if !s.allowsSessions() {
				if n := s.eachConn(func(c *conn) { c.endWhenIdle(leaseLost) }); n > 0 {
					s.options.Logger.Info("the lease is not held: sessions end with their transactions", "sessions", n)
				}
			}
			select {
			case <-changed:
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}
