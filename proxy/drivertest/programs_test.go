package drivertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

func TestPsycopg2(t *testing.T) {
	const python = "/usr/bin/python3"
	need(t, exec.Command(python, "-c", "import psycopg2").Run() == nil, "psycopg2 for "+python)
	rigs(t, func(t *testing.T, r *rig) {
		r.compare(t, program{command: python, args: []string{"testdata/python.py"}})
	})
}

func TestNodePostgres(t *testing.T) {
	needCommand(t, "node")
	modules := filepath.Join(servers.CacheDir(), "node", "node_modules")
	_, err := os.Stat(filepath.Join(modules, "pg", "package.json"))
	need(t, err == nil, "node-postgres in "+modules)
	rigs(t, func(t *testing.T, r *rig) {
		r.compare(t, program{command: "node", args: []string{"testdata/node.cjs"}, env: []string{"NODE_PATH=" + modules}})
	})
}

func TestJDBC(t *testing.T) {
	const jar = "/usr/share/java/postgresql.jar"
	needCommand(t, "javac")
	needCommand(t, "java")
	_, err := os.Stat(jar)
	need(t, err == nil, jar)
	classes := t.TempDir()
	if out, err := exec.Command("javac", "-encoding", "UTF-8", "-cp", jar, "-d", classes, "testdata/Driver.java").CombinedOutput(); err != nil {
		t.Fatalf("javac: %v\n%s", err, out)
	}
	rigs(t, func(t *testing.T, r *rig) {
		r.compare(t, program{command: "java", args: []string{"-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", classes + ":" + jar, "Driver"}})
	})
}
