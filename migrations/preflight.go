package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed preflight.sql
var preflightSQL string

//go:embed migrating.sql
var migratingSQL string

// step is a statement that must run before the migrations.
type step struct {
	Statement string
	Permitted bool
	Optional  bool // takeovers are slower without it
}

// leftOut reports whether the migration continues without the step.
func (s step) leftOut() bool { return s.Optional && !s.Permitted }

// MissingRightsError says which rights the migrating role lacks. Statements lists, in order,
// what a superuser must run in this database; then the migration succeeds.
type MissingRightsError struct {
	Role       string
	Statements []string
	// Issuer says that the role has wirefence_issuer, as the role of the proxy has. It must
	// not get the rights to migrate, which would let it change tokens and the functions that
	// judge them. Then Statements is empty.
	Issuer bool
}

func (e *MissingRightsError) Error() string {
	if e.Issuer {
		return fmt.Sprintf("role %q has wirefence_issuer, so it must not get the rights to migrate, which it lacks: use another, owning role", e.Role)
	}
	return fmt.Sprintf("role %q lacks rights to migrate; let a superuser run in this database:\n%s;",
		e.Role, strings.Join(e.Statements, ";\n"))
}

// prepare creates the roles and the schema. Another migration, of another database of the
// cluster, may create the same roles at this moment; no lock spans two databases. So it looks
// again after a lost race.
func (o Options) prepare(ctx context.Context, tx pgx.Tx, report func(line string)) error {
	const races = 20
	var last error
	for range races {
		steps, err := preflight(ctx, tx, o.trusts())
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(steps, func(s step) bool { return !s.leftOut() }) {
			for _, s := range steps {
				report("skipped, because the role lacks the right: " + s.Statement + "; until a superuser runs it, takeovers wait for idle sessions as long as for busy ones")
			}
			return nil
		}
		if err := refuseUnpermitted(ctx, tx, steps); err != nil {
			return err
		}
		if last = run(ctx, tx, steps, report); last != nil && !lostRace(last) {
			return last
		}
	}
	if last == nil {
		last = errors.New("objects are still missing after they were created")
	}
	return fmt.Errorf("prepare roles and schema: %w", last)
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// preflight returns the missing steps. If the storage is trusted, no role needs to read the
// identity of the server.
func preflight(ctx context.Context, conn querier, trusts bool) ([]step, error) {
	rows, err := conn.Query(ctx, preflightSQL, trusts)
	if err != nil {
		return nil, fmt.Errorf("read roles and rights: %w", err)
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[step])
	if err != nil {
		return nil, fmt.Errorf("read roles and rights: %w", err)
	}
	return steps, nil
}

// refuseUnpermitted returns an error with all statements if the role may not run one of them:
// the permitted ones may depend on the others, and a superuser can run them, too.
func refuseUnpermitted(ctx context.Context, conn querier, steps []step) error {
	missing := &MissingRightsError{}
	refused := false
	for _, s := range steps {
		refused = refused || !s.Permitted && !s.Optional
		missing.Statements = append(missing.Statements, s.Statement)
	}
	if !refused {
		return nil
	}
	if err := conn.QueryRow(ctx, migratingSQL).Scan(&missing.Role, &missing.Issuer); err != nil {
		return err
	}
	if missing.Issuer {
		missing.Statements = nil
	}
	return missing
}

// run runs each step behind a savepoint of its own, so that a lost race does not abort the
// transaction.
func run(ctx context.Context, tx pgx.Tx, steps []step, report func(line string)) error {
	for _, s := range steps {
		if s.leftOut() {
			continue
		}
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, s.Statement)
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", s.Statement, err)
		}
		report(s.Statement)
	}
	return nil
}

// lostRace reports whether another session made the same change of a shared catalog at the same
// time: duplicate_object, unique_violation, or the internal_error "tuple concurrently updated".
func lostRace(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "42710", "23505":
		return true
	case "XX000":
		return strings.Contains(pgErr.Message, "concurrently")
	}
	return false
}

// Unprepared returns the statements, in order, by which a superuser creates what is missing
// besides tables and functions: roles, the rights of wirefence_owner to terminate backends and
// to see which are idle, the schema and its owner. It does not check the right to read the
// identity of the server, and leaves out the rights that the current role needs to migrate. Any
// role may call it.
func Unprepared(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	steps, err := preflight(ctx, conn, true)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range steps {
		if !strings.HasPrefix(s.Statement, "GRANT wirefence_owner TO ") && !strings.HasPrefix(s.Statement, "GRANT CREATE ON DATABASE ") {
			all = append(all, s.Statement)
		}
	}
	return all, nil
}
