// Package postgres keeps leases in PostgreSQL itself, in the database whose
// writes are fenced, so that no other server is needed.
//
// It calls the functions wirefence.acquire, renew and release. Programs in other
// languages can call them, too, and share the leases with this package. An acquire
// wins the lease and seals the grant in one transaction. So a lockclient.Client on this
// store needs no Sealer, takes one round trip, and never returns a token twice, whatever
// the server loses in a crash: leases are in an unlogged table, tokens are not.
package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/committed"
	"github.com/wirefence/wirefence/lockclient"
)

var (
	//go:embed sql/acquire.sql
	acquireSQL string
	//go:embed sql/renew.sql
	renewSQL string
	//go:embed sql/release.sql
	releaseSQL string
	//go:embed sql/raise.sql
	raiseSQL string
)

// SQLSTATEs that get an explanation of their own.
const (
	noFurtherToken    = "22003" // raised by wirefence.acquire
	undefinedFunction = "42883" // a schema without leases
	noSuchSchema      = "3F000"
)

// Store is a lease store in PostgreSQL. It is safe for concurrent use.
//
// An acquire that wins waits for open transactions with an older token, and terminates
// them after the resource's preempt_after (5 s by default). The client limits it to
// Options.TTL less Options.Margin: if that is less than preempt_after, acquires fail
// while such a transaction is open.
type Store struct {
	pool    *pgxpool.Pool
	address string
	notices *lockclient.Notices
}

var (
	_ lockclient.Store    = (*Store)(nil)
	_ lockclient.Notifier = (*Store)(nil)
	_ lockclient.Record   = (*Store)(nil)
)

// New makes a store on a pool, which the caller still owns. The role of the pool must
// have wirefence_issuer. The store uses a connection for each call in progress, and
// renewals wait if all connections are busy: give the pool more connections than there
// are concurrent acquires. Waiters use one further connection, which leaves the pool. A password
// that changes is the pool's: pgxpool.Config.BeforeConnect sets it for each connection.
//
// Options.Sealers of the client are for further databases that the holder writes to: in this
// one the token is sealed when the store returns it.
func New(pool *pgxpool.Pool) *Store {
	c := pool.Config().ConnConfig
	s := &Store{pool: pool, address: net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	s.notices = lockclient.NewNotices(s.listen)
	return s
}

// Close returns when no goroutine of the store runs any more; the pool stays open. The
// lockclient.Client on the store must be closed before.
func (s *Store) Close() error {
	s.notices.Wait()
	return nil
}

// Acquire implements lockclient.Store. The token is sealed when it returns.
func (s *Store) Acquire(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (lockclient.Attempt, error) {
	attempt, err := s.acquire(ctx, resource, grant, ttl)
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "acquiring the lease of", resource, err)
	}
	return attempt, nil
}

// acquire returns a grant only if it is as durable as the server's settings promise.
func (s *Store) acquire(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (lockclient.Attempt, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return lockclient.Attempt{}, err
	}
	defer conn.Release()
	row, err := committed.Row(ctx, conn.Conn(), acquireSQL, []byte(resource), lockclient.HolderOf(grant), microseconds(ttl), grant)
	if err != nil {
		return lockclient.Attempt{}, err
	}
	if row[0] != nil {
		token, err := strconv.ParseInt(string(row[0]), 10, 64)
		return lockclient.Attempt{Token: fence.Token(token)}, err
	}
	if len(row[1]) == 0 {
		return lockclient.Attempt{Holder: "another, being granted"}, nil
	}
	left, err := strconv.ParseInt(string(row[2]), 10, 64)
	return lockclient.Attempt{Holder: string(row[1]), Remaining: max(0, time.Duration(left)*time.Microsecond)}, err
}

// Renew implements lockclient.Store.
func (s *Store) Renew(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (held bool, err error) {
	if err := s.pool.QueryRow(ctx, renewSQL, []byte(resource), grant, microseconds(ttl)).Scan(&held); err != nil {
		return false, s.fail(ctx, "renewing the lease of", resource, err)
	}
	return held, nil
}

// Release implements lockclient.Store.
func (s *Store) Release(ctx context.Context, resource fence.Resource, grant string) (held bool, err error) {
	if err := s.pool.QueryRow(ctx, releaseSQL, []byte(resource), grant).Scan(&held); err != nil {
		return false, s.fail(ctx, "releasing the lease of", resource, err)
	}
	return held, nil
}

// Raise implements lockclient.Store. PostgreSQL refuses all tokens up to the given one
// from then on.
func (s *Store) Raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	if _, err := s.pool.Exec(ctx, raiseSQL, []byte(resource), int64(token)); err != nil {
		return s.fail(ctx, "raising the token of", resource, err)
	}
	return nil
}

// LastGrant implements lockclient.Record.
func (s *Store) LastGrant(ctx context.Context, resource fence.Resource) (fence.Grant, error) {
	last, err := fence.LastGrant(ctx, s.pool, resource)
	if err != nil {
		return fence.Grant{}, s.fail(ctx, "reading the last grant of", resource, err)
	}
	return last, nil
}

// fail adds to an error what failed and where. If the context has ended, its error is in
// the chain, whatever the driver or the server reported.
func (s *Store) fail(ctx context.Context, doing string, resource fence.Resource, err error) error {
	if refusal := (*pgconn.PgError)(nil); errors.As(err, &refusal) {
		switch refusal.Code {
		case noFurtherToken:
			err = fmt.Errorf("%w: %w", lockclient.ErrCounter, err)
		case undefinedFunction, noSuchSchema:
			err = fmt.Errorf("the database lacks the wirefence schema, or has it in an older version: run `wirefence migrate`: %w", err)
		}
	}
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w (%w)", ctxErr, err)
	}
	return fmt.Errorf("PostgreSQL at %s: %s %q: %w", s.address, doing, resource, err)
}

// microseconds rounds up: a lease must not end in the store before its ttl.
func microseconds(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}
