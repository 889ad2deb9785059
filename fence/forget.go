package fence

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed sql/forget.sql
var forgetSQL string

//go:embed sql/forgettable.sql
var forgettableSQL string

// inUse is the SQLSTATE of a resource that can't be forgotten.
const inUse = "55000"

// Forgettable is a resource that Forget would make unknown, or, if Forgotten, has made unknown
// without removing its row yet.
type Forgettable struct {
	Resource  Resource
	LastToken Token
	Source    Source
	Forgotten bool
}

// ForgettableResources lists the resources that Forget would make unknown and whose last grant is
// at least so old, and those whose row is still to be removed. It doesn't ask other lease stores
// than PostgreSQL whether a lease is held. The role must have wirefence_issuer.
func ForgettableResources(ctx context.Context, q Querier, unusedFor time.Duration) ([]Forgettable, error) {
	rows, err := q.Query(ctx, forgettableSQL, unusedFor.Seconds())
	if err != nil {
		return nil, fmt.Errorf("list unused resources: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f Forgettable, err error) {
		var name []byte
		err = row.Scan(&name, &f.LastToken, &f.Source, &f.Forgotten)
		f.Resource = Resource(name)
		return f, err
	})
	if err != nil {
		return nil, fmt.Errorf("list unused resources: %w", err)
	}
	return all, nil
}

// Forget makes a resource unknown if last is its last token, and removes its row in a later
// call: true says that there is no row. Between the two calls, transactions that were open
// at the first one must have ended. The role must have wirefence_issuer.
//
// A caller that reads the last token, and then finds the lease free in its store, forgets no
// later grant. IsInUse tells a resource that must stay.
func Forget(ctx context.Context, q Querier, r Resource, last Token) (bool, error) {
	var removed bool
	err := q.QueryRow(ctx, forgetSQL, []byte(r), last).Scan(&removed)
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == inUse {
		return false, fmt.Errorf("forget resource %q: %w: %s", r, err, pgErr.Detail)
	} else if err != nil {
		return false, fmt.Errorf("forget resource %q: %w", r, err)
	}
	return removed, nil
}

// IsInUse reports whether err says that a resource can't be forgotten: it is used or held, an
// operator has declared or set it, or a guard can name it.
func IsInUse(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == inUse
}
