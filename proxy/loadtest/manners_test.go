//go:build linux

package loadtest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
)

// errWrong is what must not happen whatever the server does.
var errWrong = errors.New("wrong")

type manner struct {
	name string
	do   func(ctx context.Context, s *soak, conn *pgx.Conn, r *rand.Rand) error
}

// manners are what clients do. An error that isn't errWrong may come of a server
// that goes away.
var manners = [...]manner{
	{"queries", queries},
	{"writes with the token", current},
	{"writes with the token, busy", busy},
	{"writes with a stale token", stale},
	{"transactions", transaction},
	{"cancelled queries", cancelled},
	{"COPY in", copyIn},
	{"COPY out", copyOut},
	{"resets", reset},
	{"half-closed sockets", halfClosed},
	{"thinking between queries", slow},
	{"answers read slowly", slowReader},
}

// thinking is the place of the slow ones.
var thinking = slices.IndexFunc(manners[:], func(m manner) bool { return m.name == "thinking between queries" })

func (s *soak) act(manner int, r *rand.Rand) error {
	ctx, stop := context.WithTimeout(context.Background(), stack.Patience+2*s.think)
	defer stop()
	conn, err := s.connect(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return manners[manner].do(ctx, s, conn, r)
}

func queries(ctx context.Context, _ *soak, conn *pgx.Conn, r *rand.Rand) error {
	for range r.IntN(5) + 1 {
		want := r.IntN(1000)
		var got int
		if err := conn.QueryRow(ctx, "SELECT $1::int", want).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%w: %d comes back as %d", errWrong, want, got)
		}
	}
	return nil
}

// insertUnder is a write under a token, whose comment carries it.
func insertUnder(token int64) string {
	return fmt.Sprintf("INSERT INTO jobs VALUES ('B', %d) /*wirefence.token='orders=%[1]d'*/", token)
}

func current(ctx context.Context, s *soak, conn *pgx.Conn, _ *rand.Rand) error {
	token := s.current.Load()
	_, err := conn.Exec(ctx, insertUnder(token))
	if err == nil {
		s.fenced.Add(1)
	}
	return s.superseded(token, err)
}

// superseded is the error of a write under a token, unless a takeover may be its reason.
func (s *soak) superseded(token int64, err error) error {
	switch {
	case !fence.IsStale(err):
		return err
	case s.next.Load() > token:
		return nil
	}
	return fmt.Errorf("%w: a current token was refused: %w", errWrong, err)
}

// busy writes so fast that its fence is held, does what needs a hold, releases it, and
// leaves it to the proxy to give the last one back.
func busy(ctx context.Context, s *soak, conn *pgx.Conn, r *rand.Rand) error {
	token := s.current.Load()
	insert := fmt.Sprintf("INSERT INTO public.jobs VALUES ('B', %d)", token)
	for _, sql := range []string{
		fmt.Sprintf("SET wirefence.token = 'orders=%d'", token), insert, insert,
		"DO $$BEGIN " + insert + "; COMMIT; END$$", "SELECT pg_advisory_unlock_all()", insert, insert,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return s.superseded(token, err)
		}
	}
	if r.IntN(2) == 0 {
		return nil // holding
	}
	return releases(ctx, conn)
}

// releases waits until an idle session's locks are given back.
func releases(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, "RESET wirefence.token")
	for held := true; err == nil && held; {
		err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), pg_sleep(0.01)::text").Scan(&held, nil)
	}
	return err
}

func stale(ctx context.Context, s *soak, conn *pgx.Conn, _ *rand.Rand) error {
	_, err := conn.Exec(ctx, insertUnder(s.current.Load()-1))
	switch {
	case err == nil:
		return fmt.Errorf("%w: a stale token was accepted", errWrong)
	case fence.IsStale(err):
		return nil
	}
	return err
}

func transaction(ctx context.Context, _ *soak, conn *pgx.Conn, r *rand.Rand) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO jobs (worker) VALUES ('C')"); err != nil {
		return err
	}
	switch r.IntN(3) {
	case 0:
		return tx.Commit(ctx)
	case 1:
		return tx.Rollback(ctx)
	}
	return nil // it leaves in the middle
}

