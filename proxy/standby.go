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

// Lease is the lease that a proxy holds for its clients, or waits for. It is safe
// for concurrent use.
type Lease interface {
	session.Lease
	// Changed returns a channel that is closed when the lease is next won or lost.
	Changed() <-chan struct{}
}

// Standby is what clients get while the proxy's lease isn't held. Sessions that
// carry a fence of their own write in any case, where there are sessions.
type Standby string

// The ways to stand by. With Refuse and Wait there are sessions only while the
// lease is held: when it is lost, each is ended with 57P01 at the end of its
// transaction, so that its client connects anew.
const (
	ReadOnly Standby = "read-only" // reads flow, writes get WF007
	Refuse   Standby = "refuse"    // clients get 57P03
	Wait     Standby = "wait"      // clients wait for the lease, then get 57P03
)

// leaseLost ends a session that there is only while the lease is held.
var leaseLost = wire.Error{Code: "57P01", Message: "terminating connection: Wirefence no longer holds its lease",
	Hint: "Connect again."}

// checkStandby reports what can't work without the lease, or with it.
func (o *Options) checkStandby() error {
	switch {
	case o.Standby != ReadOnly && o.Standby != Refuse && o.Standby != Wait:
		return fmt.Errorf("standby %q is none of read-only, refuse, wait", o.Standby)
	case o.StandbyWait < 0:
		return errors.New("standby wait is negative")
	case o.Lease == nil:
		return nil
	case o.Mode == Off:
		return errors.New("mode off checks nothing, so a lease would fence nothing: take enforce or shadow, or no lease")
	case o.Standby == Wait && o.StandbyWait >= o.StartupTimeout:
		return fmt.Errorf("the standby wait of %v is not less than the startup timeout of %v, which bounds the wait and the login", o.StandbyWait, o.StartupTimeout)
	}
	return nil
}

// Leading reports whether the server holds its lease.
func (s *Server) Leading() bool { return s.options.Lease != nil && s.options.Lease.Fence() != "" }

// leads reports whether there may be sessions.
func (s *Server) leads() bool {
	return s.options.Lease == nil || s.options.Standby == ReadOnly || s.options.Lease.Fence() != ""
}

var errStandby = errors.New("on standby")

// awaitLease lets a client wait until there may be sessions, as long as the
// settings say, or tells it why there are none. What the client sends meanwhile
// stays in the buffer.
func (s *Server) awaitLease(ctx context.Context, client net.Conn, in *buffer, log *slog.Logger) error {
	changed := s.change()
	if s.leads() {
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
		Hint: "Connect to the one that holds the lease; its /readyz?role=leader answers 200."}
	if holder := s.options.Lease.Holder(); holder != "" {
		refusal.Detail = fmt.Sprintf("The lease was last seen held by %q.", holder)
	}
	refuse(client, refusal)
	return errStandby
}

// change is Lease.Changed, or nil without a lease.
func (s *Server) change() <-chan struct{} {
	if s.options.Lease == nil {
		return nil
	}
	return s.options.Lease.Changed()
}

// waitForLease returns nil when the lease is held, errStandby when that took too
// long, errDraining when the server won't get it any more, or why the client went.
func (s *Server) waitForLease(ctx context.Context, client net.Conn, in *buffer, changed <-chan struct{}) error {
	s.metrics.waiting.Inc()
	defer s.metrics.waiting.Dec()
	gone, stop := overhear(client, in)
	defer stop()
	timeout := time.NewTimer(s.options.StandbyWait)
	defer timeout.Stop()
	for {
		select {
		case <-changed:
			changed = s.options.Lease.Changed()
			if s.leads() {
				return nil
			}
		case <-timeout.C:
			return errStandby
		case err := <-gone:
			return fmt.Errorf("the client has gone: %w", err)
		case <-s.resigned:
			return errDraining
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errDraining) {
				return errDraining
			}
			return errStandby
		}
	}
}

// overhear reads what a client sends that should be waiting, so that its end is
// noticed, which gone tells. stop ends that; the client's read deadline is then
// to be set anew. It reads once: a client that speaks is there.
func overhear(client net.Conn, in *buffer) (gone <-chan error, stop func()) {
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

// startWatching ends sessions when the lease is lost, where there are to be none
// then. It returns what stops that.
func (s *Server) startWatching() (stop func()) {
	if s.options.Lease == nil || s.options.Standby == ReadOnly {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			changed := s.change()
			if !s.leads() {
				if n := s.each(func(c *conn) { c.leave(leaseLost) }); n > 0 {
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
