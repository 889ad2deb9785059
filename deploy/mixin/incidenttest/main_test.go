//go:build linux

// Package incidenttest plays incidents with real servers: sidecars before PostgreSQL, with
// a Prometheus that scrapes them and an Alertmanager that it tells. Each alert has to fire
// and to resolve, and each query of the dashboards has to yield data.
package incidenttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// binary is the program that is tested.
var binary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "OTEL_") || strings.HasPrefix(name, "WIREFENCE_") && name != "WIREFENCE_CACHE" {
			os.Unsetenv(name)
		}
	}
	dir, err := os.MkdirTemp("", "wf-incidenttest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "wirefence")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "github.com/wirefence/wirefence/cmd/wirefence").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
