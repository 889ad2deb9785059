package howto

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// guide is a page that is followed, and what it says that its reader has.
type guide struct {
	page   string
	proxy  bool // on port 6433, with the API on 9433
	pooler bool // PgBouncer on port 6432, before the proxy or the server, with the page's settings
	redis  bool // on port 6379
	newest bool // the newest frameworks of Python, as pip installs them
	bare   bool // a database without the schema, which the page creates
	// What else is in the folder.
	builds func(t *testing.T, folder string)
	// The programs that the page is about, a command that prints their versions, and the way to fence them.
	programs, versions, way string
}

// versionsOf is a command that prints the versions of Python's packages.
func versionsOf(names ...string) string {
	return `/usr/bin/python3 -c 'import sys; from importlib.metadata import version; print(", ".join(map(version, sys.argv[1:])))' ` + strings.Join(names, " ")
}

var guides = []guide{
	{page: "howto/cron.md", bare: true, programs: "psql under cron", versions: "psql --version", way: "wirefence lock, guard"},
	{page: "howto/queue.md", proxy: true, programs: "psycopg, a queue", versions: versionsOf("psycopg"), way: "claims of rows, guard"},
	{page: "howto/django.md", proxy: true, pooler: true, redis: true, programs: "Django, Celery, SQLAlchemy", versions: versionsOf("django", "celery", "sqlalchemy"), way: "wirefence lock; hook, proxy"},
	{page: "howto/langgraph.md", newest: true, programs: "LangGraph, its checkpointer", versions: versionsOf("langgraph", "langgraph-checkpoint-postgres"), way: "hook, guard"},
	{page: "howto/leader.md"},
	{page: "howto/redis-lock.md", redis: true, programs: "redis-py", versions: versionsOf("redis"), way: "sidecar, guard"},
	{page: "howto/advisory-lock.md"},
	{page: "howto/lock-table.md"},
	{page: "howto/rails.md", redis: true, programs: "ActiveRecord, Sidekiq", versions: "ruby -e 'require %q(active_record); require %q(sidekiq); puts [ActiveRecord.version, Sidekiq::VERSION] * %q(, )'", way: "client, guard"},
	{page: "howto/spring.md", builds: javaClient, programs: "Spring Boot, HikariCP, ShedLock", versions: "ls boot | sed -En 's/^(spring-boot|HikariCP|shedlock-core)-([0-9.]+)[.]jar$/\\2/p' | sort -V | paste -sd,", way: "client, guard"},
	{page: "howto/go.md", builds: goProgram},
	{page: "reference/sources.md", proxy: true},
	{page: "howto/backup.md"},
	{page: "howto/migrations.md", pooler: true, builds: flyway, programs: "Alembic", versions: versionsOf("alembic"), way: "wirefence lock, guard"},
	{page: "howto/uninstall.md", bare: true},
	{page: "howto/zombie.md", bare: true},
	{page: "symptoms/job-ran-twice.md", bare: true},
	{page: "symptoms/two-leaders.md", bare: true},
	{page: "symptoms/split-brain.md", bare: true},
	{page: "symptoms/charged-twice.md", bare: true},
	{page: "symptoms/lost-update.md", bare: true},
	{page: "symptoms/zombie-worker.md", bare: true},
	{page: "symptoms/advisory-lock-pgbouncer.md", bare: true, pooler: true},
}

// Each page is followed as its reader would, in an empty folder: each command prints what
// the page shows. A table tells how soon a former holder's write was refused.
func TestPages(t *testing.T) {
	t.Parallel()
	rows := make([]string, len(guides))
	t.Cleanup(func() {
		slices.Sort(rows)
		t.Logf("program | version | way | commands | seconds to the first refused write\n%s", strings.TrimLeft(strings.Join(rows, "\n"), "\n"))
	})
	for i, g := range guides {
		t.Run(strings.TrimSuffix(g.page, ".md"), func(t *testing.T) {
			t.Parallel()
			rows[i] = g.follow(t)
		})
	}
}

// elsewhere are pages with commands that other tests type.
var elsewhere = []string{"tutorial.md", "howto/compose.md"}

