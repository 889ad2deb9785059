package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// VersionError says that a database is not at the version that this binary needs. Have is 0 if
// it has no schema of Wirefence.
type VersionError struct{ Have, Need int }

func (e *VersionError) Error() string {
	switch {
	case e.Missing():
		return fmt.Sprintf("the database has no wirefence schema, version %d is needed: run `wirefence migrate`", e.Need)
	case e.Served():
		return fmt.Sprintf("the wirefence schema is at version %d, one from this binary's, %d", e.Have, e.Need)
	case e.Behind():
		return fmt.Sprintf("the wirefence schema is at version %d, at least version %d is needed: run `wirefence migrate`", e.Have, e.Need-served)
	}
	return fmt.Sprintf("the wirefence schema is at version %d, this binary works with versions up to %d: upgrade the binary", e.Have, e.Need+served)
}

// served is the largest difference between the version of a schema and that of a binary with
// which the binary works, so that rollouts and rollbacks work. Every migration and every
// release follows the rules of CONTRIBUTING.md for it.
const served = 1

// Served reports whether this binary works with that version nevertheless.
func (e *VersionError) Served() bool {
	return !e.Missing() && e.Have >= e.Need-served && e.Have <= e.Need+served
}

// Missing reports whether the database was never migrated.
func (e *VersionError) Missing() bool { return e.Have == 0 }

// Behind reports whether `wirefence migrate` resolves it, Missing included.
func (e *VersionError) Behind() bool { return e.Have < e.Need }

// Ahead reports whether only a newer binary resolves it.
func (e *VersionError) Ahead() bool { return e.Have > e.Need }

// ErrNoVersion says that the schema exists without the row that has its version: a dump was
// restored without its data.
var ErrNoVersion = errors.New("the wirefence schema has no version, as after the restore of a dump without data: " +
	"restore its rows too, or DROP SCHEMA wirefence CASCADE, which removes all guards, and run `wirefence migrate`")

// ContentError says that a database is at the right version and lacks functions that this
// binary's migrations create: other migrations had the same numbers, or somebody dropped the
// functions.
type ContentError struct{ Missing []string } // signatures

func (e *ContentError) Error() string {
	return fmt.Sprintf("the wirefence schema has no function %s, which its version has: run `wirefence doctor`, which says how to make it, "+
		"or DROP SCHEMA wirefence CASCADE, which removes all tokens and guards, and run `wirefence migrate`", e.Missing[0])
}

//go:embed verify.sql
var verifySQL string

// Verify returns nil if the database is at exactly the version that this binary needs and has
// its functions. It returns a *VersionError for another version, ErrNoVersion if the version is
// unknown, and a *ContentError if functions are missing. Any role may call it.
func Verify(ctx context.Context, conn *pgx.Conn) error {
	differs, err := Usable(ctx, conn)
	if err == nil && differs != nil {
		return differs
	}
	return err
}

// Usable is Verify for a binary that must work during a rollout or a rollback: it also accepts
// a schema one version older or newer than its own, if the schema has the functions of the
// older of the two. Then differs says so.
func Usable(ctx context.Context, conn *pgx.Conn) (differs *VersionError, err error) {
	have, err := current(ctx, conn)
	if err != nil {
		return nil, err
	}
	if have != Version() {
		if differs = (&VersionError{Have: have, Need: Version()}); !differs.Served() {
			return nil, differs
		}
	}
	return differs, hasFunctions(ctx, conn, min(have, Version()))
}

// hasFunctions returns a *ContentError if the database lacks functions of a version.
func hasFunctions(ctx context.Context, conn *pgx.Conn, version int) error {
	rows, err := conn.Query(ctx, verifySQL, functionsOf(version))
	if err != nil {
		return fmt.Errorf("look for the functions of the wirefence schema: %w", err)
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for the functions of the wirefence schema: %w", err)
	}
	if len(missing) > 0 {
		return &ContentError{missing}
	}
	return nil
}

// current returns the version of the database, 0 if it has none. It asks the catalog first, so
// that a missing schema does not abort a transaction. A schema without the function
// schema_version counts as none.
func current(ctx context.Context, conn *pgx.Conn) (int, error) {
	var present bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (
		SELECT FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
		WHERE n.nspname = 'wirefence' AND p.proname = 'schema_version' AND p.pronargs = 0)`).Scan(&present)
	if err != nil {
		return 0, fmt.Errorf("look for the wirefence schema: %w", err)
	}
	if !present {
		return 0, nil
	}
	var version *int
	if err := conn.QueryRow(ctx, "SELECT wirefence.schema_version()").Scan(&version); err != nil {
		return 0, fmt.Errorf("read the version of the wirefence schema: %w", err)
	}
	if version == nil {
		return 0, ErrNoVersion
	}
	return *version, nil
}
