// Package migrations creates and upgrades the schema that this binary needs: numbered SQL
// files, embedded, which it applies in order and in one transaction, as the role
// wirefence_owner. Of this module it imports fence, and the probes of internal/engine.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

// versionTable is the table with the number of the last applied file.
const versionTable = "wirefence.applied_version"

//go:embed [0-9]*.sql
var files embed.FS

// Version returns the schema version that this binary needs: the number of its last migration.
func Version() int { return len(numbered()) }

var numbered = sync.OnceValue(func() []string {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		panic("migrations: " + err.Error())
	}
	for i, name := range names { // in lexical order
		if !strings.HasPrefix(name, fmt.Sprintf("%03d_", i+1)) {
			panic("migrations: the embedded files are not numbered in sequence: " + name)
		}
	}
	return names
})

func source(name string) string {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		panic("migrations: " + err.Error())
	}
	return string(text)
}

// Options are the choices of the operator when the schema is created. The zero value has the
// defaults.
type Options struct {
	// Failover is the policy of every resource without a policy of its own: reacquire, the
	// default, or trust. A server that does not report its timeline needs trust. The option
	// takes effect when the schema is created, and changes nothing afterwards.
	Failover fence.Failover

	// Citus says which nodes of Citus have the tokens: the coordinator, by default, or all
	// nodes. A schema whose nodes have them keeps that.
	Citus Citus

	to int // the version to stop at, for tests; 0 means the last
}

// Citus says which nodes of Citus have the tokens.
type Citus string

// The values of Citus.
const (
	CitusCoordinator Citus = "coordinator"
	CitusNodes       Citus = "nodes"
)

// Validate reports options that are out of range.
func (o Options) Validate() error {
	if o.Failover != "" && o.Failover != fence.FailoverReacquire && !o.trusts() {
		return fmt.Errorf("failover is %q: %s or %s", o.Failover, fence.FailoverReacquire, fence.FailoverTrust)
	}
	if o.Citus != "" && o.Citus != CitusCoordinator && o.Citus != CitusNodes {
		return fmt.Errorf("citus is %q: %s or %s", o.Citus, CitusCoordinator, CitusNodes)
	}
	return nil
}

func (o Options) trusts() bool { return o.Failover == fence.FailoverTrust }

// Apply is Options.Apply with the defaults.
func Apply(ctx context.Context, conn *pgx.Conn, report func(line string)) error {
	return Options{}.Apply(ctx, conn, report)
}

// Apply creates the roles and the schema that are missing, and applies the pending migrations,
// all of that in one transaction: a migration that fails or is ended leaves nothing behind. It
// may be called again, and by several programs at once. Where sessions hold what it changes, it starts
// again until ctx ends. It calls report with a line for each step, before the commit, and for what it waits
// for; report may be nil.
//
// Before it creates anything it probes the server, for which it opens a second connection; a
// server that lacks behaviour that fences need gives an *UnfitError. Apply needs no superuser
// if the rights were granted before; otherwise it changes nothing and returns a
// *MissingRightsError. It leaves a database alone that is ahead of this binary, and returns a
// *VersionError if that is by more than one version. A schema that was restored without its
// data gives ErrNoVersion, and one that somebody else made a *StrangersError. The connection must be outside a transaction and must not be used
// meanwhile.
func (o Options) Apply(ctx context.Context, conn *pgx.Conn, report func(line string)) (err error) {
	if report == nil {
		report = func(string) {}
	}
	if err := o.Validate(); err != nil {
		return err
	}
	have, err := current(ctx, conn)
	if err != nil {
		return err
	}
	if ahead, err := isAhead(have, report); ahead { // whatever rights the role has
		return err
	}
	if have == 0 {
		if err := refuseStrangers(ctx, conn); err != nil {
			return err
		}
	}
	if err := o.probe(ctx, conn, have); err != nil {
		return err
	}
	unlock, err := lock(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	said := map[string]bool{} // each line once
	say := func(line string) {
		if !said[line] {
			said[line] = true
			report(line)
		}
	}
	for {
		err := o.applyPending(ctx, conn, say)
		if blocked := (*pgconn.PgError)(nil); !errors.As(err, &blocked) || blocked.Code != lockNotAvailable && blocked.Code != deadlockDetected {
			return err
		}
		say("waiting for sessions that hold what is to be changed: " + err.Error())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pause is the time between two tries of a migration, in which other sessions have the tables. A try waits for a
// lock for less than deadlock_timeout, 1 s: sessions that come later wait behind it, and a deadlock would end one.
const (
	pause            = 200 * time.Millisecond
	lockTimeoutSQL   = "SET LOCAL lock_timeout = '500ms';"
	lockNotAvailable = "55P03"
	deadlockDetected = "40P01"
)

// isAhead reports whether a schema is newer than this binary, so that there is nothing to
// apply. The error says that the binary cannot work with it.
func isAhead(have int, report func(line string)) (bool, error) {
	ahead := &VersionError{Have: have, Need: Version()}
	switch {
	case !ahead.Ahead():
		return false, nil
	case !ahead.Served():
		return true, ahead
	}
	report(fmt.Sprintf("nothing to apply: the schema is at version %d, one above this binary's, which works with it", have))
	return true, nil
}

// applyPending does all that changes the database, in one transaction.
func (o Options) applyPending(ctx context.Context, conn *pgx.Conn, report func(line string)) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // behind a commit it does nothing
	if _, err := tx.Exec(ctx, stayHereSQL+lockTimeoutSQL); err != nil {
		return err
	}
	if err := o.prepare(ctx, tx, report); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, becomeOwnerSQL+versionTableSQL); err != nil {
		return fmt.Errorf("create the table of the schema version: %w", err)
	}
	var before int
	if err := tx.QueryRow(ctx, "SELECT version FROM "+versionTable).Scan(&before); err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	if ahead, err := isAhead(before, report); ahead {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT pg_catalog.set_config('wirefence.failover', $1, true), pg_catalog.set_config('wirefence.citus', $2, true)", string(o.Failover), string(o.Citus)); err != nil {
		return err
	}
	target := Version()
	if o.to > 0 {
		target = o.to
	}
	for i, name := range numbered()[before:max(before, target)] {
		report("apply " + name)
		if _, err := tx.Exec(ctx, stepSQL(before+i)); err != nil {
			return fmt.Errorf("migrate from version %d to %d: %s: %w", before, target, name, err)
		}
	}
	if before == Version() {
		report(fmt.Sprintf("nothing to apply: the schema is at version %d", before))
		if err := o.reportFailover(ctx, tx, report); err != nil {
			return err
		}
	} else {
		report(fmt.Sprintf("the schema is at version %d", target))
	}
	if _, err := tx.Exec(ctx, citusSQL); err != nil {
		return fmt.Errorf("prepare for Citus: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit the migration: %w", err)
	}
	return nil
}

// lockKey is the key of the advisory lock that serialises the migrations of one database: the
// bytes "wf-migra".
const lockKey int64 = 0x77662d6d69677261

// lock waits for other migrations of this database. The returned function releases the lock,
// even if ctx has ended.
func lock(ctx context.Context, conn *pgx.Conn) (unlock func() error, err error) {
	if _, err := conn.Exec(ctx, "SELECT pg_catalog.pg_advisory_lock($1)", lockKey); err != nil {
		return nil, fmt.Errorf("wait for other migrations: %w", err)
	}
	return func() error {
		if conn.IsClosed() {
			return nil // the session has ended, and its lock with it
		}
		_, err := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_catalog.pg_advisory_unlock($1)", lockKey)
		return err
	}, nil
}
