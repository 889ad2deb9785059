package lockclient

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
)

//go:embed set_fence.sql
var setFenceSQL string

// SetOn makes a session carry the fence of the lease in the variable
// wirefence.token, in place of what it carried, until it ends or is reset. A
// connection that goes back to a pool takes the fence along: there, prefer
// SetLocal.
func (l *Lease) SetOn(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, setFenceSQL, l.Fence().String(), false)
	return carryError(l.resource, err)
}

// SetLocal makes a transaction carry the fence of the lease, in place of what
// it carried, until it ends.
func (l *Lease) SetLocal(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, setFenceSQL, l.Fence().String(), true)
	return carryError(l.resource, err)
}

// SetOnSQL is SetOn for database/sql.
func (l *Lease) SetOnSQL(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, setFenceSQL, l.Fence().String(), false)
	return carryError(l.resource, err)
}

// SetLocalSQL is SetLocal for database/sql.
func (l *Lease) SetLocalSQL(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, setFenceSQL, l.Fence().String(), true)
	return carryError(l.resource, err)
}

func carryError(resource fence.Resource, err error) error {
	if err != nil {
		return fmt.Errorf("setting the fence of %q: %w", resource, err)
	}
	return nil
}

// Comment returns the fence of the lease as an SQL comment, such as
// /*wirefence.token='orders=34'*/, which a Wirefence proxy reads.
func (l *Lease) Comment() string { return l.Fence().Comment() }

// Annotate returns the SQL text with the comment behind it, on a line of its
// own so that it doesn't become part of a line comment. It leaves the beginning
// alone: drivers look there for COPY, and pg_hint_plan for its hints. A comment
// holds for its whole message, so a semicolon before it does no harm.
//
// Each grant makes a different text, and so a new prepared statement where the
// driver prepares what it runs.
func (l *Lease) Annotate(sql string) string { return sql + "\n" + l.Comment() }
