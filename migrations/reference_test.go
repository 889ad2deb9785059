package migrations_test

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

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

Refusals are errors of [class ` + "`WF`" + `](errors.md). A value that is out of range gets
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