func cancelled(ctx context.Context, _ *soak, conn *pgx.Conn, _ *rand.Rand) error {
	began := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_sleep(3600)") // in a crowd a request takes its time
		began <- err
	}()
	for {
		if err := conn.PgConn().CancelRequest(ctx); err != nil {
			return errors.Join(err, <-began)
		}
		select { // a request that comes before its query hits nothing
		case err := <-began:
			if err == nil {
				return fmt.Errorf("%w: the query was not cancelled", errWrong)
			}
			if strings.Contains(err.Error(), "57014") {
				return nil
			}
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func copyIn(ctx context.Context, _ *soak, conn *pgx.Conn, r *rand.Rand) error {
	rows := 1 + r.IntN(3000)
	n, err := conn.CopyFrom(ctx, pgx.Identifier{"jobs"}, []string{"worker"}, pgx.CopyFromSlice(rows, func(int) ([]any, error) {
		return []any{strings.Repeat("d", 40)}, nil
	}))
	if err == nil && n != int64(rows) {
		return fmt.Errorf("%w: %d of %d rows were copied", errWrong, n, rows)
	}
	return err
}

func copyOut(ctx context.Context, _ *soak, conn *pgx.Conn, r *rand.Rand) error {
	var out strings.Builder
	rows := 1 + r.IntN(20000)
	_, err := conn.PgConn().CopyTo(ctx, &out, fmt.Sprintf("COPY (SELECT generate_series(1, %d)) TO STDOUT", rows))
	if n := strings.Count(out.String(), "\n"); err == nil && n != rows {
		return fmt.Errorf("%w: %d of %d rows came", errWrong, n, rows)
	}
	return err
}

// large is a query whose answer is under way for a while.
const large = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"

// reset asks for much, and is gone with a RST.
func reset(_ context.Context, _ *soak, conn *pgx.Conn, r *rand.Rand) error {
	said := conn.PgConn().Conn()
	var err error
	if r.IntN(2) == 0 {
		_, err = said.Write(query(large))
	}
	if err == nil {
		_, err = said.Write(query(large)[:5+r.IntN(len(large))])
	}
	socket := socketOf(conn)
	_ = socket.SetLinger(0)
	return errors.Join(err, socket.Close())
}

// halfClosed says no more behind its query, and reads the answer to its end.
func halfClosed(ctx context.Context, _ *soak, conn *pgx.Conn, _ *rand.Rand) error {
	socket := conn.PgConn().Conn()
	if _, err := socket.Write(query("SELECT generate_series(1, 1000)")); err != nil {
		return err
	}
	if err := socket.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	_ = socket.SetReadDeadline(deadline)
	for buf := make([]byte, 4096); ; {
		if _, err := socket.Read(buf); err != nil {
			_ = socket.Close()
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				return fmt.Errorf("%w: the socket was not closed", errWrong)
			}
			return nil
		}
	}
}

// slow thinks for seconds between its queries, in a transaction or not.
func slow(ctx context.Context, s *soak, conn *pgx.Conn, r *rand.Rand) error {
	think := func() { pause(r, s.think) }
	think()
	if r.IntN(2) == 0 {
		if err := current(ctx, s, conn, r); err != nil {
			return err
		}
		think()
		return queries(ctx, s, conn, r)
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	think()
	if err := queries(ctx, s, conn, r); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// pause waits for a random time.
func pause(r *rand.Rand, most time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(most)))) }

// slowReader takes its answer bit by bit, so that it waits in the proxy and in the server.
func slowReader(ctx context.Context, s *soak, conn *pgx.Conn, r *rand.Rand) error {
	const size = 1 << 20
	rows, err := conn.Query(ctx, "SELECT repeat('x', $1) FROM generate_series(1, 12)", size)
	if err != nil {
		return err
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		if got := len(rows.RawValues()[0]); got != size {
			return fmt.Errorf("%w: %d bytes of %d came", errWrong, got, size)
		}
		n++
		pause(r, min(s.length/100, time.Second))
	}
	if rows.Err() == nil && n != 12 {
		return fmt.Errorf("%w: %d rows of 12 came", errWrong, n)
	}
	return rows.Err()
}

// socketOf is the socket below TLS, if there is any.
func socketOf(conn *pgx.Conn) *net.TCPConn {
	if encrypted, ok := conn.PgConn().Conn().(*tls.Conn); ok {
		return encrypted.NetConn().(*net.TCPConn)
	}
	return conn.PgConn().Conn().(*net.TCPConn)
}

// query is a whole Query message.
func query(sql string) []byte {
	message, _ := (&pgproto3.Query{String: sql}).Encode(nil)
	return message
}
