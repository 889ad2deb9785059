package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/timelines"
)

// Standing is a server's role and timeline, by its last answer.
type Standing struct {
	timelines.Place
	Known bool
	Err   error // of asking it since then
}

func (s Standing) String() string {
	text := "unknown"
	switch {
	case s.Primary:
		text = fmt.Sprintf("primary, timeline %d", s.Timeline)
	case s.Known:
		text = "standby"
	}
	if s.Err != nil {
		text += ", not to be asked"
	}
	return text
}

// Watches reports whether servers are asked for their timelines: with several hosts and a
// ProbeURL.
func (u *Upstream) Watches() bool { return u.probe != nil && len(u.Hosts) > 1 }

// Standing returns the host's last known standing.
func (h *Host) Standing() Standing {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.standing
}

// Behind returns an error if the host is a primary that a promotion has left behind, by its
// timeline or by the witness.
func (u *Upstream) Behind(h *Host) error {
	if err := u.seen.Behind(h.Standing().Place); err != nil {
		return fmt.Errorf("%s: %w", h, err)
	}
	return u.superseded(h)
}

// BehindNow is Behind, but first asks a host that has not been asked yet.
func (u *Upstream) BehindNow(ctx context.Context, h *Host) error {
	if !u.Watches() {
		return nil
	}
	if s := h.Standing(); !s.Known && s.Err == nil {
		_ = u.withConn(ctx, h, func(conn *pgconn.PgConn) error { return u.updateStanding(ctx, h, conn) })
	}
	return u.Behind(h)
}

// Interval is how often a server is asked.
const Interval = time.Second

// Watch asks all servers each Interval, until ctx ends. It calls news after each answer
// and each failure, for one host at a time.
func (u *Upstream) Watch(ctx context.Context, news func(h *Host, was, is Standing)) {
	var asking sync.WaitGroup
	var telling sync.Mutex
	for _, h := range u.Hosts {
		asking.Go(func() {
			tell := func(was Standing) {
				telling.Lock()
				defer telling.Unlock()
				news(h, was, h.Standing())
			}
			for ctx.Err() == nil {
				err := u.withConn(ctx, h, func(conn *pgconn.PgConn) error {
					for {
						was := h.Standing()
						if err := u.updateStanding(ctx, h, conn); err != nil {
							return err
						}
						tell(was)
						if !sleepInterval(ctx) {
							return ctx.Err()
						}
					}
				})
				if ctx.Err() == nil {
					was := h.Standing()
					h.setProbeError(err)
					tell(was)
				}
				sleepInterval(ctx)
			}
		})
	}
	asking.Wait()
}

func sleepInterval(ctx context.Context) bool {
	timer := time.NewTimer(Interval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (h *Host) setProbeError(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing.Err = err
}

// withConn logs in at a host, by the first of its routes that works.
func (u *Upstream) withConn(ctx context.Context, h *Host, do func(*pgconn.PgConn) error) error {
	var failures []error
	for _, r := range u.routesTo(h) {
		within, cancel := context.WithTimeout(ctx, u.timeout)
		conn, err := u.probe.connect(within, func(ctx context.Context) (net.Conn, error) { return u.Dial(ctx, r) })
		cancel()
		if err == nil {
			defer conn.Close(context.WithoutCancel(ctx))
			return do(conn)
		}
		failures = append(failures, err)
		if down := (*UnreachableError)(nil); errors.As(err, &down) || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failures...)
}

// updateStanding asks a server for its timeline, and records the answer.
func (u *Upstream) updateStanding(ctx context.Context, h *Host, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	place, err := timelines.Ask(ctx, conn)
	if err != nil {
		return err
	}
	u.seen.See(place)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing = Standing{Place: place, Known: true}
	return nil
}
