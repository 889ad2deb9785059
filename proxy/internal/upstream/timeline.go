package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Standing is what a server said of itself when it was asked last.
type Standing struct {
	Known    bool
	Primary  bool
	System   string // the system identifier of its cluster
	Timeline uint32 // of a primary; each promotion begins a higher one
	Err      error  // why it couldn't be asked since
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

// timelines remembers the highest timeline that any server of a cluster was seen on.
// Safe for concurrent use.
type timelines struct {
	mu      sync.Mutex
	highest map[string]uint32 // by system identifier
}

func (t *timelines) see(s Standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.highest == nil {
		t.highest = map[string]uint32{}
	}
	if s.Primary {
		t.highest[s.System] = max(t.highest[s.System], s.Timeline)
	}
}

func (t *timelines) of(system string) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.highest[system]
}

// Watches reports whether servers are asked for their timelines: where there are several,
// and a way to ask.
func (u *Upstream) Watches() bool { return u.probe != nil && len(u.Hosts) > 1 }

// Standing is what the host said of itself last.
func (h *Host) Standing() Standing {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.standing
}

// Behind returns an error if the host is a primary on a lower timeline than one that was
// seen: another server was promoted since, and what is committed here is lost.
func (u *Upstream) Behind(h *Host) error {
	s := h.Standing()
	if highest := u.timelines.of(s.System); s.Primary && s.Timeline < highest {
		return fmt.Errorf("%s is a primary on timeline %d, but timeline %d was seen", h, s.Timeline, highest)
	}
	return nil
}

// BehindNow is Behind, and asks a host that hasn't been asked yet.
func (u *Upstream) BehindNow(ctx context.Context, h *Host) error {
	if !u.Watches() {
		return nil
	}
	if !h.Standing().Known {
		_ = u.withConn(ctx, h, func(conn *pgconn.PgConn) error { return u.look(ctx, h, conn) })
	}
	return u.Behind(h)
}

// Interval is how often a server is asked.
const Interval = time.Second

// Watch asks all servers again and again, until ctx ends, and calls news after each answer
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
						if err := u.look(ctx, h, conn); err != nil {
							return err
						}
						tell(was)
						if !rest(ctx) {
							return ctx.Err()
						}
					}
				})
				if ctx.Err() == nil {
					was := h.Standing()
					h.unknown(err)
					tell(was)
				}
				rest(ctx)
			}
		})
	}
	asking.Wait()
}

func rest(ctx context.Context) bool {
	timer := time.NewTimer(Interval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (h *Host) unknown(err error) {
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

// A server in recovery has no timeline of its own, and the function fails there.
const standingSQL = `SELECT (pg_catalog.pg_control_system()).system_identifier, CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
	ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END`

// look asks a server, and notes what it says.
func (u *Upstream) look(ctx context.Context, h *Host, conn *pgconn.PgConn) error {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	answer := conn.ExecParams(ctx, standingSQL, nil, nil, nil, nil).Read()
	if answer.Err != nil {
		return answer.Err
	}
	if len(answer.Rows) != 1 || len(answer.Rows[0]) != 2 {
		return errors.New("the server doesn't say which timeline it is on")
	}
	s := Standing{Known: true, System: string(answer.Rows[0][0])}
	if hex := string(answer.Rows[0][1]); hex != "" {
		timeline, err := strconv.ParseUint(hex, 16, 32)
		if err != nil {
			return fmt.Errorf("the server's timeline: %w", err)
		}
		s.Primary, s.Timeline = true, uint32(timeline)
	}
	u.timelines.see(s)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing = s
	return nil
}
