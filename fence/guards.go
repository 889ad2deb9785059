package fence

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Guard is one table that checks its writes by triggers, or should.
type Guard struct {
	// Table is its name, with the schema.
	Table string `json:"table"`
	// Resource is a resource's name, or a template over columns such as
	// report:{tenant}:{id}.
	Resource string `json:"resource"`
	// By and Since are "" and zero for a table that is guarded but was never
	// declared, as after the restore of a part of a dump.
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Mode is ModeShadow where the guard lets everything pass and notes what it
	// would refuse.
	Mode Mode `json:"mode"`
	// Fault says what is wrong and what to do; "" if nothing is.
	Fault string `json:"fault,omitempty"`
}

//go:embed sql/protect.sql
var protectSQL string

//go:embed sql/unprotect.sql
var unprotectSQL string

//go:embed sql/guarded.sql
var guardedSQL string

// Protect guards a table, its partitions and its heirs: a write wants a token of
// the resource, whatever way it takes. A resource may be a template over columns,
// such as report:{tenant}:{id}; then each row wants its own. Called again, it
// repairs the guards, takes in later partitions, and changes the mode: in
// ModeShadow a guard lets everything pass and notes what it would refuse. "" is
// ModeEnforce.
//
// The table is named as in SQL, quoted where need be. The role must own it. It
// waits for the table's writers to end.
func Protect(ctx context.Context, q Querier, table, resource string, mode Mode) error {
	if _, err := q.Exec(ctx, protectSQL, []byte(table), []byte(resource), mode == ModeShadow); err != nil {
		return fmt.Errorf("protect %s: %w", table, err)
	}
	return nil
}

// Unprotect removes the guards of a table, its partitions and its heirs. The role
// must own it. Of a table that has gone, named as Guards names it, it withdraws that
// it was to be guarded; the role must have guarded it, or have wirefence_issuer.
func Unprotect(ctx context.Context, q Querier, table string) error {
	if _, err := q.Exec(ctx, unprotectSQL, []byte(table)); err != nil {
		return fmt.Errorf("unprotect %s: %w", table, err)
	}
	return nil
}

// Guards lists the tables that are guarded or should be, by name. The role must
// have wirefence_issuer.
func Guards(ctx context.Context, q Querier) ([]Guard, error) {
	rows, err := q.Query(ctx, guardedSQL)
	if err != nil {
		return nil, fmt.Errorf("list guards: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Guard, error) {
		var g Guard
		var table, resource []byte
		var since *time.Time
		err := row.Scan(&table, &resource, &g.By, &since, &g.Fault, &g.Mode)
		g.Table, g.Resource = string(table), string(resource)
		if since != nil {
			g.Since = since.UTC()
		}
		return g, err
	})
	if err != nil {
		return nil, fmt.Errorf("list guards: %w", err)
	}
	return all, nil
}
