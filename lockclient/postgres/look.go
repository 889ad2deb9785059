package postgres

import (
	"context"
	_ "embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

//go:embed sql/look.sql
var lookSQL string

var _ lockclient.Looker = (*Store)(nil)

// Look implements lockclient.Looker.
func (s *Store) Look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	var holder string
	var left int64
	err := s.pool.QueryRow(ctx, lookSQL, []byte(resource)).Scan(&holder, &left)
	if errors.Is(err, pgx.ErrNoRows) {
		return lockclient.Attempt{}, nil
	} else if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "looking at the lease of", resource, err)
	}
	return lockclient.Attempt{Holder: holder, Remaining: max(0, time.Duration(left)*time.Microsecond)}, nil
}

// Free implements lockclient.Looker. wirefence.revoke frees the lease itself, in its own
// database, so Free only finds out whether it has.
func (s *Store) Free(ctx context.Context, resource fence.Resource, holder string) (bool, error) {
	seen, err := s.Look(ctx, resource)
	if err == nil && seen.Holder == holder {
		err = s.fail(ctx, "freeing the lease of", resource, errors.New("wirefence.revoke has left it"))
	}
	return false, err
}
