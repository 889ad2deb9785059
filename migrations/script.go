package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed roles.sql
var rolesSQL string

// Script writes the SQL that brings an empty database to this version, for an
// operator to read or to run with psql.
func Script(w io.Writer) error {
	_, err := io.WriteString(w, rolesSQL+versionTableSQL+numberedSQL(0))
	return err
}

// Pending returns the SQL that Apply would run on this database, "" if there is
// nothing to do, and changes nothing. Rights are not judged. A database that is
// ahead of this binary gives a *VersionError.
func Pending(ctx context.Context, conn *pgx.Conn) (string, error) {
	have, err := current(ctx, conn)
	if err != nil {
		return "", err
	}
	if have > Version() {
		return "", &VersionError{Have: have, Need: Version()}
	}
	steps, err := preflight(ctx, conn)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(s.Statement + ";\n")
	}
	if have == 0 {
		b.WriteString(versionTableSQL)
	}
	b.WriteString(numberedSQL(have))
	return b.String(), nil
}

//go:embed version_table.sql
var versionTableSQL string

// numberedSQL is the text of the files after a version, each as the
// transaction that applies it.
func numberedSQL(after int) string {
	var b strings.Builder
	for i, name := range numbered()[after:] {
		fmt.Fprintf(&b, "\n-- %s\nBEGIN;\nSET LOCAL ROLE wirefence_owner;\n%s\n", name, strings.TrimSpace(source(name)))
		fmt.Fprintf(&b, "UPDATE %s SET version = %d;\nCOMMIT;\n", versionTable, after+i+1)
	}
	return b.String()
}
