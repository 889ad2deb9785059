package zombietest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

var suite stack.Suite

func TestMain(m *testing.M) { os.Exit(suite.Run(m)) }

// database is the variable that has TestJob explore, with the database's URL.
const database = "WFTEST_DATABASE"

// TestJob is what a user would write. TestExplore runs it.
func TestJob(t *testing.T) {
	url := os.Getenv(database)
	if url == "" {
		return
	}
	free := fmt.Sprintf(`psql -Xqd %q -c "UPDATE locks SET until = now()"`, url)
	for name, write := range map[string]string{"overwrites": "UPDATE totals SET n = $1 + 1", "versioned": "UPDATE totals SET n = $1 + 1 WHERE n = $1"} {
		t.Run(name, func(t *testing.T) {
			Explore(t, Job{
				Database: url, Tables: []string{"totals"}, EndLock: free, Reset: free + ` -c "UPDATE totals SET n = 0"`,
				Run: func(ctx context.Context) error { return count(ctx, write) },
			})
		})
	}
}

// count reads, and writes what it has computed, under a lock that is a row.
func count(ctx context.Context, write string) error {
	conn, err := pgx.Connect(ctx, os.Getenv(database))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	taken, err := conn.Exec(ctx, "UPDATE locks SET until = now() + interval '1 min' WHERE until <= now()")
	if err == nil && taken.RowsAffected() == 0 {
		err = errors.New("another holds the lock")
	}
	if err != nil {
		return err
	}
	var n int
	if err := conn.QueryRow(ctx, "SELECT n FROM totals").Scan(&n); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, write, n)
	return err
}

// A job that overwrites fails its test, with the schedule; one that writes what nobody has changed
// passes.
func TestExplore(t *testing.T) {
	db := suite.Bare(t, 0)
	db.Exec(t, "CREATE TABLE locks (until timestamptz)", "INSERT INTO locks VALUES (now())", "CREATE TABLE totals (n int)", "INSERT INTO totals VALUES (0)")
	for name, want := range map[string]string{"overwrites": "*** goes on", "versioned": "--- PASS: TestJob/versioned"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestJob$/^"+name+"$", "-test.v")
		cmd.Env = append(os.Environ(), database+"="+db.URL(db.Name))
		out, err := cmd.CombinedOutput()
		if (err != nil) != (name == "overwrites") || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
