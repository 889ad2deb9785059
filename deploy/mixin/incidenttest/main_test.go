//go:build linux

// Package incidenttest plays incidents with real servers: sidecars before PostgreSQL, with
// a Prometheus that scrapes them and an Alertmanager that it tells. Each alert has to fire
// and to resolve, and each query of the dashboards has to yield data.
package incidenttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// binary is the program that is tested.
var binary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	servers.ClearSettings()
	dir, err := os.MkdirTemp("", "wf-incidenttest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "wirefence")
	if err := servers.BuildWirefence(context.Background(), "../../..", binary); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
