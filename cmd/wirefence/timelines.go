package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/timelines"
)

// seen are the timelines that this process has seen, by the proxy's watch and by its own
// connections.
var seen timelines.Seen

// see records a timeline that the proxy's watch has seen.
func see(system string, timeline uint32) {
	seen.See(timelines.Place{System: system, Primary: true, Timeline: timeline})
}

// placeKey is the key of a connection's timelines.Place in its custom data.
const placeKey = "wirefence place"

// refuseFormerPrimary lets a pool of several hosts make and keep no connection to a primary
// that a promotion left behind. It accepts a server that doesn't tell its timeline.
func refuseFormerPrimary(cfg *pgxpool.Config) {
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
		p, err := timelines.Ask(ctx, conn)
		if err != nil {
			return nil
		}
		seen.See(p)
		conn.CustomData()[placeKey] = p
		return seen.Behind(p)
	}
	cfg.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) {
		p, known := conn.PgConn().CustomData()[placeKey].(timelines.Place)
		return !known || seen.Behind(p) == nil, nil
	}
}
