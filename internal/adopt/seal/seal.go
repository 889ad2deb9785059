// Package seal records the grant of an adopted lock in all databases.
//
// Of this module it imports fence, lockclient, internal/adopt and internal/committed.
package seal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/committed"
	"github.com/wirefence/wirefence/lockclient"
)

// Rounds bounds the number of seals of a grant whose token is too low, as in lockclient.
const Rounds = 8

// Everywhere returns 0 if the grant was sealed in all databases, otherwise the token that the next
// one must exceed. The first database that fails ends the wait of the others.
func Everywhere(ctx context.Context, sealers []lockclient.Sealer, grant fence.Grant) (last fence.Token, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, sealer := range sealers {
		all.Go(func() {
			behind, failed := in(ctx, sealer, grant)
			mu.Lock()
			defer mu.Unlock()
			if last = max(last, behind); failed != nil && err == nil {
				err = failed
				cancel(failed)
			}
		})
	}
	all.Wait()
	return last, err
}

func in(ctx context.Context, sealer lockclient.Sealer, grant fence.Grant) (behind fence.Token, err error) {
	sealed, err := sealer.Seal(ctx, grant.Resource, grant.Token, grant.Holder)
	if err != nil || sealed {
		return 0, err
	}
	last, err := sealer.LastToken(ctx, grant.Resource)
	return max(last, grant.Token), err
}

// Options are those of what follows locks that the application has in PostgreSQL.
type Options struct {
	// Locks are those that the application takes, of one kind. Required.
	Locks adopt.From
	// Pool connects to the database of the locks, as a role with wirefence_issuer. Required.
	Pool *pgxpool.Pool
	// Sealers record each grant in further databases. Default: none.
	Sealers []lockclient.Sealer
	// Book gets the leases. Required.
	Book *adopt.Book
	// Holder is the name of the application in grants. Required.
	Holder string
	// Timeout limits a look with its seals. Default 15s.
	Timeout time.Duration
	// Logger is for grants. Default: none.
	Logger *slog.Logger
}

// WithDefaults returns the options with what isn't set.
func (o Options) WithDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = 15 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Still is whether the application still has a lock, as an SQL expression. Args are its parameters, $5 and
// on.
type Still struct {
	SQL  string
	Args []any
}

// Adopt counts and seals the next token of a lock's resource, in its database and in others, and begins its
// lease. The token has the source of those that wirefence.acquire counts. It is 0 for a lock that the
// application has no more, and for a lease that is over already.
func (o Options) Adopt(ctx context.Context, lock adopt.Lock, still Still, until time.Time) (fence.Token, error) {
	own := ownSealer{lockclient.PostgresSealer{Querier: o.Pool}, o.Pool, still}
	last, err := own.LastToken(ctx, lock.Resource)
	for range Rounds {
		if err != nil {
			break
		}
		token := last + 1
		last, err = Everywhere(ctx, append([]lockclient.Sealer{own}, o.Sealers...), fence.Grant{Resource: lock.Resource, Token: token, Holder: o.Holder})
		if err != nil || last > 0 {
			continue
		}
		if !o.Book.Begin(adopt.Lease{Resource: lock.Resource, Token: token, Source: fence.SourcePostgres, Holder: o.Holder, From: lock.String(), Until: until}) {
			return 0, nil
		}
		o.Logger.Debug("adopted a lock", "lock", lock.String(), "resource", lock.Resource, "token", token)
		return token, nil
	}
	switch {
	case errors.Is(err, errGone):
		o.Logger.Info("a lock was released while its grant was sealed", "lock", lock.String(), "resource", lock.Resource)
		return 0, nil
	case err == nil:
		err = fmt.Errorf("another token was recorded meanwhile, %d times", Rounds)
	}
	o.Logger.Warn("cannot seal the grant of a lock, ending its session", "lock", lock.String(), "resource", lock.Resource, "error", err)
	return 0, fmt.Errorf("%s: %w", lock, err)
}

var errGone = errors.New("the application has the lock no more")

// ownSealer seals in the database of a lock, by a statement that then looks once more whether the
// application has it: if not, the cast to bool fails, and with it the seal. So grants have the order of the
// locks: the seal of a holder that takes the lock after that look waits for this one's commit.
type ownSealer struct {
	lockclient.PostgresSealer
	pool  *pgxpool.Pool
	still Still
}

func (s ownSealer) Seal(ctx context.Context, resource fence.Resource, token fence.Token, holder string) (bool, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	sql := "SELECT w.sealed, (CASE WHEN w.sealed AND NOT " + s.still.SQL + " THEN '" + errGone.Error() + "' ELSE 'true' END)::pg_catalog.bool FROM" +
		" (SELECT wirefence.seal(pg_catalog.convert_from($1::pg_catalog.bytea, 'UTF8'), $2, $3, $4) AS sealed OFFSET 0) w"
	row, err := committed.Row(ctx, conn.Conn(), sql, append([]any{[]byte(resource), int64(token), holder, string(fence.SourcePostgres)}, s.still.Args...)...)
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == "22P02" && strings.Contains(refused.Message, errGone.Error()) {
		return false, errGone
	}
	return err == nil && string(row[0]) == "t", err
}
