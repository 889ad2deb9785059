package lockclient

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"
)

//go:embed set_fence.sql
var setFenceSQL string

// SetOn sets the session variable wirefence.token to the fence of the lease, in place of
// its former value, until the session ends or resets it. A connection that returns to a
// pool keeps the fence: prefer SetLocal there.
//
// If the lease has ended, SetOn, SetLocal and the others change nothing and return the
// *EndError: a caller that sets a fence is about to begin new work.
func (l *Lease) SetOn(ctx context.Context, conn *pgx.Conn) error {
	return l.set(func(f string) error {
		_, err := conn.Exec(ctx, setFenceSQL, f, false)
		return err
	})
}

// SetLocal sets the fence of the lease in a transaction, in place of the former value,
// until the transaction ends.
func (l *Lease) SetLocal(ctx context.Context, tx pgx.Tx) error {
	return l.set(func(f string) error {
		_, err := tx.Exec(ctx, setFenceSQL, f, true)
		return err
	})
}

// SetOnSQL is SetOn for database/sql.
func (l *Lease) SetOnSQL(ctx context.Context, conn *sql.Conn) error {
	return l.set(func(f string) error {
		_, err := conn.ExecContext(ctx, setFenceSQL, f, false)
		return err
	})
}

// SetLocalSQL is SetLocal for database/sql.
func (l *Lease) SetLocalSQL(ctx context.Context, tx *sql.Tx) error {
	return l.set(func(f string) error {
		_, err := tx.ExecContext(ctx, setFenceSQL, f, true)
		return err
	})
}

// set calls exec with the fence if the lease is held.
func (l *Lease) set(exec func(fence string) error) error {
	err := l.Err()
	if err == nil {
		err = exec(l.Fence().String())
	}
	if err != nil {
		return fmt.Errorf("setting the fence of %q: %w", l.resource, err)
	}
	return nil
}

// Comment returns the fence of the lease as an SQL comment, such as
// /*wirefence.token='orders=34'*/, which a Wirefence proxy reads. It stays the same when
// the lease has ended: a statement without a comment would not be refused.
func (l *Lease) Comment() string { return l.Fence().Comment() }

// Annotate appends the comment to the SQL text, on a line of its own so that it does not
// become part of a line comment. It does not change the beginning of the text: drivers
// look there for COPY, and pg_hint_plan for its hints. A comment applies to its whole
// message, so a semicolon before it does no harm.
//
// Each grant gives a different text, and so a new prepared statement if the driver
// prepares its statements.
func (l *Lease) Annotate(sql string) string { return sql + "\n" + l.Comment() }
