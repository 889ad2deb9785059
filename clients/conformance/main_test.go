package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// python is the distribution's, which its packages are for.
const python = "/usr/bin/python3"

// What the tests have in common.
var (
	// Not the superuser: a takeover can't end its transactions.
	suite = stack.Suite{Objects: `
		CREATE ROLE app LOGIN;
		CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text NOT NULL);
		GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO app;
		CREATE TABLE jobs (id bigint PRIMARY KEY, claim bigint NOT NULL);
		INSERT INTO jobs VALUES (17, 1763900000000000), (18, -1);
		SELECT wirefence.declare_rows('job', 'jobs', '{id}', 'claim', 'id > 0')`}
	binary string // wirefence
	folder string // of the compiled programs for Node
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	servers.ClearSettings()
	dir, err := os.MkdirTemp("", "wf-conformance-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary, folder = filepath.Join(dir, "wirefence"), filepath.Join(dir, "node")
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // most of them wait for time to pass
	return suite.Run(m)
}

// build builds wirefence, and compiles the client for TypeScript and what uses it.
func build() error {
	if _, err := os.Stat(python); err != nil {
		return fmt.Errorf("%w: run scripts/install-servers --test", err)
	}
	compiled := make(chan error, 1)
	go func() { compiled <- compileTypeScript() }()
	err := servers.BuildWirefence(context.Background(), "../..", binary)
	if failed := <-compiled; failed != nil {
		return failed
	}
	return err
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// settings of the compiler for programs that use the client, as an application has them.
const settings = `{"compilerOptions": {"target": "ES2022", "lib": ["ES2022", "ESNext.Disposable"], "types": ["node"], "module": "NodeNext", "strict": true}}`

// compileTypeScript lays out a folder as npm would: the compiled client and the drivers among
// its modules, and the programs beside them.
func compileTypeScript() error {
	if _, err := exec.LookPath("node"); err != nil {
		return fmt.Errorf("%w: run scripts/install-servers --test", err)
	}
	cache, modules := servers.CacheDir(), filepath.Join(folder, "node_modules")
	tsc := filepath.Join(cache, "typescript", "node_modules", "typescript", "bin", "tsc")
	client := filepath.Join(modules, "wirefence")
	if err := os.MkdirAll(client, 0o755); err != nil {
		return err
	}
	types := filepath.Join(cache, "typescript", "node_modules", "@types")
	for link, target := range map[string]string{
		"@types": types, "pg": filepath.Join(cache, "node", "node_modules", "pg"), "postgres": filepath.Join(cache, "node", "node_modules", "postgres"),
	} {
		if _, err := os.Stat(target); err != nil {
			return fmt.Errorf("%w: run scripts/install-servers --test", err)
		}
		if err := os.Symlink(target, filepath.Join(modules, link)); err != nil {
			return err
		}
	}
	if err := command("node", tsc, "-p", "../typescript", "--outDir", filepath.Join(client, "dist"), "--typeRoots", types); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(client, "package.json"), "../typescript/package.json"); err != nil {
		return err
	}
	sources, err := programSources()
	if err != nil {
		return err
	}
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return command("node", tsc, "-p", folder)
}

// programSources are the files of the programs for Node.
func programSources() (map[string]string, error) {
	sources := map[string]string{"package.json": `{"type": "module"}`, "tsconfig.json": settings}
	for _, name := range []string{"testdata/driver.ts", "testdata/hooks.ts", "testdata/blocks.ts", "../typescript/examples/worker.ts"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		sources[filepath.Base(name)] = string(text)
	}
	pages, err := blocks(page, "ts")
	for i, text := range pages {
		sources[fmt.Sprintf("page-%d.ts", i)] = text
	}
	return sources, err
}

func copyFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}
