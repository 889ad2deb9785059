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

// SetOn makes a session carry the fence of the lease in the variable
// wirefence.token, in place of what it carried, until it ends or is reset. A
// connection that goes back to a pool takes the fence along: there, prefer
// SetLocal.
//
// Of a lease that has ended it, as SetLocal and the others, changes nothing and
// fails with the *EndError: whoever sets a fence is about to begin a piece of
// work.
func (l *Lease) SetOn(ctx context.Context, conn *pgx.Conn) error {
	return l.set(func(f string) error {
		_, err := conn.Exec(ctx, setFenceSQL, f, false)
		return err
	})
}

// SetLocal makes a transaction carry the fence of the lease, in place of what
// it carried, until it ends.
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

// set gives the fence to exec while the lease is held.
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
// /*wirefence.token='orders=34'*/, which a Wirefence proxy reads. It stays what
// it is when the lease has ended: a statement without it would not be refused.
func (l *Lease) Comment() string { return l.Fence().Comment() }

// Annotate returns the SQL text with the comment behind it, on a line of its
// own so that it doesn't become part of a line comment. It leaves the beginning
// alone: drivers look there for COPY, and pg_hint_plan for its hints. A comment
// holds for its whole message, so a semicolon before it does no harm.
//
// Each grant makes a different text, and so a new prepared statement where the
// driver prepares what it runs.
func (l *Lease) Annotate(sql string) string { return sql + "\n" + l.Comment() }
