package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// step is one statement about the lock $1, with PostgreSQL's answer.
type step struct {
	by   int // the connection that runs it
	sql  string
	want string
	says string // the fault of a server with another answer
}

const holder, rival = 0, 1

const (
	lockOfSession   = "SELECT pg_catalog.pg_advisory_lock_shared($1::bigint)"
	unlock          = "SELECT pg_catalog.pg_advisory_unlock_shared($1::bigint)"
	tryOfSession    = "SELECT pg_catalog.pg_try_advisory_lock_shared($1::bigint)"
	tryShared       = "SELECT pg_catalog.pg_try_advisory_xact_lock_shared($1::bigint)"
	tryExclusive    = "SELECT pg_catalog.pg_try_advisory_xact_lock($1::bigint)"
	unlockExclusive = "SELECT pg_catalog.pg_advisory_unlock($1::bigint)"
)

const listedSQL = `SELECT count(*) FROM pg_catalog.pg_locks AS l
	WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.mode = 'ShareLock'
	AND (l.classid::bigint << 32) | l.objid::bigint = $1::bigint`

// lockSteps first lock a takeover out by a session's lock, as a hold does, and then holders by a
// transaction's lock, as a seal does.
var lockSteps = []step{
	{holder, lockOfSession, "", ""},
	{rival, listedSQL, "1", "pg_locks doesn't list an advisory lock that a session holds"},
	{rival, tryOfSession, "t", "two sessions can't share an advisory lock"},
	{rival, unlock, "t", "a session's advisory lock ends with its transaction"},
	{rival, tryExclusive, "f", "a transaction is granted an advisory lock exclusively while another session holds it"},
	{holder, unlock, "t", "a session's advisory lock ends with its transaction"},
	{rival, "BEGIN", "", ""},
	{rival, tryExclusive, "t", "an advisory lock that was released is still held"},
	{holder, tryShared, "f", "a transaction is granted an advisory lock while another one holds it exclusively"},
	{holder, tryOfSession, "f", "a session is granted an advisory lock while a transaction holds it exclusively"},
	{rival, "COMMIT", "", ""},
	{holder, tryExclusive, "t", "a transaction's advisory lock outlives it"},
}

// locks checks that two connections exclude each other. It stops at the first wrong answer.
func locks(ctx context.Context, one, other *pgx.Conn) ([]Fault, error) {
	var number [8]byte
	_, _ = rand.Read(number[:]) // it never fails
	key := strconv.FormatInt(int64(binary.BigEndian.Uint64(number[:])), 10)
	conns := [...]*pgx.Conn{holder: one, rival: other}
	before, err := backends(ctx, conns[:])
	if err != nil {
		return nil, err
	}
	for _, s := range lockSteps {
		var args []string
		if s.sql != "BEGIN" && s.sql != "COMMIT" {
			args = []string{key}
		}
		got, err := ask(ctx, conns[s.by], s.sql, args...)
		switch {
		case err != nil && !answered(err):
			return nil, err
		case err == nil && got == s.want:
			continue
		}
		says := s.says
		if err != nil {
			says = "advisory locks: " + reason(err)
		}
		after, backendsErr := release(ctx, conns[:], key)
		switch {
		case backendsErr != nil:
			return nil, backendsErr
		case after != before:
			return nil, fmt.Errorf("advisory locks: transactions of one connection come to different backends, as behind a pooler: name the server itself")
		}
		return []Fault{{says, "Takeovers and the writes of former holders would not exclude each other."}}, nil
	}
	return nil, nil
}

// backends returns the process ids of the connections' servers.
func backends(ctx context.Context, conns []*pgx.Conn) (pids [2]string, err error) {
	for i, conn := range conns {
		if pids[i], err = ask(ctx, conn, "SELECT pg_catalog.pg_backend_pid()"); err != nil && !answered(err) {
			return pids, err
		}
	}
	return pids, nil
}

// release ends the transactions of the steps and releases their locks.
func release(ctx context.Context, conns []*pgx.Conn, key string) (pids [2]string, err error) {
	for _, conn := range conns {
		if _, err := ask(ctx, conn, "ROLLBACK"); err != nil && !answered(err) {
			return pids, err
		}
		for _, sql := range []string{unlock, unlockExclusive} {
			if _, err := ask(ctx, conn, sql, key); err != nil && !answered(err) {
				return pids, err
			}
		}
	}
	return backends(ctx, conns)
}
