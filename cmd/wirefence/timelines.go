package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// timelines is the highest timeline of each cluster that was seen, by its system
// identifier. A primary on a lower one was left behind by a promotion: what is sealed there
// counts nowhere else. Safe for concurrent use.
type timelines struct {
	mu      sync.Mutex
	highest map[string]uint32
}

// seen is what this process has seen, by the proxy's sessions and by its own connections.
var seen timelines

func (t *timelines) see(system string, timeline uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.highest == nil {
		t.highest = map[string]uint32{}
	}
	t.highest[system] = max(t.highest[system], timeline)
}

func (t *timelines) of(system string) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.highest[system]
}

// site is where a connection leads.
type site struct {
	system   string
	timeline uint32
}

func (t *timelines) leftBehind(p site) error {
	if highest := t.of(p.system); p.timeline < highest {
		return fmt.Errorf("the server is a primary on timeline %d, but timeline %d was seen", p.timeline, highest)
	}
	return nil
}

// siteKey is where a connection's own data has its site.
const siteKey = "wirefence site"

// A standby has no timeline of its own, and functions of the log fail there. So they do
// on services that have none, of which nothing is to be known.
const siteSQL = `SELECT (pg_catalog.pg_control_system()).system_identifier, CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
	ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END`

// whereabouts asks a server where it stands; false if that isn't to be known.
func whereabouts(ctx context.Context, conn *pgconn.PgConn) (site, bool) {
	answer := conn.ExecParams(ctx, siteSQL, nil, nil, nil, nil).Read()
	if answer.Err != nil || len(answer.Rows) != 1 || len(answer.Rows[0]) != 2 {
		return site{}, false
	}
	timeline, err := strconv.ParseUint(string(answer.Rows[0][1]), 16, 32)
	return site{string(answer.Rows[0][0]), uint32(timeline)}, err == nil
}

// keepAbreast lets a pool of several hosts make and keep no connection to a primary that
// was left behind.
func (t *timelines) keepAbreast(cfg *pgxpool.Config) {
	others := false
	for _, f := range cfg.ConnConfig.Fallbacks {
		others = others || f.Host != cfg.ConnConfig.Host || f.Port != cfg.ConnConfig.Port
	}
	if !others {
		return
	}
	validate := cfg.ConnConfig.ValidateConnect
	cfg.ConnConfig.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, conn); err != nil {
				return err
			}
		}
		p, known := whereabouts(ctx, conn)
		if !known {
			return nil
		}
		t.see(p.system, p.timeline)
		conn.CustomData()[siteKey] = p
		return t.leftBehind(p)
	}
	cfg.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		p, known := conn.PgConn().CustomData()[siteKey].(site)
		return !known || t.leftBehind(p) == nil, nil
	}
}
