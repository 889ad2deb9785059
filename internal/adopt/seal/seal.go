// Package seal records the grant of an adopted lock in all databases.
//
// Of this module it imports fence, lockclient and internal/committed.
package seal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
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

// Lock is a lock that the application has in PostgreSQL. Its tokens are counted as wirefence.acquire counts
// them, and have that source.
type Lock struct {
	// Pool connects to its database, as a role with wirefence_issuer.
	Pool *pgxpool.Pool
	// Still is an SQL expression: whether the application still has it. Args are its parameters, $5 and on.
	Still string
	Args  []any
}

// ErrGone is the error for a lock that was released while its grant was sealed.
var ErrGone = errors.New("the application has the lock no more")

// Count seals the grant of a lock with the next token of a resource, in its database and in others.
func (l Lock) Count(ctx context.Context, others []lockclient.Sealer, resource fence.Resource, holder string) (fence.Token, error) {
	own := ownSealer{lockclient.PostgresSealer{Querier: l.Pool}, l}
	last, err := own.LastToken(ctx, resource)
	if err != nil {
		return 0, err
	}
	for range Rounds {
		token := last + 1
		last, err = Everywhere(ctx, append([]lockclient.Sealer{own}, others...), fence.Grant{Resource: resource, Token: token, Holder: holder})
		if err != nil || last == 0 {
			return token, err
		}
	}
	return 0, fmt.Errorf("another token was recorded meanwhile, %d times", Rounds)
}

// ownSealer seals in the database of a lock, by a statement that then looks once more whether the
// application has it: if not, the cast to bool fails, and with it the seal. So grants have the order of the
// locks: whoever takes the lock after that look waits, with its own seal, for this one's commit.
type ownSealer struct {
	lockclient.PostgresSealer
	lock Lock
}

func (s ownSealer) Seal(ctx context.Context, resource fence.Resource, token fence.Token, holder string) (bool, error) {
	conn, err := s.lock.Pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	sql := "SELECT w.sealed, (CASE WHEN w.sealed AND NOT " + s.lock.Still + " THEN '" + ErrGone.Error() + "' ELSE 'true' END)::pg_catalog.bool FROM" +
		" (SELECT wirefence.seal(pg_catalog.convert_from($1::pg_catalog.bytea, 'UTF8'), $2, $3, $4) AS sealed OFFSET 0) w"
	row, err := committed.Row(ctx, conn.Conn(), sql, append([]any{[]byte(resource), int64(token), holder, string(fence.SourcePostgres)}, s.lock.Args...)...)
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) && refused.Code == "22P02" && strings.Contains(refused.Message, ErrGone.Error()) {
		return false, ErrGone
	}
	return err == nil && string(row[0]) == "t", err
}
