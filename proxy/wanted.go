package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// wantedSQL asks which of the locks that sessions hold are wanted by a takeover. An answer
// in time lets the sessions keep their holds; without one each hold ends by itself.
const wantedSQL = `SELECT wirefence.identity(), wirefence.wanted($1::bigint[])`

// wantedEvery is the time between two questions, and wantedTimeout how long one may take.
const (
	wantedEvery   = 20 * time.Millisecond
	wantedTimeout = time.Second
)

// wantedPoll is the question for all resources that sessions hold in the database of the
// issuer's connection.
func (s *Server) wantedPoll() poll {
	var database string
	var keys []int64
	return poll{
		ask: func(ctx context.Context, db *pgx.Conn) error {
			if database == "" {
				if err := db.QueryRow(ctx, "SELECT pg_catalog.current_database()::pg_catalog.text").Scan(&database); err != nil {
					return err
				}
				s.databases.SetLasting(database, true)
				return nil
			}
			var server string
			var wanted []int64
			sent := time.Now()
			if err := db.QueryRow(ctx, wantedSQL, keys).Scan(&server, &wanted); err != nil {
				return err
			}
			news, elsewhere := s.databases.Answered(database, server, keys, wanted, sent)
			if news {
				s.holdReleaser.hurry()
			}
			if elsewhere {
				return fmt.Errorf("the server there, %s, is not the one where sessions hold", server)
			}
			return nil
		},
		timeout: wantedTimeout,
		next: func() time.Duration {
			if keys = s.databases.Held(database, keys[:0]); len(keys) == 0 {
				return -1
			}
			return wantedEvery
		},
		failed:  func() { s.databases.SetLasting(database, false) },
		wake:    s.databases.Holding(),
		failing: "cannot ask whether a takeover waits, retrying: log in to WIREFENCE_DATABASE_URL by hand, and mend what fails there. Until then busy sessions are checked once in WIREFENCE_HOLD",
		working: "asking whether a takeover waits again",
	}
}
