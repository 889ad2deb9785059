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

// step is a statement that must be run before the migrations.
type step struct {
	Statement string
	Permitted bool
	Optional  bool // all works without it, if less well
}

// leftOut reports whether the migration goes on without the step.
func (s step) leftOut() bool { return s.Optional && !s.Permitted }

// MissingRightsError says what the migrating role may not do. Statements is
// all that a superuser must run in this database, in order; then the migration
// succeeds.
type MissingRightsError struct {
	Role       string
	Statements []string
	// Issuer says that the role has wirefence_issuer, as the proxy's has. It must not get
	// the rights, for with them it could change tokens and what judges them: Statements are
	// none.
	Issuer bool
}

func (e *MissingRightsError) Error() string {
	if e.Issuer {
		return fmt.Sprintf("role %q has wirefence_issuer and lacks the rights to migrate, which no issuer may have: use another, owning role", e.Role)
	}
	return fmt.Sprintf("role %q lacks rights to migrate; let a superuser run in this database:\n%s;",
		e.Role, strings.Join(e.Statements, ";\n"))
}

// prepare makes the roles and the schema. Other databases of the cluster may be
// doing the same at this moment, beyond the reach of any lock: after a lost
// race it looks again.
func (o Options) prepare(ctx context.Context, conn *pgx.Conn, report func(line string)) error {
	const races = 20
	var last error
	for range races {
		steps, err := preflight(ctx, conn, o.trusts())
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(steps, func(s step) bool { return !s.leftOut() }) {
			for _, s := range steps {
				report("left out, for want of rights: " + s.Statement + "; until a superuser runs it, takeovers wait for idle sessions as long as for busy ones")
			}
			return nil
		}
		if err := refuseUnpermitted(ctx, conn, steps); err != nil {
			return err
		}
		if last = run(ctx, conn, steps, report); last != nil && !lostRace(last) {
			return last
		}
	}
	if last == nil {
		last = errors.New("what is missing was made, and is missing all the same")
	}
	return fmt.Errorf("prepare roles and schema: %w", last)
}

// preflight returns what is missing. Where the storage is trusted, nobody needs to ask
// which server this is.
func preflight(ctx context.Context, conn *pgx.Conn, trusts bool) ([]step, error) {
	rows, err := conn.Query(ctx, preflightSQL, trusts)
	if err != nil {
		return nil, fmt.Errorf("look for roles and rights: %w", err)
	}
	steps, err := pgx.CollectRows(rows, pgx.RowToStructByPos[step])
	if err != nil {
		return nil, fmt.Errorf("look for roles and rights: %w", err)
	}
	return steps, nil
}

// refuseUnpermitted names all statements if one of them isn't permitted: those
// that are depend on the others, or may be run by a superuser as well.
func refuseUnpermitted(ctx context.Context, conn *pgx.Conn, steps []step) error {
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

func run(ctx context.Context, conn *pgx.Conn, steps []step, report func(line string)) error {
	for _, s := range steps {
		if s.leftOut() {
			continue
		}
		if _, err := conn.Exec(ctx, s.Statement); err != nil {
			return fmt.Errorf("%s: %w", s.Statement, err)
		}
		report(s.Statement)
	}
	return nil
}

// lostRace reports whether somebody else made the same change of a shared
// catalog at the same time: duplicate_object, unique_violation, or the
// internal_error "tuple concurrently updated".
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

// Unprepared returns the statements, in order, by which a superuser makes what is
// missing beside the tables and functions: roles, the owner's rights to end
// backends and to see which are idle, the schema and whose it is. Whether it may ask which
// server this is isn't looked at. What the current role lacks to migrate by
// itself is not among them. Any role may ask.
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
