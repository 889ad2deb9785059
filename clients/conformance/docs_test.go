package conformance

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

const page = "../../docs/reference/clients.md"

// blocks are the texts of a file's blocks in a language.
func blocks(file, language string) (all []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for _, part := range strings.Split(string(text), "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		all = append(all, block+"\n")
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no block of %s", file, language)
	}
	return all, nil
}

// What the page takes for given.
const (
	pageAPI      = "http://127.0.0.1:9433"
	pageDatabase = "app@127.0.0.1:6433/app"
	pagePostgres = "127.0.0.1:5432/app"
)

// here puts the addresses of a world into a program of the page.
func (w *world) here(program string) string {
	return strings.NewReplacer(pagePostgres, w.Addr()+"/"+w.Name, pageAPI, "http://"+w.admin, pageDatabase, strings.TrimPrefix(strings.TrimSuffix(w.url, "?sslmode=disable"), "postgres://")).Replace(program)
}

// writes runs a program of the page, which must have written.
func (w *world) writes(t *testing.T, command ...string) {
	t.Helper()
	before := stack.Value[int](t, w.DB, "SELECT count(*) FROM orders")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = w.environment("docs", w.admin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if after := stack.Value[int](t, w.DB, "SELECT count(*) FROM orders"); after == before {
		t.Error("it has written nothing")
	}
}

// The programs on the page run where unfenced writes are refused.
func TestTheDocumentedPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "WIREFENCE_UNFENCED_WRITES=reject", "WIREFENCE_ADMIN_TOKEN_FILE=")
	programs, err := blocks(page, "python")
	if err != nil {
		t.Fatal(err)
	}
	for i, program := range programs {
		t.Run(fmt.Sprintf("python %d", i), func(t *testing.T) {
			w.writes(t, python, "-c", w.here(program))
		})
	}
	compiled, err := filepath.Glob(filepath.Join(folder, "page-*.js"))
	if err != nil || len(compiled) == 0 {
		t.Fatalf("the page's programs were not compiled: %v", err)
	}
	for i, file := range compiled {
		t.Run(fmt.Sprintf("typescript %d", i), func(t *testing.T) {
			program, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(w.here(string(program))), 0o600); err != nil {
				t.Fatal(err)
			}
			w.writes(t, "node", file)
		})
	}
	t.Run("go", func(t *testing.T) {
		store, err := redis.Open(w.redis.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		client, err := lockclient.New(store, lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: w.Admin, Source: redis.Source}}})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close(context.Background())
		if err := documented(t.Context(), client, stack.Connect(t, w.url)); err != nil {
			t.Error(err)
		}
	})
}

// documented is the program in Go on the page.
func documented(ctx context.Context, client *lockclient.Client, db *pgx.Conn) error {
	lease, err := client.Acquire(ctx, "orders")
	if err != nil {
		return err
	}
	defer lease.Release(context.Background())
	_, err = db.Exec(lease.Context(), "INSERT INTO orders (item) VALUES ('book')"+lease.Fence().Comment())
	return err
}

func TestTheDocumentedGoIsTested(t *testing.T) {
	t.Parallel()
	programs, err := blocks(page, "go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("docs_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range programs {
		indented := "\t" + strings.ReplaceAll(strings.TrimSpace(program), "\n", "\n\t")
		if !strings.Contains(string(source), indented) {
			t.Errorf("this is not in docs_test.go:\n%s", program)
		}
	}
}

// The packages' own pages begin with a program of the page.
func TestTheReadmesAgree(t *testing.T) {
	t.Parallel()
	for folder, language := range map[string]string{"python": "python", "typescript": "ts"} {
		short, err := blocks(filepath.Join("..", folder, "README.md"), language)
		if err != nil {
			t.Fatal(err)
		}
		long, err := blocks(page, language)
		if err != nil {
			t.Fatal(err)
		}
		if short[0] != long[0] {
			t.Errorf("%s has\n%s, the page\n%s", folder, short[0], long[0])
		}
	}
}

// Each way past a hook that the page tells of is tried by a program.
func TestWaysPastHooksAreTried(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var programs []byte
	for _, name := range []string{"testdata/sql.py", "testdata/sql.ts", "../ruby/test/wirefence_test.rb", "../java/src/test/java/io/github/wirefence/FencedDataSourceTest.java"} {
		program, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		programs = append(programs, program...)
	}
	words := func(text string) string {
		return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \n#", r) }), " ")
	}
	_, list, _ := strings.Cut(string(text), "Each way is a test:\n\n- ")
	list, _, _ = strings.Cut(list, "\n\n")
	for item := range strings.SplitSeq(list, "\n- ") {
		_, ways, found := strings.Cut(strings.TrimSuffix(item, "."), ": ")
		if !found {
			t.Errorf("the page names no way past %q", item)
		}
		for way := range strings.SplitSeq(ways, "; ") {
			if !strings.Contains(words(string(programs)), words(way)) {
				t.Errorf("no program tries %s", way)
			}
		}
	}
}

func TestErrorsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	for _, state := range slices.Sorted(maps.Keys(fence.States())) {
		name := "`" + names[state] + "`"
		_, rest, found := strings.Cut(page, name)
		if !found {
			t.Fatalf("the page doesn't have %s in its place, for %s", name, state)
		}
		page = rest
	}
}
