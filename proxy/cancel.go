package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
)

// forwardCancel forwards a CancelRequest to the server of its session, encrypted as the
// session is. An unknown key may belong to a session of a process that served here
// before, so the request goes to every server; only the right one knows the key. The
// client's connection stays open until the server has closed its own: PostgreSQL sends
// the signal before that, so it can't hit the client's next statement.
func (s *Server) forwardCancel(ctx context.Context, packet []byte) error {
	s.metrics.cancels.Inc()
	if c, ok := s.keys.Load(string(packet[8:])); ok {
		return c.(*conn).cancel(ctx, packet)
	}
	var failures []error
	sent := map[*upstream.Host]bool{}
	for _, r := range s.upstream.Routes(upstream.Any, "") {
		if sent[r.Host] {
			continue
		}
		err := s.upstream.Cancel(ctx, r, packet)
		sent[r.Host] = err == nil
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// A cancel request that came during a hold's exchange is repeated until the client's
// statement has been answered, at most maxCancelTries times.
const (
	cancelRetryInterval = 20 * time.Millisecond
	maxCancelTries      = 50
)

// cancel forwards a CancelRequest while the server works for the client. It waits for
// the end of an exchange of the proxy's own, which the client must not cancel, except a
// hold's: that may wait for a takeover, and the client's statement with it. It does
// nothing if the server has nothing to answer.
func (c *conn) cancel(ctx context.Context, packet []byte) error {
	again, tries, answered := false, 0, uint32(0)
	for {
		turn, held, answers := session.AwaitsNothing, false, uint32(0)
		var turns chan struct{}
		c.withCore(func(core *session.Session) {
			turn, held, answers = core.Awaited(), core.InputWaits(), core.ReadyCount()
			if turn == session.AwaitsHold || turn == session.AwaitsExchange {
				if c.exchangeEnded == nil {
					c.exchangeEnded = make(chan struct{})
				}
				turns = c.exchangeEnded
			}
		})
		var pause <-chan time.Time
		switch turn {
		case session.AwaitsNothing:
			return nil
		case session.AwaitsClientAnswer:
			if tries++; tries > maxCancelTries || answered != 0 && answered != answers {
				return nil
			}
			if err := c.server.upstream.Cancel(ctx, c.route, packet); err != nil || !again {
				return err
			}
			// PostgreSQL ignores a cancel signal while it reads the statement.
			answered, pause = answers, time.After(cancelRetryInterval)
		case session.AwaitsHold:
			if err := c.server.upstream.Cancel(ctx, c.route, packet); err != nil || held {
				return err
			}
			again = true
		}
		select {
		case <-turns:
		case <-pause:
		case <-c.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
