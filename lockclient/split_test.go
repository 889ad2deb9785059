package lockclient_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

// half is one of two Redis masters in a split brain, with the clients that reach it.
type half struct {
	server *servers.Redis
	grants int
	over   bool
}

// split is a split brain in front of one PostgreSQL.
type split struct {
	halves [2]half

	mu      sync.Mutex
	change  *sync.Cond
	granted map[fence.Token]int
	written int
	refused int
}

// startSplit cuts a master from its replica, which is promoted: both start with equal
// counters.
func startSplit(t *testing.T) *split {
	t.Helper()
	ctx := t.Context()
	first := startRedis(t)
	second := stack.Started(servers.StartRedis(ctx, "--replicaof", "127.0.0.1", fmt.Sprint(first.Port), "--repl-diskless-sync-delay", "0")).EndWith(t)
	for replicas := any(nil); replicas != int64(1); { // it may still be connecting
		var err error
		if replicas, err = first.Do(ctx, "wait", 1, 100); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := second.Do(ctx, "replicaof", "no", "one"); err != nil {
		t.Fatal(err)
	}
	s := &split{halves: [2]half{{server: first}, {server: second}}, granted: map[fence.Token]int{}}
	s.change = sync.NewCond(&s.mu)
	return s
}

// hold records a grant on one side, and returns when the other side has granted, too, so
// that there are two holders.
func (s *split) hold(side int, token fence.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted[token]++
	s.halves[side].grants++
	s.change.Broadcast()
	other := &s.halves[1-side]
	for before := other.grants; other.grants == before && !other.over; {
		s.change.Wait()
	}
}

// work lets clients of both sides take turns. Each writes in its own half, before and
// after the grant of the other side.
func (s *split) work(t *testing.T, database string, sealed bool) {
	const clients, rounds = 3, 4 // of each half
	var both sync.WaitGroup
	for side := range s.halves {
		both.Go(func() {
			var all sync.WaitGroup
			for range clients {
				conn := stack.Connect(t, database)
				opts := lockclient.Options{RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond}
				if sealed {
					opts.Sealers = []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn}}
				}
				client := newClient(t, redisStore(t, s.halves[side].server), opts)
				all.Go(func() {
					for range rounds {
						if err := s.turn(t.Context(), side, client, conn); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			s.mu.Lock()
			s.halves[side].over = true
			s.change.Broadcast()
			s.mu.Unlock()
		})
	}
	both.Wait()
}

func (s *split) turn(ctx context.Context, side int, client *lockclient.Client, conn *pgx.Conn) error {
	lease, err := client.Acquire(ctx, "orders")
	if err != nil {
		return err
	}
	if err := s.write(ctx, conn, lease); err != nil {
		return err
	}
	s.hold(side, lease.Token())
	if err := s.write(ctx, conn, lease); err != nil {
		return err
	}
	return lease.Release(ctx)
}

// write is a fenced transaction.
func (s *split) write(ctx context.Context, conn *pgx.Conn, lease *lockclient.Lease) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lease.Fence().Check()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO writes VALUES ($1)", lease.Token())
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case fence.IsStale(err):
		s.refused++
	case err != nil:
		return err
	default:
		s.written++
	}
	return nil
}

// committed returns the tokens of the writes in commit order, by the write-ahead log.
func committed(t *testing.T, conn *pgx.Conn) (tokens []fence.Token) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "SELECT pg_switch_wal()"); err != nil { // what is not flushed can't be read
		t.Fatal(err)
	}
	rows, err := conn.Query(t.Context(), "SELECT data FROM pg_logical_slot_get_changes('split', NULL, NULL)")
	if err != nil {
		t.Fatal(err)
	}
	changes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		if text, ok := strings.CutPrefix(change, "table public.writes: INSERT: token[bigint]:"); ok {
			token, err := fence.ParseToken(text)
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, token)
		}
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_drop_replication_slot('split')"); err != nil {
		t.Fatal(err)
	}
	return tokens
}

// Evidence: I3
func TestTwoRedisMastersShareNoToken(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		t.Run(map[bool]string{true: "sealed", false: "not sealed"}[sealed], func(t *testing.T) {
			database, conn := startPostgres(t)
			for _, sql := range []string{"CREATE TABLE writes (token bigint)", "SELECT pg_create_logical_replication_slot('split', 'test_decoding')"} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			s := startSplit(t)
			s.work(t, database, sealed)
			tokens := committed(t, conn)
			shared := 0
			for _, times := range s.granted {
				if times > 1 {
					shared++
				}
			}
			if !sealed { // else the test would show nothing
				if shared == 0 {
					t.Error("without a seal no token was granted twice")
				}
				return
			}
			if shared != 0 {
				t.Errorf("%d tokens were granted twice", shared)
			}
			if s.refused == 0 {
				t.Error("no former holder was refused: there never were two")
			}
			if len(tokens) != s.written || s.written == 0 {
				t.Errorf("%d writes committed, %d told", len(tokens), s.written)
			}
			for i := 1; i < len(tokens); i++ {
				if tokens[i] < tokens[i-1] {
					t.Fatalf("token %d was committed after %d", tokens[i], tokens[i-1])
				}
			}
		})
	}
}
