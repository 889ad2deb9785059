package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// payload returns what wirefence.release_notice returns for a resource.
func payload(resource fence.Resource) string {
	sum := sha256.Sum256([]byte(resource))
	return hex.EncodeToString(sum[:])
}

// Notify implements lockclient.Notifier. It returns before the store listens, and sends
// once when it does, since a release may have come before. There are no notices while the
// server is unreachable, or through a transaction pooler.
//
// All waiters of a store share one connection, which is open while there are waiters.
func (s *Store) Notify(_ context.Context, resource fence.Resource, released chan<- struct{}) (func(), error) {
	return s.notices.Add(payload(resource), released), nil
}

// longestPause bounds the pause before a lost connection is replaced.
const longestPause = 5 * time.Second

// listen keeps a listening connection until ctx ends.
func (s *Store) listen(ctx context.Context, n *lockclient.Notices) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, longestPause) {
		if s.follow(ctx, n) {
			pause = 50 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// follow listens on a connection until the connection or ctx ends, and reports whether it
// has listened. It ignores errors: waiters poll.
func (s *Store) follow(ctx context.Context, n *lockclient.Notices) (listened bool) {
	conn, err := s.connect(ctx)
	if err != nil {
		return false
	}
	defer closeConnection(conn)
	if _, err := conn.Exec(ctx, "LISTEN wirefence_released"); err != nil {
		return false
	}
	n.HearsAll(ctx)
	for {
		notice, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true
		}
		n.Wake(notice.Payload)
	}
}

// connect takes a connection out of the pool, which knows how to connect.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("listening for releases: %w", err)
	}
	return pooled.Hijack(), nil
}

// closeConnection returns when the driver has released the connection, too.
func closeConnection(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
	<-conn.PgConn().CleanupDone()
}
