package users

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/connstring"
)

// Query looks up users in the database.
type Query struct {
	text string
	pool *pgxpool.Pool
}

// queryTimeout bounds one lookup.
const queryTimeout = 10 * time.Second

// NewQuery returns a Query by the given SQL, which takes the user's name as $1 and returns
// at most one row: the name, and the stored password as in pg_authid. url is the connection
// string of the proxy's own role. It opens no connection yet.
func NewQuery(url, text string) (*Query, error) {
	cfg, err := connstring.Pool(url)
	if err != nil {
		return nil, err
	}
	cfg.MinConns, cfg.MaxConns = 0, 4
	cfg.MaxConnIdleTime = 5 * time.Minute
	// A pooler may stand before the database, so use no named prepared statements.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "wirefence"
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	return &Query{text: text, pool: pool}, nil
}

func (q *Query) lookup(ctx context.Context, user string) (*Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var name string
	var stored *string
	err := q.pool.QueryRow(ctx, q.text, user).Scan(&name, &stored)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrUnknown
	case err != nil:
		return nil, fmt.Errorf("asking for the user's secret: %w", err)
	case name != user || stored == nil || *stored == "":
		return nil, ErrUnknown
	}
	return newEntry(*stored)
}
