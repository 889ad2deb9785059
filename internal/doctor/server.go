package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"time"
)

// serverChecks look at settings of the server that matter to fences.
var serverChecks = []Check{
	{"server.durability", []string{databaseReachable}, checkDurability},
	{"server.timeouts", []string{schemaVersion}, checkTimeouts},
	{"server.locks", []string{databaseReachable}, checkLocks},
	{"server.connections", []string{databaseReachable}, checkConnections},
}

//go:embed sql/settings.sql
var settingsSQL string

// serverSettings are those of a session as it begins.
type serverSettings struct {
	Database                         string
	Fsync, FullPageWrites            bool
	SynchronousCommit                string
	SynchronousCommitBy              string
	Statement, Lock, IdleTransaction int64 // ms; 0 is none
	StatementBy                      string
	LocksEach, Connections, Prepared int64
	Reserved                         int64
	LocksHeld                        int64 // in the shared table
	Backends                         int64
	Standbys                         int64
	SynchronousNames                 string
	Asynchronous                     int64 // standbys that no commit waits for
}

func checkDurability(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := row[serverSettings](ctx, in, settingsSQL)
	if err != nil {
		return nil, err
	}
	if !s.Fsync {
		found = append(found, Finding{Grade: Problem, Says: "fsync is off",
			Means:  "A crash of the machine can undo a handoff: the former holder's token is current again.",
			Remedy: []string{"ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()"}})
	}
	if !s.FullPageWrites {
		found = append(found, Finding{Grade: Warning, Says: "full_page_writes is off",
			Means:  "A crash can leave a torn page of wirefence.resource_locks, unless the file system writes whole pages.",
			Remedy: []string{"ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()"}})
	}
	if s.SynchronousCommit == "off" {
		found = append(found, Finding{Grade: Warning, Says: "synchronous_commit is off, by " + s.SynchronousCommitBy,
			Means: "Seals wait for the disk all the same. But a crash can undo what writers have committed, and a token " +
				"that was recorded by its first use.",
			Remedy: []string{resetOf("synchronous_commit", s.SynchronousCommitBy, in.role(), s.Database)}})
	}
	if s.Standbys > 0 && s.SynchronousNames == "" {
		found = append(found, Finding{Grade: Note, Says: "standbys follow asynchronously",
			Means:  "A failover can lose the last grants. No token from before it counts then, but for resources with failover = trust: holders acquire again.",
			Remedy: []string{"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf(), where that matters more than waiting for a standby"}})
	}
	return orFine(found, "a commit is on disk when it returns"), nil
}

// checkTimeouts compares the connecting role's timeouts with how long a seal may
// have to wait.
func checkTimeouts(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := row[serverSettings](ctx, in, settingsSQL)
	if err != nil {
		return nil, err
	}
	waits, err := in.waits(ctx)
	if err != nil {
		return nil, err
	}
	longest, statement := waits.longest(), time.Duration(s.Statement)*time.Millisecond
	// After preempt_after a seal looks twice before it ends anybody.
	if wanted := longest + time.Second; statement > 0 && statement < wanted {
		found = append(found, Finding{Grade: Warning,
			Says:   fmt.Sprintf("statement_timeout of %s is %v, by %s; a resource's preempt_after is %v", in.role(), statement, s.StatementBy, longest),
			Means:  "A seal is cancelled before it may end a stuck transaction, so no takeover succeeds.",
			Remedy: []string{fmt.Sprintf("ALTER ROLE %s SET statement_timeout = 0", in.role())}})
	}
	return orFine(found, "a seal can wait for preempt_after: statement_timeout is %s, lock_timeout %s, idle_in_transaction_session_timeout %s",
		orNever(s.Statement), orNever(s.Lock), orNever(s.IdleTransaction)), nil
}

func orNever(milliseconds int64) string {
	if milliseconds == 0 {
		return "off"
	}
	return (time.Duration(milliseconds) * time.Millisecond).String()
}

// locksOfAFence is what one transaction may hold besides its tables' locks: a
// fence's 32 resources, each with what announces its token when it moves on.
const locksOfAFence = 32

// checkLocks looks whether the shared lock table has room for fences.
func checkLocks(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := row[serverSettings](ctx, in, settingsSQL)
	if err != nil {
		return nil, err
	}
	room := s.LocksEach * (s.Connections + s.Prepared)
	remedy := []string{"ALTER SYSTEM SET max_locks_per_transaction = " + fmt.Sprint(max(64, 2*s.LocksEach)) + ", and restart the server"}
	if s.LocksEach <= locksOfAFence {
		found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("max_locks_per_transaction is %d", s.LocksEach),
			Means:  fmt.Sprintf("A transaction with a fence of %d resources holds more. With many of them PostgreSQL runs out of locks, which fails writes.", locksOfAFence),
			Remedy: remedy})
	}
	if s.LocksHeld*10 > room*7 {
		found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("locks: %d of about %d are held", s.LocksHeld, room),
			Means: "When none is left, writes and grants fail with 53200.", Remedy: remedy})
	}
	return orFine(found, "locks: %d of about %d are held", s.LocksHeld, room), nil
}

func checkConnections(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := row[serverSettings](ctx, in, settingsSQL)
	if err != nil {
		return nil, err
	}
	room := s.Connections - s.Reserved
	if s.Backends*10 > room*9 {
		found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("connections: %d of %d are taken", s.Backends, room),
			Means:  "When none is left, no lease can be taken over whose grant needs one.",
			Remedy: []string{"ALTER SYSTEM SET max_connections = …, and restart the server; or let clients come by a pooler"}})
	}
	if int64(in.MaxConnections) > room {
		found = append(found, Finding{Grade: Warning, Says: fmt.Sprintf("the proxy admits %d clients, the server %d", in.MaxConnections, room),
			Means:  "Clients beyond the server's limit get 53300 from it, and so may the issuer.",
			Remedy: []string{fmt.Sprintf("WIREFENCE_MAX_CONNECTIONS=%d, or less where others connect, too", max(1, room-room/10))}})
	}
	return orFine(found, "connections: %d of %d are taken", s.Backends, room), nil
}
