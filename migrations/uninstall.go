package migrations

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

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
	Judges     []string // functions, of classes of rows
	Dependents []string // other objects, not Wirefence's, that depend on the schema
	Roles      []string
	Elsewhere  []string // other databases that keep the roles
	Members    []string // of the roles, but for the role that asks
}

// Look returns what there is. Any role may call it.
func Look(ctx context.Context, conn *pgx.Conn) (all Installed, err error) {
	rows, err := conn.Query(ctx, installedSQL)
	if err != nil {
		return all, fmt.Errorf("look what is installed: %w", err)
	}
	lists := map[string]*[]string{
		"guard": &all.Guards, "judge": &all.Judges, "dependent": &all.Dependents, "role": &all.Roles, "elsewhere": &all.Elsewhere, "member": &all.Members,
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
	return all, nil
}

// Uninstall removes all that Look returns but Elsewhere and Members, in one transaction. If
// there is an Elsewhere, the roles stay. It waits for migrations, and for the writers of
// guarded tables.
func Uninstall(ctx context.Context, conn *pgx.Conn) (err error) {
	unlock, err := lock(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if _, err := conn.Exec(ctx, uninstallSQL); err != nil {
		return fmt.Errorf("uninstall: %w", err)
	}
	return nil
}
