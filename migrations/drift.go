package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Drift is a difference between the schema and what this binary's migrations create.
type Drift struct {
	// Object is a function, table, sequence, view or schema.
	Object string
	// Fault says what is wrong with it.
	Fault string
	// Remedy is a list of SQL statements that repair it, to be run by wirefence_owner or a
	// superuser; nil if only a restore repairs it.
	Remedy []string
	// Harmless says that no fence depends on it: a role may read what only the issuer
	// should.
	Harmless bool
}

//go:embed drift_functions.sql
var driftFunctionsSQL string

//go:embed drift_relations.sql
var driftRelationsSQL string

//go:embed drift_rights.sql
var driftRightsSQL string

var expected = sync.OnceValues(func() (*installed, error) { return readInstalled(sourcesTo(Version())) })

// expectedAt returns what the migrations up to a version create.
func expectedAt(version int) (*installed, error) {
	if version == Version() {
		return expected()
	}
	return readInstalled(sourcesTo(version))
}

// sourcesTo returns the text of the migrations up to a version.
func sourcesTo(version int) string {
	var all strings.Builder
	all.WriteString(versionTableSQL)
	for _, name := range numbered()[:version] {
		all.WriteString(source(name) + ";\n")
	}
	return all.String()
}

// Drifts compares the database with what the migrations create: functions with their bodies,
// settings and owner; tables, views and sequences; and the rights of every role. The schema
// must be at this binary's version, and the connection outside a transaction. Any role may call
// it.
func Drifts(ctx context.Context, conn *pgx.Conn) ([]Drift, error) {
	want, err := expected()
	if err != nil {
		return nil, err
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// The search_path of the role may have other operators before the system's. Names are
	// compared as the server writes them, so it must not quote all of them.
	if _, err := tx.Exec(ctx, "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('quote_all_identifiers', 'off', true)"); err != nil {
		return nil, err
	}
	var usable bool
	if err := tx.QueryRow(ctx, "SELECT has_schema_privilege(current_user, 'wirefence', 'USAGE')").Scan(&usable); err != nil {
		return nil, err
	}
	if !usable { // the role can't look up names in the schema
		g := grant{"USAGE", "SCHEMA wirefence", "PUBLIC"}
		return []Drift{{Object: "schema wirefence", Fault: "PUBLIC lacks USAGE", Remedy: []string{g.statement()}}}, nil
	}
	var all []Drift
	for _, compare := range []func(context.Context, pgx.Tx, *installed) ([]Drift, error){functionDrifts, relationDrifts, rightDrifts} {
		found, err := compare(ctx, tx, want)
		if err != nil {
			return nil, fmt.Errorf("compare the wirefence schema: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// present is a function as the catalog has it.
type present struct {
	Signature string // as the migrations write it; "" for a function that they do not create
	Name      string // as the catalog has it
	Owner     string
	Body      string
	Parsed    bool
	Definer   bool
	Strict    bool
	Volatile  string
	Settings  []string
}

// IdentitySQL returns the statement that makes wirefence.identity ask the server, for a schema
// that was created where the server did not report its identity. wirefence_owner must run it.
func IdentitySQL() (string, error) {
	want, err := expected()
	if err != nil {
		return "", err
	}
	return want.functions["wirefence.identity()"].statement, nil
}

func functionDrifts(ctx context.Context, tx pgx.Tx, want *installed) (all []Drift, err error) {
	rows, err := tx.Query(ctx, driftFunctionsSQL, slices.Sorted(maps.Keys(want.functions)))
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[present])
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		f := want.functions[p.Signature]
		object := "function " + p.Signature
		switch {
		case f == nil:
			all = append(all, Drift{Object: "function " + p.Name, Fault: "it is not Wirefence's", Remedy: []string{"DROP FUNCTION " + p.Name}})
			continue
		case p.Name == "":
			all = append(all, Drift{Object: object, Fault: "it is missing", Remedy: append([]string{f.statement}, want.grantsOf("FUNCTION "+p.Signature)...)})
			continue
		case p.Owner != owner:
			all = append(all, Drift{Object: object, Fault: "it belongs to " + p.Owner, Remedy: []string{"ALTER FUNCTION " + p.Name + " OWNER TO " + owner}})
		}
		if fault := f.fault(p); fault != "" {
			all = append(all, Drift{Object: object, Fault: fault, Remedy: []string{f.statement}})
		}
	}
	return all, nil
}

// owner is the role that owns everything in the schema.
const owner = "wirefence_owner"

// fault says how a function differs from the migrations, "" if it does not.
func (f *function) fault(p present) string {
	switch {
	case f.definer && !p.Definer:
		return "it is not SECURITY DEFINER any more"
	case !f.definer && p.Definer:
		return "it was made SECURITY DEFINER"
	case !slices.Equal(settings(f.settings), settings(p.Settings)):
		return fmt.Sprintf("its settings are %s, not %s", orNone(p.Settings), orNone(f.settings))
	case f.strict != p.Strict, f.volatile != p.Volatile:
		return "its volatility or strictness was changed"
	case f.parsed != p.Parsed, !slices.ContainsFunc(f.bodies, func(body string) bool {
		return body == p.Body || f.parsed && undecorated(body) == undecorated(p.Body)
	}):
		return "its body was changed"
	}
	return ""
}

// settings returns the settings of a function in order. A server that had quote_all_identifiers
// on when the function was created has their names in quotes.
func settings(of []string) (all []string) {
	for _, s := range of {
		all = append(all, quotedName.ReplaceAllString(s, "$1"))
	}
	slices.Sort(all)
	return all
}

var quotedName = regexp.MustCompile(`"([a-z_]+)"`)

func orNone(settings []string) string {
	if len(settings) == 0 {
		return "none"
	}
	return strings.Join(settings, "; ")
}

// decoration matches what PostgreSQL adds when it prints an expression that it keeps as a tree:
// parentheses, casts, quotes, line breaks, and the names of schemas.
var decoration = regexp.MustCompile(`::[a-z]+(?: [a-z]+)*(?:\[\])?|pg_catalog\.|[\s()'"]`)

// undecorated returns an expression without the parts in which its text may differ.
func undecorated(expression string) string {
	return strings.ToLower(decoration.ReplaceAllString(strings.TrimPrefix(strings.TrimSpace(expression), "RETURN "), ""))
}

// grantsOf returns the statements that grant rights on an object.
func (in *installed) grantsOf(object string) (all []string) {
	for _, g := range in.grants {
		if g.object == object {
			all = append(all, g.statement())
		}
	}
	return all
}

func relationDrifts(ctx context.Context, tx pgx.Tx, want *installed) (all []Drift, err error) {
	rows, err := tx.Query(ctx, driftRelationsSQL, slices.Sorted(maps.Keys(want.relations)), owner, slices.Sorted(maps.Keys(want.triggers)))
	if err != nil {
		return nil, err
	}
	var name, fault, remedy, trigger string
	_, err = pgx.ForEachRow(rows, []any{&name, &fault, &remedy, &trigger}, func() error {
		d := Drift{Object: name, Fault: fault}
		switch {
		case remedy != "":
			d.Remedy = []string{remedy}
		case trigger != "":
			d.Remedy = []string{want.triggers[name+" "+trigger]}
		case fault == "it is missing":
			d.Remedy = append([]string{want.relations[name]}, want.grantsOf("TABLE "+name)...)
		}
		all = append(all, d)
		return nil
	})
	return all, err
}

func rightDrifts(ctx context.Context, tx pgx.Tx, want *installed) (all []Drift, err error) {
	var rights, objects, roles []string
	for _, g := range want.grants {
		rights, objects, roles = append(rights, g.right), append(objects, g.object), append(roles, g.role)
	}
	rows, err := tx.Query(ctx, driftRightsSQL, rights, objects, roles, owner)
	if err != nil {
		return nil, err
	}
	var right, object, role string
	var surplus bool
	_, err = pgx.ForEachRow(rows, []any{&right, &object, &role, &surplus}, func() error {
		g := grant{right, object, role}
		kind, name, _ := strings.Cut(object, " ")
		if surplus && kind == "FUNCTION" && want.functions[name] == nil {
			return nil // functionDrifts reports it
		}
		d := Drift{Object: strings.ToLower(kind) + " " + name, Fault: fmt.Sprintf("%s lacks %s", role, right), Remedy: []string{g.statement()}}
		if surplus {
			d.Fault, d.Harmless = fmt.Sprintf("%s has %s", role, right), right == "SELECT"
			d.Remedy = []string{fmt.Sprintf("REVOKE %s ON %s FROM %s", right, object, role)}
		}
		all = append(all, d)
		return nil
	})
	return all, err
}
