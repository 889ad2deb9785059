package parsertest

import (
	"context"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/proxy/internal/sqlscan"
)

// TestGenerated compares statements that are made up, by the catalog of a real
// server with functions, views and types that write.
func TestGenerated(t *testing.T) {
	catalog, known := readObjects(t)
	var scanner sqlscan.Scanner
	var lexing lexing
	var tally tally
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("3000"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		w := writer{t: t, escapes: rapid.Bool().Draw(t, "escapes"), depth: rapid.IntRange(1, 6).Draw(t, "depth")}
		text := w.text()
		tally.queries++
		if difference := lexing.compare(text, w.escapes, 6); difference != "" {
			t.Fatalf("%q, escapes %v: %s", text, w.escapes, difference)
		}
		trees, err := Parse(text, w.escapes)
		if err != nil {
			tally.refused++
			return
		}
		got := scanner.Scan([]byte(text), sqlscan.Options{EscapeStrings: w.escapes}, catalog).Statements
		for i, tree := range trees {
			if wrong := tally.add(kindOf(tree.Stmt), got[i].Write, false, effects(tree.Stmt, known)); wrong != "" {
				t.Fatalf("%q, escapes %v: statement %d is %s", text, w.escapes, i, wrong)
			}
		}
	})
	t.Log(&tally)
	t.Log(&lexing)
	if tally.refused*10 > tally.queries || tally.statements() < tally.queries {
		t.Error("the grammar refuses too much of what is made up")
	}
	// A function behind TREAT or ("analyze") in an EXPLAIN counts as a write without
	// a closer look.
	if alarms := tally.falseAlarms(); alarms*30 > tally.statements() {
		t.Errorf("%d false alarms of %d statements", alarms, tally.statements())
	}
}

// text writes one to three statements.
func (w *writer) text() string {
	w.statement()
	for range rapid.IntRange(0, 2).Draw(w.t, "further statements") {
		w.put(";")
		w.statement()
	}
	return w.out.String() + w.gap()
}

// readObjects starts a server with the objects that sqlscan's own tests use, and
// reads what there is to know of them.
func readObjects(t *testing.T) (*sqlscan.Catalog, *known) {
	ctx := context.Background()
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{Major: 15})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	objects, err := os.ReadFile("../testdata/objects.sql")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.PgConn().Exec(ctx, string(objects)).Close(); err != nil {
		t.Fatal(err)
	}
	catalog, known, err := readCatalogs(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	return catalog, known
}

// TestHarmlessFunctionsHaveTheirReason: of the volatile functions that a server
// comes with, sqlscan's catalog may take for harmless those in testdata/harmless.txt
// only, and those all exist.
func TestHarmlessFunctionsHaveTheirReason(t *testing.T) {
	ctx := context.Background()
	server, err := servers.StartPostgres(ctx, servers.PostgresConfig{Major: 15})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	answer, err := one(ctx, conn, sqlscan.CatalogQuery)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(answer, "\n")
	rows, err := conn.Query(ctx, "select distinct proname::text from pg_proc where provolatile = 'v' and prokind <> 'p' order by 1")
	if err != nil {
		t.Fatal(err)
	}
	volatile, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range volatile {
		taken := slices.Contains(lines, "s"+name) && !slices.Contains(lines, "u"+name)
		if listed := slices.Contains(harmless(), name); taken != listed {
			t.Errorf("%s: the catalog takes it for harmless: %v; it is listed: %v", name, taken, listed)
		}
	}
	for _, name := range harmless() {
		if !slices.Contains(volatile, name) {
			t.Errorf("%s is listed and is no volatile function", name)
		}
	}
}
