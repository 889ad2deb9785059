package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
)

// forwardCancel passes a CancelRequest on to the server of the session that it
// names, encrypted as the session is. A session that isn't ours may be one of a
// process that served here before: then every server is told, of which only the
// right one knows the key. The client's connection stays open until the server
// has closed its own, which says that the signal is sent: what the client sends
// next can't be hit.
func (s *Server) forwardCancel(ctx context.Context, packet []byte) error {
	s.metrics.cancels.Inc()
	if c, ok := s.keys.Load(string(packet[8:])); ok {
		return c.(*conn).cancel(ctx, packet)
	}
	var failures []error
	told := map[*upstream.Host]bool{}
	for _, r := range s.upstream.Routes(upstream.Any, "") {
		if told[r.Host] {
			continue
		}
		err := s.upstream.Cancel(ctx, r, packet)
		told[r.Host] = err == nil
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// A cancel request behind a hold is sent again and again until the client's statement
// has been answered, but so often at most.
const (
	betweenTries = 20 * time.Millisecond
	mostTries    = 50
)

// cancel passes a CancelRequest on when the server is at work for the client, and
// not for the proxy: a question of the proxy's own is not the client's to cancel,
// but for one that waits for a takeover, and the client's statement with it. Where
// nothing of the client's is under way there is nothing to cancel.
func (c *conn) cancel(ctx context.Context, packet []byte) error {
	again, tries, answered := false, 0, uint32(0)
	for {
		turn, held, answers := session.NobodysTurn, false, uint32(0)
		var turns chan struct{}
		c.withCore(func(core *session.Session) {
			turn, held, answers = core.Turn(), core.Held(), core.Answers()
			if turn == session.HoldsTurn || turn == session.ProxysTurn {
				if c.turns == nil {
					c.turns = make(chan struct{})
				}
				turns = c.turns
			}
		})
		var pause <-chan time.Time
		switch turn {
		case session.NobodysTurn:
			return nil
		case session.ClientsTurn:
			if tries++; tries > mostTries || answered != 0 && answered != answers {
				return nil
			}
			if err := c.server.upstream.Cancel(ctx, c.route, packet); err != nil || !again {
				return err
			}
			// PostgreSQL ignores it while it reads the statement, which it may just do.
			answered, pause = answers, time.After(betweenTries)
		case session.HoldsTurn:
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