// No page with commands is left out.
func TestAllPagesAreFollowed(t *testing.T) {
	t.Parallel()
	followed := slices.Clone(elsewhere)
	for _, g := range guides {
		followed = append(followed, g.page)
	}
	found := 0
	err := fs.WalkDir(os.DirFS("../../docs"), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || path.Ext(name) != ".md" {
			return err
		}
		text, err := os.ReadFile("../../docs/" + name)
		if strings.Contains(string(text), "```console\n") {
			found++
			if !slices.Contains(followed, name) {
				t.Errorf("%s is not followed", name)
			}
		}
		return err
	})
	if err != nil || found < len(guides) {
		t.Errorf("%d pages have commands, %v", found, err)
	}
}

// follow returns the page's row in the table, "" if it refuses nobody.
func (g guide) follow(t *testing.T) (row string) {
	text, err := os.ReadFile("../../docs/" + g.page)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	steps, err := pages.Steps(page)
	if err != nil || len(steps) == 0 {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	db := suite.Database(t, 0)
	if g.bare {
		db = bare(t)
	}
	replace := map[string]string{"shop": db.Name, "5432": strconv.Itoa(db.Port)}
	for _, port := range []string{"6433", "9433", "6434", "9434", "6380", "6381"} {
		free, err := servers.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		replace[port] = strconv.Itoa(free)
	}
	if g.redis {
		redis := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
		replace["6379"] = stack.Port(redis.Addr())
	}
	if g.proxy {
		startProxy(t, db, replace)
	}
	if g.pooler {
		behind := replace["5432"]
		if g.proxy {
			behind = replace["6433"]
		}
		replace["6432"] = strconv.Itoa(startPooler(t, page, "127.0.0.1:"+behind))
	}
	folder := t.TempDir()
	writeFiles(t, folder, page, replace)
	if g.builds != nil {
		g.builds(t, folder)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	walk := walkIn(t, folder, replace)
	if g.newest {
		walk.Env = append(walk.Env, "PYTHONPATH="+clients(t)+"/python:"+filepath.Join(servers.CacheDir(), "python"))
	}
	commands, took := follow(t, ctx, walk, steps)
	if commands == 0 || g.programs == "" {
		return ""
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", g.versions)
	cmd.Dir, cmd.Env = folder, walk.Env
	versions, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v", g.versions, err)
	}
	return fmt.Sprintf("%s | %s | %s | %d | %.1f", g.programs, bytes.TrimSpace(versions), g.way, commands, took.Seconds())
}

// bare returns a database without the schema, where app may create tables.
func bare(t *testing.T) *stack.DB {
	t.Helper()
	suite.Database(t, 0) // which has created the role app
	db := suite.Bare(t, 0)
	db.Exec(t, "GRANT CREATE ON SCHEMA public TO app")
	return db
}

// clients is the folder of the clients, which are installed from a clone, as docs/reference/clients.md says.
func clients(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs("../../clients")
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// walkIn returns a walk of an ordinary user in a folder.
func walkIn(t *testing.T, folder string, replace map[string]string) pages.Walk {
	t.Helper()
	clients := clients(t)
	return pages.Walk{Dir: folder, Replace: replace, User: ordinaryUser(t, folder), Env: []string{
		"PATH=" + tools + ":/usr/bin:/bin:/usr/sbin", "HOME=" + folder, "LC_ALL=C.UTF-8",
		"PYTHONPATH=" + clients + "/python", "PYTHONDONTWRITEBYTECODE=1", "RUBYLIB=" + clients + "/ruby/lib",
	}}
}

// follow types the steps. It returns by which command the first write of a former holder was refused, and when; 0 if
// none was.
func follow(t *testing.T, ctx context.Context, walk pages.Walk, steps []pages.Step) (commands int, took time.Duration) {
	t.Helper()
	began, done := time.Now(), 0
	walk.Done = func(step pages.Step) {
		if done++; commands == 0 && step.ShowsRefusal() {
			commands, took = done, time.Since(began)
		}
	}
	if err := walk.Run(ctx, steps); err != nil {
		t.Error(err)
	}
	t.Logf("%d commands ran for %v, a former holder's write was refused by command %d", len(steps), time.Since(began).Round(100*time.Millisecond), commands)
	return commands, took
}

// ordinaryUser returns nobody, whom it gives a folder, if this process is root's: a reader
// isn't root. The temporary folders above are root's alone otherwise.
func ordinaryUser(t *testing.T, folder string) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	const nobody = 65534
	err := errors.Join(os.Chmod(filepath.Dir(folder), 0o755), filepath.WalkDir(folder, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(name, nobody, nobody))
	}))
	if err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: nobody, Gid: nobody}
}

