package fence

import (
	"context"
	"database/sql"
	"fmt"
)

// CheckSQL is Check for database/sql: q is a *sql.Tx, or whatever else runs in
// the transaction that is to be checked.
func CheckSQL(ctx context.Context, q interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, f Fence) error {
	if _, err := q.ExecContext(ctx, checkSQL+f.Comment(), f.parameter()); err != nil {
		return fmt.Errorf("check fence: %w", err)
	}
	return nil
}
