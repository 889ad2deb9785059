package doctor

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/wirefence/wirefence/lockclient/finding"
)

// serverChecks examine settings of the server on which fences depend.
var serverChecks = []Check{
	{"server.durability", []string{databaseReachable}, judging((*Input).settings, judgeDurability)},
	{"server.timeouts", []string{schemaVersion}, checkTimeouts},
	{"server.locks", []string{databaseReachable}, judging((*Input).settings, judgeLocks)},
	{"server.connections", []string{databaseReachable}, judging((*Input).settings, judgeConnections)},
}

//go:embed sql/settings.sql
var settingsSQL string

// serverSettings are the initial settings of a session, and the use of what they limit.
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
}

func (in *Input) settings(ctx context.Context) (serverSettings, error) {
	return row[serverSettings](ctx, in, settingsSQL)
}

func judgeDurability(in *Input, s serverSettings) (found []Finding) {
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
	return finding.OrFine(found, "a commit is on disk when it returns")
}

// checkTimeouts compares the connecting role's statement_timeout with the longest wait of a
// seal.
func checkTimeouts(ctx context.Context, in *Input) (found []Finding, err error) {
	s, err := in.settings(ctx)
	if err != nil {
		return nil, err
	}
	waits, err := in.waits(ctx)
	if err != nil {
		return nil, err
	}
	longest, statement := waits.longest(), time.Duration(s.Statement)*time.Millisecond
	// After preempt_after a seal looks twice before it ends a session.
	if wanted := longest + time.Second; statement > 0 && statement < wanted {
		found = append(found, Finding{Grade: Warning,
			Says:   fmt.Sprintf("statement_timeout of %s is %v, by %s; a resource's preempt_after is %v", in.role(), statement, s.StatementBy, longest),
			Means:  "A seal is cancelled before it may end a stuck transaction, so no takeover succeeds.",
			Remedy: []string{fmt.Sprintf("ALTER ROLE %s SET statement_timeout = 0", in.role())}})
	}
	return finding.OrFine(found, "a seal can wait for preempt_after: statement_timeout is %s, lock_timeout %s, idle_in_transaction_session_timeout %s",
		timeoutText(s.Statement), timeoutText(s.Lock), timeoutText(s.IdleTransaction)), nil
}

func timeoutText(milliseconds int64) string {
	if milliseconds == 0 {
		return "off"
	}
	return (time.Duration(milliseconds) * time.Millisecond).String()
}

// locksOfAFence is the number of resources in the largest fence. Its transaction holds at
// least one lock for each, besides those of its tables.
const locksOfAFence = 32

// judgeLocks judges whether the shared lock table has room for fences.
func judgeLocks(_ *Input, s serverSettings) (found []Finding) {
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
	return finding.OrFine(found, "locks: %d of about %d are held", s.LocksHeld, room)
}

// judgeConnections warns when connections run out. Only then it matters that the proxy admits
// more clients than the server.
func judgeConnections(in *Input, s serverSettings) []Finding {
	room := s.Connections - s.Reserved
	if s.Backends*10 <= room*9 {
		return finding.Fine("connections: %d of %d are taken", s.Backends, room)
	}
	f := Finding{Grade: Warning, Says: fmt.Sprintf("connections: %d of %d are taken", s.Backends, room),
		Means:  "When none is left, clients get 53300 from the server, and no lease can be taken over if its grant needs a new connection.",
		Remedy: []string{"ALTER SYSTEM SET max_connections = …, and restart the server; or put a pooler between clients and the server"}}
	if int64(in.MaxConnections) > room {
		f.Remedy = append(f.Remedy, fmt.Sprintf("WIREFENCE_MAX_CONNECTIONS=%d, or less if other programs connect, too: the proxy admits %d clients", max(1, room-room/10), in.MaxConnections))
	}
	return []Finding{f}
}
