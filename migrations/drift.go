package migrations

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

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

//go:embed drift.sql
var driftSQL string

// Drifts compares the database with what the migrations create: functions with their bodies,
// settings and owner; tables, views and sequences; and the rights of every role. The schema
// must be at this binary's version, and the connection outside a transaction. Any role may call
// it.
func Drifts(ctx context.Context, conn *pgx.Conn) (all []Drift, err error) {
	found, err := readFacts(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("compare the wirefence schema: %w", err)
	}
	for _, name := range keys(manifest(), found) {
		all = append(all, compare(name, manifest()[name].Facts, found[name])...)
	}
	return all, nil
}

// readFacts returns the properties of each object in the schema. The connection must be outside
// a transaction.
func readFacts(ctx context.Context, conn *pgx.Conn) (map[string]map[string]string, error) {
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
	rows, err := tx.Query(ctx, driftSQL)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]string{}
	var name, property, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &property, &value}, func() error {
		if all[name] == nil {
			all[name] = map[string]string{}
		}
		all[name][property] = value
		return nil
	})
	return all, err
}

// keys returns the keys of two maps, in order.
func keys[A, B any](a map[string]A, b map[string]B) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b)))))
}

// compare returns how an object differs from the manifest. want is nil if the migrations don't
// create it, found if the database lacks it.
func compare(name string, want map[string][]string, found map[string]string) (all []Drift) {
	kind, id, _ := strings.Cut(name, " ")
	switch {
	case found == nil:
		return []Drift{{Object: strings.TrimPrefix(name, "table "), Fault: "it is missing", Remedy: append([]string{definition(name)}, grants(name, want)...)}}
	case want == nil && kind == "function":
		return []Drift{{Object: name, Fault: "it is not Wirefence's", Remedy: []string{"DROP FUNCTION " + id}}}
	case kind == "function":
		all = redefine(name, want, found)
	}
	for _, property := range keys(want, found) {
		if is := found[property]; !slices.Contains(want[property], is) {
			if d := differ(name, property, strings.Join(want[property], ""), is); d.Fault != "" && (want != nil || strings.HasPrefix(property, "right ")) {
				all = append(all, d)
			}
		}
	}
	return all
}

// redefine returns the first difference that another definition of a function has caused.
func redefine(name string, want map[string][]string, found map[string]string) []Drift {
	for _, property := range []string{"security", "settings", "behaviour", "body"} {
		is := found[property]
		if slices.Contains(want[property], is) {
			continue
		}
		d := Drift{Object: name, Remedy: []string{definition(name)}}
		switch property {
		case "security":
			d.Fault = "it is not SECURITY DEFINER any more"
			if is == "definer" {
				d.Fault = "it was made SECURITY DEFINER"
			}
		case "settings":
			d.Fault = fmt.Sprintf("its settings are %s, not %s", is, want[property][0])
		case "behaviour":
			d.Fault = "its volatility or strictness was changed"
		case "body":
			d.Fault = "its body was changed"
		}
		return []Drift{d}
	}
	return nil
}

// differ returns a difference that no definition repairs, or no fault if it is none. want or is
// is empty for a property that an object should not have, or lacks.
func differ(name, property, want, is string) Drift {
	kind, id, _ := strings.Cut(name, " ")
	kind = strings.ToUpper(kind)
	of, what, _ := strings.Cut(property, " ")
	d := Drift{Object: strings.TrimPrefix(name, "table ")}
	repair := func(fault, remedy string) Drift {
		d.Fault, d.Remedy = fault, []string{remedy}
		return d
	}
	switch {
	case of == "owner":
		return repair("it belongs to "+is, fmt.Sprintf("ALTER %s %s OWNER TO %s", kind, id, want))
	case of == "policies":
		return repair("row level security is on", fmt.Sprintf("ALTER TABLE %s DISABLE ROW LEVEL SECURITY", id))
	case of == "index":
		return repair(fmt.Sprintf("its index %s is not valid", what), "REINDEX INDEX "+what)
	case of == "rule":
		return repair("it has the rule "+what, fmt.Sprintf("DROP RULE %s ON %s", what, id))
	case of == "trigger" && want == "":
		return repair("it has the trigger "+what, fmt.Sprintf("DROP TRIGGER %s ON %s", what, id))
	case of == "trigger" && is == "":
		return repair("it lacks the trigger "+what, definition(property))
	case of == "trigger":
		return repair(fmt.Sprintf("its trigger %s is disabled", what), fmt.Sprintf("ALTER TABLE %s ENABLE TRIGGER %s", id, what))
	case want != "" && (of == "column" || of == "constraint"):
		if d.Fault = fmt.Sprintf("it lacks the %s", property); is != "" {
			d.Fault = fmt.Sprintf("its %s is %s, not %s", property, is, want)
		}
	case of == "right":
		right, role, _ := strings.Cut(what, " to ")
		d.Object = name
		if is == "" {
			return repair(fmt.Sprintf("%s lacks %s", role, right), fmt.Sprintf("GRANT %s ON %s %s TO %s", right, kind, id, role))
		}
		d.Harmless = right == "SELECT"
		return repair(fmt.Sprintf("%s has %s", role, right), fmt.Sprintf("REVOKE %s ON %s %s FROM %s", right, kind, id, role))
	}
	return d
}

// grants returns the statements that grant the rights on an object.
func grants(name string, want map[string][]string) (all []string) {
	for _, property := range keys(want, map[string]string{}) {
		if strings.HasPrefix(property, "right ") {
			all = append(all, differ(name, property, "granted", "").Remedy...)
		}
	}
	return all
}