// writeFiles writes the files that a page shows, and the examples that it has its reader copy.
func writeFiles(t *testing.T, folder, page string, replace map[string]string) {
	t.Helper()
	var pairs []string
	for from, to := range replace {
		pairs = append(pairs, from, to)
	}
	replacer := strings.NewReplacer(pairs...)
	files := pages.Files(page)
	for _, link := range regexp.MustCompile(`\]\(../examples/([\w.-]+)\)`).FindAllStringSubmatch(page, -1) {
		text, err := os.ReadFile("../../docs/examples/" + link[1])
		if err != nil {
			t.Fatal(err)
		}
		files[link[1]] = string(text)
	}
	for name, text := range files {
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		if err := os.WriteFile(file, []byte(replacer.Replace(text)), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// goProgram builds the page's program, as go build does in a module named leader.
func goProgram(t *testing.T, folder string) {
	t.Helper()
	must(t, "go", "build", "-buildvcs=false", "-ldflags=-w", "-o", filepath.Join(folder, "leader"), filepath.Join(folder, "main.go"))
}

// javaClient builds the artifact of the client for Java, without Maven, which has no plugins here, beside a folder with
// Spring Boot.
func javaClient(t *testing.T, folder string) {
	t.Helper()
	boot := linkJars(t, filepath.Join(folder, "boot"), "[^f]*.jar") // Flyway would migrate
	sources, err := filepath.Glob("../../clients/java/src/main/java/io/github/wirefence/*.java")
	if err != nil || len(sources) == 0 {
		t.Fatal(sources, err)
	}
	classes := t.TempDir()
	args := append([]string{"-encoding", "UTF-8", "-cp", boot + "/*", "-d", classes}, sources...)
	must(t, "javac", args...)
	must(t, "jar", "-c", "-f", filepath.Join(folder, "wirefence-0.1.0.jar"), "-C", classes, ".")
}

// flyway gives a folder Flyway's jars.
func flyway(t *testing.T, folder string) { linkJars(t, filepath.Join(folder, "jars"), "*.jar") }

// linkJars makes a folder of jars of Spring Boot and Flyway.
func linkJars(t *testing.T, folder, pattern string) string {
	t.Helper()
	jars, err := filepath.Glob(filepath.Join(servers.CacheDir(), "spring", pattern))
	if err != nil || len(jars) == 0 {
		t.Fatal("scripts/install-servers --test fetches them")
	}
	must(t, "mkdir", folder)
	must(t, "ln", append([]string{"-s", "-t", folder}, jars...)...)
	return folder
}

func must(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// startProxy starts the proxy that the reader has, ended with the test.
func startProxy(t *testing.T, db *stack.DB, ports map[string]string) {
	t.Helper()
	log := &stack.Log{}
	cmd := exec.Command(filepath.Join(tools, "wirefence"), "proxy")
	cmd.Env = append(os.Environ(), "WIREFENCE_LISTEN=127.0.0.1:"+ports["6433"], "WIREFENCE_ADMIN_LISTEN=127.0.0.1:"+ports["9433"],
		"WIREFENCE_UPSTREAM=postgres://"+db.Addr()+"/?sslmode=disable", "WIREFENCE_DATABASE_URL="+db.URL(db.Name), "WIREFENCE_LOG_FORMAT=json")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the proxy:\n%s", log)
		}
	})
	log.Await(t, `"msg":"serving"`)
}

// startPooler starts PgBouncer with the settings that the page shows, ended with the test.
func startPooler(t *testing.T, page, upstream string) (port int) {
	t.Helper()
	settings, inSection := map[string]string{}, false
	for line := range strings.Lines(pages.Files(page)["pgbouncer.ini"]) {
		name, value, found := strings.Cut(line, " = ")
		if strings.HasPrefix(line, "[") {
			inSection = strings.TrimSpace(line) == "[pgbouncer]"
		} else if found && inSection && name != "listen_port" {
			settings[name] = strings.TrimSpace(value)
		}
	}
	if settings["pool_mode"] != "transaction" {
		t.Fatalf("the page's pgbouncer.ini has %v", settings)
	}
	cfg := servers.PgBouncerConfig{Upstream: upstream, Clients: 20, PoolSize: 3, Passwords: map[string]string{"app": "", "postgres": ""}, Settings: map[string]string{}}
	maps.Copy(cfg.Settings, settings)
	pooler := stack.Started(servers.StartPgBouncer(t.Context(), cfg)).EndWith(t)
	return pooler.Port
}
