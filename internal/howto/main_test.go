package howto

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/stack"
)

// The tests of all pages share these.
var (
	// The role of applications is not the superuser.
	suite = stack.Suite{Objects: "CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO app"}
	tools string // a folder with wirefence
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "WIREFENCE_") && name != "WIREFENCE_CACHE" {
			os.Unsetenv(name)
		}
	}
	var err error
	if tools, err = os.MkdirTemp("", "wf-howto-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tools)
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-w", "-o", filepath.Join(tools, "wirefence"), "github.com/wirefence/wirefence/cmd/wirefence")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return suite.Run(m)
}
