package queuetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// world is a queue in a database of its own, its history, and the proxy before it.
type world struct {
	*stack.DB
	queue
	wait  time.Duration // how long a job may take before the queue lets another worker take it
	admin *pgxpool.Pool // of the superuser, past the proxy
	app   *pgxpool.Pool // of the workers' role, past the proxy
	files map[string]string
	dir   string // the page's files, and what Node and Python need beside them

	direct  bool // workers bypass the proxy, so that guards alone refuse them
	options proxy.Options
	mu      sync.Mutex // guards proxy
	proxy   *stack.Running
}

func newWorld(t *testing.T, q queue, wait time.Duration) *world {
	t.Helper()
	page, err := os.ReadFile("../../docs/howto/queue.md")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{DB: suite.Database(t, *major), queue: q, wait: wait, files: pages.Files(string(page)), dir: t.TempDir()}
	for p, url := range map[**pgxpool.Pool]string{&w.admin: w.URL(w.Name), &w.app: w.URLFor("app", w.Name)} {
		if *p, err = pgxpool.New(t.Context(), url); err != nil {
			t.Fatal(err)
		}
		t.Cleanup((*p).Close)
	}
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	w.options = proxy.Options{Listen: []string{fmt.Sprintf("127.0.0.1:%d", port)}, Upstream: "postgres://" + w.Addr() + "/"}
	w.startProxy(t)
	t.Cleanup(func() { _ = w.proxy.Stop() })
	w.layOut(t)
	w.Exec(t, "GRANT CREATE ON DATABASE "+w.Name+" TO app; GRANT CREATE ON SCHEMA public TO app")
	q.install(t, w)
	w.Exec(t, w.files[q.page], historySQL, fmt.Sprintf("CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION note(%s, %s, %s)",
		q.table, quote(q.key), quote(q.claim), quote(q.while)),
		"GRANT SELECT, INSERT ON results TO app")
	return w
}

func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// startProxy starts the proxy at the same address as before.
func (w *world) startProxy(t *testing.T) {
	t.Helper()
	r, err := stack.Start(w.options)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.proxy = r
}

func (w *world) restartProxy(t *testing.T) {
	t.Helper()
	_ = w.proxy.Stop() // sessions that it cuts are no failure
	w.startProxy(t)
}

// url is that of the database for workers.
func (w *world) url() string {
	if w.direct {
		return w.URLFor("app", w.Name)
	}
	return fmt.Sprintf("postgres://app@%s/%s?sslmode=disable", w.options.Listen[0], w.Name)
}

// layOut lays out the page's files and the workers, with what they import: for Node the client and
// the libraries, as npm would.
func (w *world) layOut(t *testing.T) {
	t.Helper()
	for name, text := range w.files {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"testdata/node/told.mjs", "testdata/node/boss.mjs", "testdata/node/graphile.mjs", "testdata/own.py", "../../docs/examples/worker.py"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.dir, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(modules, filepath.Join(w.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
}

// event is a line that a worker prints.
type event struct {
	Event string // took, wrote, refused, failed
	Job   string
	Claim int64
	At    int64  // when a write ended, in microseconds
	State string // SQLSTATE
	Error string
}

// worker is a process that takes jobs.
type worker struct {
	name   string
	cmd    *exec.Cmd
	input  io.Writer
	events chan event // closed at its end
	log    *stack.Log
}

// start starts a worker. With each job it does one of the acts, as chance has it by the seed;
// without acts it has one job at a time, and waits until it is told what to do with it.
func (w *world) start(t *testing.T, name string, seed int, acts ...string) *worker {
	t.Helper()
	p := &worker{name: name, cmd: w.command(w), events: make(chan event, 1024), log: &stack.Log{}}
	p.cmd.Dir, p.cmd.Stderr = w.dir, p.log
	p.cmd.Env = append(append(os.Environ(), p.cmd.Env...), "DATABASE_URL="+w.url(), "NAME="+name, fmt.Sprint("SEED=", seed), fmt.Sprint("HURRY=", *hurry), "ACTS="+strings.Join(acts, " "),
		fmt.Sprint("WAIT=", w.wait.Milliseconds()), "PYTHONPATH="+clients, "PYTHONDONTWRITEBYTECODE=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.events)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				p.events <- e
			} else { // a library's word
				fmt.Fprintln(p.log, lines.Text())
			}
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *worker) kill() {
	_ = p.cmd.Process.Kill()
	for range p.events {
	}
}

func (p *worker) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("worker %s: %v\n%s", p.name, err, p.log)
	}
}

// tell tells a worker what to do with its job.
func (p *worker) tell(t *testing.T, act string) {
	t.Helper()
	if _, err := io.WriteString(p.input, act+"\n"); err != nil {
		t.Fatalf("worker %s: %v\n%s", p.name, err, p.log)
	}
}

// says waits for a worker's next event, which must be this one.
func (p *worker) says(t *testing.T, want string) event {
	t.Helper()
	select {
	case e, open := <-p.events:
		if !open || e.Event != want {
			t.Fatalf("worker %s says %+v, want %s\n%s", p.name, e, want, p.log)
		}
		return e
	case <-time.After(stack.Patience):
		t.Fatalf("worker %s doesn't say %s\n%s", p.name, want, p.log)
	}
	return event{}
}

// query returns the lines of a query, with columns parted by bars.
func (w *world) query(t *testing.T, sql string, args ...any) (lines []string) {
	t.Helper()
	rows, err := w.admin.Query(context.Background(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(values)), "|"), "[]"))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
