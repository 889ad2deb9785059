package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed installed.sql
var installedSQL string

//go:embed uninstall.sql
var uninstallSQL string

// Installed is what Wirefence has in a database, whole or in part. The roles belong to the
// server.
type Installed struct {
	Schema     bool
	Guards     []string // tables
	Dependents []string // other objects, not Wirefence's, that depend on the schema
	Roles      []string
	Elsewhere  []string // other databases that keep the roles
	Members    []string // of the roles, but for the role that asks
}

//go:embed strangers.sql
var strangersSQL string

// StrangersError says that a schema wirefence is not, or not only, Wirefence's.
type StrangersError struct{ Objects []string }

func (e *StrangersError) Error() string {
	return fmt.Sprintf("the schema wirefence has what is not Wirefence's: %s. Nothing was changed: rename that schema, or move this elsewhere", strings.Join(e.Objects, ", "))
}

// refuseStrangers returns a *StrangersError if the schema has objects that are not Wirefence's.
func refuseStrangers(ctx context.Context, conn *pgx.Conn) error {
	var names []string
	for name := range manifest() {
		_, name, _ = strings.Cut(name, " ")
		names = append(names, name)
	}
	rows, err := conn.Query(ctx, strangersSQL, names)
	if err != nil {
		return fmt.Errorf("look what the schema wirefence has: %w", err)
	}
	objects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(objects) > 0 {
		err = &StrangersError{objects}
	}
	return err
}

// Look returns what there is. Any role may call it. It is a *StrangersError if the schema has what Uninstall wouldn't remove.
func Look(ctx context.Context, conn *pgx.Conn) (all Installed, err error) {
	rows, err := conn.Query(ctx, installedSQL)
	if err != nil {
		return all, fmt.Errorf("look what is installed: %w", err)
	}
	lists := map[string]*[]string{
		"guard": &all.Guards, "dependent": &all.Dependents, "role": &all.Roles, "elsewhere": &all.Elsewhere, "member": &all.Members,
	}
	var kind, name string
	_, err = pgx.ForEachRow(rows, []any{&kind, &name}, func() error {
		if kind == "schema" {
			all.Schema = true
		} else {
			*lists[kind] = append(*lists[kind], name)
		}
		return nil
	})
	if err != nil {
		return all, fmt.Errorf("look what is installed: %w", err)
	}
	return all, refuseStrangers(ctx, conn)
}

// Uninstall removes all that Look returns but Elsewhere and Members, in one transaction. If
// there is an Elsewhere, the roles stay. It waits for migrations, and for the writers of
// guarded tables. A schema with other objects gives a *StrangersError.
func Uninstall(ctx context.Context, conn *pgx.Conn) (err error) {
	unlock, err := lock(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := refuseStrangers(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, uninstallSQL); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	return nil
}
