package howto

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// The tests of all pages share these.
var (
	// The role of applications is not the superuser.
	suite = stack.Suite{Objects: "CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO app"}
	tools string // a folder with wirefence, golang-migrate and Liquibase
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	servers.ClearSettings()
	var err error
	if tools, err = os.MkdirTemp("", "wf-howto-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tools)
	if err := os.Chmod(tools, 0o755); err != nil { // a reader isn't root
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := servers.BuildWirefence(context.Background(), "../..", filepath.Join(tools, "wirefence")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	liquibase := filepath.Join(servers.CacheDir(), "liquibase/node_modules/liquibase/dist/liquibase/liquibase")
	if _, err := os.Stat(liquibase); err != nil {
		fmt.Fprintln(os.Stderr, err, "scripts/install-servers --test fetches it")
		return 1
	}
	if err := os.Symlink(liquibase, filepath.Join(tools, "liquibase")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	migrate := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-w", "-tags=pgx5", "-o", tools, "github.com/golang-migrate/migrate/v4/cmd/migrate")
	migrate.Dir = "testdata/migrate"
	if out, err := migrate.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return suite.Run(m)
}
