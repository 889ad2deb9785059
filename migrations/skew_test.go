package migrations_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/migrations"
)

// A binary works with a schema one version apart, if the functions of the older version
// exist.
func TestSchemasOneVersionApartAreServed(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		ctx := context.Background()
		admin, app := db.admin(t), db.app(t)
		for _, c := range []struct {
			apart  int
			served bool
			advice string
		}{
			{0, true, ""}, {1, true, ""}, {-1, true, ""},
			{2, false, "upgrade the binary"}, {-2, false, "wirefence migrate"}, {40, false, "upgrade the binary"},
		} {
			mustExec(t, admin, "UPDATE wirefence.applied_version SET version = $1", migrations.Version()+c.apart)
			differs, err := migrations.Usable(ctx, app)
			switch {
			case c.served && (err != nil || (differs != nil) != (c.apart != 0)):
				t.Errorf("%d apart: %v, %v", c.apart, differs, err)
			case !c.served && (err == nil || !contains(err.Error(), c.advice)):
				t.Errorf("%d apart: %v", c.apart, err)
			}
			if c.apart != 1 {
				continue
			}
			// A rollback migrates, too: with the release before.
			if lines := apply(t, admin); len(lines) != 1 || !contains(lines[0], "one above this binary's") {
				t.Errorf("migrating reports %q", lines)
			}
			if sql, err := migrations.Pending(ctx, admin); sql != "" || err != nil {
				t.Errorf("pending: %q, %v", sql, err)
			}
		}
		mustExec(t, admin, "UPDATE wirefence.applied_version SET version = $1", migrations.Version()+1)
		mustExec(t, admin, "DROP FUNCTION wirefence.proxy_unhold(integer, bigint[])")
		var lacks *migrations.ContentError
		if _, err := migrations.Usable(ctx, app); !errors.As(err, &lacks) {
			t.Errorf("a newer schema that has lost a function: %v", err)
		}
	})
}

// The server can prepare each SQL text of the programs.
func TestProgramsRunOnTheSchema(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		conn, found := db.admin(t), 0
		for path, sql := range programSQL(t) {
			found++
			if _, err := conn.Prepare(t.Context(), "", sql); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		if found < 30 {
			t.Errorf("only %d texts of SQL were found", found)
		}
	})
}

// programSQL returns the SQL texts that the programs send, by their paths.
func programSQL(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, root := range []string{"../fence", "../lockclient", "../internal", "../proxy"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case filepath.Ext(path) != ".sql":
				return nil
			}
			text, err := os.ReadFile(path)
			if strings.Contains(string(text), "wirefence.") {
				all[path] = string(text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
