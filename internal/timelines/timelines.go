// Package timelines detects a primary that a promotion has left behind: each promotion
// begins a higher timeline (documentation, "Timelines").
package timelines

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// Place is a server's cluster and timeline.
type Place struct {
	System   string // the system identifier of its cluster
	Primary  bool
	Timeline uint32 // of a primary
}

// A server in recovery has no timeline of its own, and the function fails there.
const placeSQL = `SELECT (pg_catalog.pg_control_system()).system_identifier, CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
	ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END`

// Ask asks the connection's server. Some managed services don't answer.
func Ask(ctx context.Context, conn *pgconn.PgConn) (Place, error) {
	answer := conn.ExecParams(ctx, placeSQL, nil, nil, nil, nil).Read()
	if answer.Err != nil {
		return Place{}, answer.Err
	}
	if len(answer.Rows) != 1 || len(answer.Rows[0]) != 2 {
		return Place{}, errors.New("the server doesn't say which timeline it is on")
	}
	p := Place{System: string(answer.Rows[0][0])}
	if hex := string(answer.Rows[0][1]); hex != "" {
		timeline, err := strconv.ParseUint(hex, 16, 32)
		if err != nil {
			return Place{}, fmt.Errorf("the server's timeline: %w", err)
		}
		p.Primary, p.Timeline = true, uint32(timeline)
	}
	return p, nil
}

// Seen records the highest timeline of each cluster. The zero value is empty. Safe for concurrent
// use.
type Seen struct {
	mu      sync.Mutex
	highest map[string]uint32 // by system identifier
}

// See records the timeline of a primary.
func (s *Seen) See(p Place) {
	if !p.Primary {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.highest == nil {
		s.highest = map[string]uint32{}
	}
	s.highest[p.System] = max(s.highest[p.System], p.Timeline)
}

// Behind returns an error for a primary on a lower timeline than one that was seen: its
// commits exist nowhere else.
func (s *Seen) Behind(p Place) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if highest := s.highest[p.System]; p.Primary && p.Timeline < highest {
		return fmt.Errorf("the server is a primary on timeline %d, but timeline %d was seen", p.Timeline, highest)
	}
	return nil
}
