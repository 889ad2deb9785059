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

// Script writes the SQL that brings an empty database to this version, for an operator to read
// or to run with psql. The SQL refuses a server that does not report its timeline, unless the
// session's setting wirefence.failover is trust.
func Script(w io.Writer) error {
	_, err := io.WriteString(w, "BEGIN;\n"+stayHereSQL+rolesSQL+becomeOwnerSQL+versionTableSQL+numberedSQL(0)+citusSQL+"COMMIT;\n")
	return err
}

// Pending is Options.Pending with the defaults.
func Pending(ctx context.Context, conn *pgx.Conn) (string, error) {
	return Options{}.Pending(ctx, conn)
}

// Pending returns the SQL that Apply would run on this database, "" if there is nothing to do,
// and changes nothing. It does not check rights. A database that is ahead of this binary by
// more than one version gives a *VersionError, an unfit server an *UnfitError.
func (o Options) Pending(ctx context.Context, conn *pgx.Conn) (string, error) {
	have, err := current(ctx, conn)
	if err != nil {
		return "", err
	}
	if ahead, err := isAhead(have, func(string) {}); ahead {
		return "", err
	}
	if have == 0 {
		if err := refuseStrangers(ctx, conn); err != nil {
			return "", err
		}
	}
	if err := o.probe(ctx, conn, have); err != nil {
		return "", err
	}
	steps, err := preflight(ctx, conn, o.trusts())
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, s := range steps {
		b.WriteString(s.Statement + ";\n")
	}
	if have < Version() {
		b.WriteString(becomeOwnerSQL)
	}
	if have == 0 {
		if o.trusts() {
			b.WriteString("SET LOCAL wirefence.failover = 'trust';\n")
		}
		b.WriteString(versionTableSQL)
	}
	b.WriteString(numberedSQL(have))
	if has, err := OnNodes(ctx, conn); err != nil {
		return "", err
	} else if o.Citus == CitusNodes && !has {
		b.WriteString("SET LOCAL wirefence.citus = 'nodes';\n")
	}
	if b.Len() == 0 {
		return "", nil
	}
	return "BEGIN;\n" + stayHereSQL + b.String() + citusSQL + "COMMIT;\n", nil
}

//go:embed version_table.sql
var versionTableSQL string

//go:embed citus.sql
var citusSQL string

// stayHereSQL keeps Citus from sending the rest of the transaction to workers. Elsewhere the
// setting means nothing.
const stayHereSQL = "SET LOCAL citus.enable_ddl_propagation = off;\n"

// becomeOwnerSQL makes wirefence_owner the owner of what the rest of the transaction creates.
const becomeOwnerSQL = "SET LOCAL ROLE wirefence_owner;\n"

// numberedSQL returns the text of the files after a version.
func numberedSQL(after int) string {
	var b strings.Builder
	for i, name := range numbered()[after:] {
		fmt.Fprintf(&b, "\n-- %s\n%s", name, stepSQL(after+i))
	}
	return b.String()
}

// stepSQL returns the text that brings a schema from a version to the next.
func stepSQL(from int) string {
	return fmt.Sprintf("%s\nUPDATE %s SET version = %d;\n", strings.TrimSpace(source(numbered()[from])), versionTable, from+1)
}
