package migrations_test

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

var updateManifest = flag.Bool("update-manifest", false, "write migrations/manifest.json anew")

// schema is what a database has in the schema, by object and property.
type schema map[string]map[string]string

func readSchema(t *testing.T, conn *pgx.Conn) schema {
	t.Helper()
	is, err := migrations.ReadFacts(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// The manifest has what the migrations create, on each version of PostgreSQL, where the server
// reports its timeline and where it does not.
func TestTheManifest(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		want := map[string]migrations.Object{}
		add := func(is schema, version int) {
			for name, facts := range is {
				if _, has := want[name]; !has {
					want[name] = migrations.Object{Since: version, Facts: map[string][]string{}}
				}
				for property, value := range facts {
					if values := want[name].Facts[property]; version == migrations.Version() && !slices.Contains(values, value) {
						want[name].Facts[property] = append(values, value)
					}
				}
			}
		}
		stepwise, trusting := create(t, db.Postgres, "TEMPLATE template0").admin(t), unlike(t, db, untold).admin(t)
		for version := 1; version <= migrations.Version(); version++ {
			if err := (migrations.Options{}).To(version).Apply(t.Context(), stepwise, nil); err != nil {
				t.Fatal(err)
			}
			add(readSchema(t, stepwise), version)
		}
		if err := (migrations.Options{Failover: fence.FailoverTrust}).Apply(t.Context(), trusting, nil); err != nil {
			t.Fatal(err)
		}
		mustExec(t, trusting, "CREATE TABLE public.guarded (id int); SELECT wirefence.protect('public.guarded', 'orders'), wirefence.grant_on_nodes(), wirefence.set_carry_name(true, 'why')") // these replace any_guards, citus_group and carries_name
		add(readSchema(t, trusting), migrations.Version())
		maps.DeleteFunc(want, func(_ string, o migrations.Object) bool { return len(o.Facts) == 0 }) // dropped by a later version
		var file bytes.Buffer
		for i, name := range slices.Sorted(maps.Keys(want)) {
			line, err := json.Marshal(want[name])
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&file, "%s\n%q: %s", map[bool]string{true: "{", false: ","}[i == 0], name, line)
		}
		file.WriteString("\n}\n")
		if *updateManifest {
			if err := os.WriteFile("manifest.json", file.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if has, err := os.ReadFile("manifest.json"); err != nil || !bytes.Equal(has, file.Bytes()) {
			t.Errorf("manifest.json isn't what the migrations create (%v): run go test -short -run TestTheManifest ./migrations -update-manifest", err)
		}
	})
}

// Each object has a definition, and those of the functions change nothing.
func TestDefinitionsAreTheMigrations(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		for name, o := range migrations.Manifest() {
			definition := migrations.Definition(name)
			if definition == "" && name != "schema wirefence" {
				t.Errorf("%s has no definition", name)
			}
			if strings.HasPrefix(name, "function ") {
				mustExec(t, admin, "SET ROLE wirefence_owner; "+definition)
			}
			for property := range o.Facts {
				if strings.HasPrefix(property, "trigger ") && !strings.HasPrefix(migrations.Definition(property), "CREATE TRIGGER") {
					t.Errorf("%s has no definition", property)
				}
			}
		}
		wantNoDrift(t, admin)
	})
}

var updateReference = flag.Bool("update-reference", false, "write docs/reference/sql.md anew")

//go:embed reference_test.sql
var referenceSQL string

type sqlFunction struct {
	Signature, Result, Caller string
	Issuers                   bool
	Description               string
}

const referencePage = "../docs/reference/sql.md"

const referenceIntro = `# SQL functions

This page is for developers who call Wirefence from SQL: to check or hold a fence without the
proxy, to take leases, or to read tokens, handoffs and policies. The comments of the functions
in the database say the same: ` + "`\\df+ wirefence.check`" + ` in psql.

Refusals are errors of [class ` + "`WF`" + `](../troubleshooting.md). A value that is out of range gets
` + "`22023`" + `. Functions that aren't listed here are the schema's own and may change.
`

// The reference has each function that has a comment, as the catalog has it.
func TestTheReferenceOfFunctions(t *testing.T) {
	all := stack.Versions()
	db := withSchema(t, suite.Server(t, all[len(all)-1]))
	rows, err := db.admin(t).Query(t.Context(), referenceSQL)
	if err != nil {
		t.Fatal(err)
	}
	functions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sqlFunction])
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(referenceIntro)
	for _, part := range []struct{ caller, title string }{
		{"everybody", "For every role"}, {"wirefence_issuer", "For members of `wirefence_issuer`"},
	} {
		fmt.Fprintf(&page, "\n## %s\n\n| function | returns | description |\n|---|---|---|\n", part.title)
		for _, f := range functions {
			if !f.Issuers {
				t.Errorf("%s can't be called by an issuer", f.Signature)
			}
			if f.Caller == part.caller {
				fmt.Fprintf(&page, "| `%s` | `%s` | %s |\n", f.Signature, f.Result, strings.ReplaceAll(f.Description, "|", `\|`))
			}
		}
	}
	if *updateReference {
		if err := os.WriteFile(referencePage, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(referencePage)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != page.String() {
		t.Errorf("%s isn't what the comments in the schema say: run go test -short -run TestTheReferenceOfFunctions ./migrations -update-reference", referencePage)
	}
}
