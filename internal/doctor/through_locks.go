package doctor

import (
	"context"
	_ "embed"
	"errors"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/lockclient/finding"
)

//go:embed sql/take_session_lock.sql
var takeSessionLockSQL string

//go:embed sql/own_mark.sql
var ownMarkSQL string

//go:embed sql/release_session_lock.sql
var releaseSessionLockSQL string

//go:embed sql/listens.sql
var listensSQL string

const useLease = "take it by pg_advisory_xact_lock in the work's own transaction, or use a lease of Wirefence"

func trySessionLock(ctx context.Context, in *Input) ([]Finding, error) {
	key := rand.Int64()
	release := func(conn *pgx.Conn) error { _, err := conn.Exec(ctx, releaseSessionLockSQL, key); return err }
	leaks, lost, err := in.twoClients(ctx, func(conn *pgx.Conn) error { _, err := conn.Exec(ctx, takeSessionLockSQL, key); return err },
		func(conn *pgx.Conn) (holds bool, err error) {
			err = conn.QueryRow(ctx, ownMarkSQL, key).Scan(&holds)
			return holds, err
		}, release)
	switch {
	case err != nil:
		return nil, err
	case leaks:
		return []Finding{{Grade: Warning, Says: "a session's advisory lock that one client takes another has, too", Means: "Both work under it, and either can release it.",
			Remedy: []string{useLease}}}, nil
	case lost:
		return differs("a session's advisory lock doesn't last for its client", "A client works without the lock that it has taken.", useLease), nil
	}
	return finding.Fine("a session's advisory lock lasts for its client's session"), nil
}

func tryTransactionLock(ctx context.Context, in *Input) ([]Finding, error) {
	var all clients
	defer func() { all.close(ctx) }()
	conn, err := all.open(ctx, in, "", "")
	if err != nil {
		return nil, err
	}
	var holds bool
	key := rand.Int64()
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, takeMarkSQL, key); err != nil {
			return err
		}
		return tx.QueryRow(ctx, ownMarkSQL, key).Scan(&holds)
	})
	if err != nil || !holds {
		return differs("a transaction's advisory lock doesn't last in it", "No advisory lock works.", "use a lease of Wirefence: each of its calls is one statement"), nil
	}
	return finding.Fine("a transaction's advisory lock lasts for its transaction"), nil
}

func tryListen(ctx context.Context, in *Input) ([]Finding, error) {
	run := func(sql string) func(conn *pgx.Conn) error {
		return func(conn *pgx.Conn) error { _, err := conn.Exec(ctx, sql); return err }
	}
	leaks, lost, err := in.twoClients(ctx, run("LISTEN wirefence_doctor"), func(conn *pgx.Conn) (listens bool, err error) {
		err = conn.QueryRow(ctx, listensSQL).Scan(&listens)
		return listens, err
	}, run("UNLISTEN wirefence_doctor"))
	switch {
	case err != nil:
		return nil, err
	case leaks || lost:
		return differs("LISTEN doesn't last for its client's session", "Notifications are lost, or go to another client.", "connect to the server itself for LISTEN, as WIREFENCE_DATABASE_URL should"), nil
	}
	return finding.Fine("LISTEN lasts for its client's session"), nil
}

// twoClients has one client take something, and both look in turn whether they have it. At the end both give it back, so
// that nothing stays behind in the pool.
func (in *Input) twoClients(ctx context.Context, take func(*pgx.Conn) error, has func(*pgx.Conn) (bool, error), giveBack func(*pgx.Conn) error) (leaks, lost bool, err error) {
	var all clients
	defer func() { all.close(ctx) }()
	conn, err := all.open(ctx, in, "", "")
	if err != nil {
		return false, false, err
	}
	plain, err := all.open(ctx, in, "", "")
	if err != nil {
		return false, false, err
	}
	if err := take(conn); errors.As(err, new(*pgconn.PgError)) {
		return false, true, nil // a pooler may refuse what it can't keep
	} else if err != nil {
		return false, false, err
	}
	leaks, lost, err = inTurn(conn, plain, has)
	for _, each := range all {
		err = errors.Join(err, giveBack(each))
	}
	return leaks, lost, err
}

// inTurn lets two clients look in turn whether they have what the first has taken.
func inTurn(conn, plain *pgx.Conn, has func(*pgx.Conn) (bool, error)) (leaks, lost bool, err error) {
	for range turns {
		own, err := has(conn)
		other, err2 := has(plain)
		if err := errors.Join(err, err2); err != nil {
			return false, false, err
		}
		leaks, lost = leaks || other, lost || !own
	}
	return leaks, lost, nil
}

// advise says which of the ways that last to use for a fence, and for a lock.
func advise(lasts map[string]bool) []Finding {
	carrier, lock := "", "leases of Wirefence"
	switch {
	case lasts["options"] && lasts["SET"]:
		carrier = "any, also wirefence lock as it is"
	case lasts["name"]:
		carrier = "SET LOCAL or a comment in each transaction, or wirefence lock --carry name"
	case lasts["SET"]:
		carrier = "SET for the session, or SET LOCAL or a comment in each transaction"
	case lasts["SET LOCAL"]:
		carrier = "SET LOCAL in each transaction, or a comment for a proxy behind the pooler"
	case lasts["comment"]:
		carrier = "a comment in each statement, for a proxy behind the pooler"
	default:
		return []Finding{{Grade: Problem, Says: "no carrier of a fence survives", Means: "No fence arrives, so guards refuse all writes.",
			Remedy: []string{"connect to the server, or to a proxy, without this pooler"}}}
	}
	switch {
	case lasts["session lock"]:
		lock = "a session's or a transaction's advisory lock, or leases of Wirefence"
	case lasts["transaction lock"]:
		lock = "a transaction's advisory lock, or leases of Wirefence"
	}
	return finding.Fine("use for a fence: %s; for a lock: %s", carrier, lock)
}
