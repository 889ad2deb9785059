package queuetest

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// How much the soak test does with each queue.
var (
	jobs  = flag.Int("jobs", 40, "how many jobs each queue is given")
	stops = flag.Int("stops", 20, "how often a worker of each queue is stopped for longer than the queue waits")
	major = flag.Int("postgres", 0, "the version of PostgreSQL; 0 is the one that all tests use")
	hurry = flag.Int("hurry", 1, "by how much workers are faster than they usually are: their pauses are shorter, and the long ones rarer")
	seed  = flag.Int("seed", 1, "what decides what workers do, and what happens to them; 0 takes another each time")
)

// The page's worker for a queue of its own needs psycopg, which is the distribution's.
const python = "/usr/bin/python3"

var suite = stack.Suite{Parallel: 4, Objects: `CREATE ROLE app LOGIN; ALTER ROLE app SET idle_in_transaction_session_timeout = '2s'`}

//go:embed testdata/history.sql
var historySQL string

var (
	modules string // of the programs for Node
	clients string // for Python
)

func TestMain(m *testing.M) {
	if os.Getenv(riverProcess) != "" {
		os.Exit(workRiver())
	}
	flag.Parse()
	if *seed == 0 {
		*seed = int(time.Now().Unix() % 1e6)
	}
	dir, err := os.MkdirTemp("", "wf-queues-")
	if err == nil {
		modules = filepath.Join(dir, "node_modules")
		err = installModules()
		clients, _ = filepath.Abs("../../clients/python")
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v: run scripts/install-servers --test\n", err)
		os.Exit(1)
	}
	code := suite.Run(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// installModules lays out what the workers for Node import: the libraries, from the cache, and the
// client for TypeScript, compiled.
func installModules() error {
	cached, err := filepath.Glob(filepath.Join(servers.CacheDir(), "queues", "node_modules", "*"))
	if err != nil {
		return err
	}
	if len(cached) == 0 {
		return errors.New("the queues' libraries for Node are not installed")
	}
	client := filepath.Join(modules, "wirefence")
	if err := os.MkdirAll(client, 0o755); err != nil {
		return err
	}
	for _, module := range cached {
		if err := os.Symlink(module, filepath.Join(modules, filepath.Base(module))); err != nil {
			return err
		}
	}
	compiler := filepath.Join(servers.CacheDir(), "typescript", "node_modules")
	if out, err := exec.Command("node", filepath.Join(compiler, "typescript", "bin", "tsc"), "-p", "../../clients/typescript",
		"--outDir", filepath.Join(client, "dist"), "--typeRoots", filepath.Join(compiler, "@types")).CombinedOutput(); err != nil {
		return fmt.Errorf("tsc: %w\n%s", err, out)
	}
	text, err := os.ReadFile("../../clients/typescript/package.json")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(client, "package.json"), text, 0o600)
}
