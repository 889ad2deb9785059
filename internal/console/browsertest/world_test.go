package browsertest

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
)

// Tokens of the file that the proxy reads.
const (
	operator = "operators-own-token-0123456789abcdef"
	viewer   = "viewers-own-token-0123456789abcdef0"
)

// world is a proxy with its admin listener, a database, and a browser.
type world struct {
	pg     *servers.Postgres
	db     *pgx.Conn
	binary string
	dir    string
	admin  string // host:port
	port   int    // of the proxy
	proxy  *exec.Cmd
	more   []string // settings of the proxy
}

func start(t *testing.T, settings ...string) *world {
	t.Helper()
	w := &world{pg: stack.Postgres(t, 15), dir: t.TempDir(), more: settings}
	w.db = stack.Connect(t, w.pg.URL("postgres"))
	if err := migrations.Apply(t.Context(), w.db, nil); err != nil {
		t.Fatal(err)
	}
	w.binary = filepath.Join(w.dir, "wirefence")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", w.binary, "./cmd/wirefence")
	build.Dir = "../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	tokens := fmt.Sprintf("olga operate %s\nvic read %s\n", operator, viewer)
	if err := os.WriteFile(filepath.Join(w.dir, "tokens"), []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	w.port, w.admin = freePort(t), net.JoinHostPort("127.0.0.1", fmt.Sprint(freePort(t)))
	w.serve(t)
	t.Cleanup(func() { w.stop(t) })
	return w
}

// serve starts the proxy, and waits until its console answers.
func (w *world) serve(t *testing.T) {
	t.Helper()
	logs, err := os.OpenFile(filepath.Join(w.dir, "proxy.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	w.proxy = exec.Command(w.binary, "proxy")
	w.proxy.Env = append(os.Environ(), "WIREFENCE_UPSTREAM=postgres://"+w.pg.Addr()+"/?sslmode=disable", "WIREFENCE_DATABASE_URL="+w.pg.URL("postgres"),
		fmt.Sprintf("WIREFENCE_LISTEN=127.0.0.1:%d", w.port), "WIREFENCE_ADMIN_LISTEN="+w.admin, "WIREFENCE_ADMIN_TOKEN_FILE="+filepath.Join(w.dir, "tokens"))
	w.proxy.Env = append(w.proxy.Env, w.more...)
	w.proxy.Stdout, w.proxy.Stderr = logs, logs
	if err := w.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "the console answers", func() bool {
		answer, err := http.Get("http://" + w.admin + "/console/")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

func (w *world) stop(t *testing.T) {
	_ = w.proxy.Process.Signal(syscall.SIGTERM)
	if err := w.proxy.Wait(); err != nil {
		log, _ := os.ReadFile(filepath.Join(w.dir, "proxy.log"))
		t.Errorf("the proxy ended with %v\n%s", err, log)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// acquire grants a resource in PostgreSQL to a holder, as any client in SQL does, and
// releases what another holder has of it.
func (w *world) acquire(t *testing.T, resource, holder string, ttl time.Duration) {
	t.Helper()
	var granted bool
	err := w.db.QueryRow(t.Context(), "SELECT token IS NOT NULL FROM wirefence.acquire($1, $2, make_interval(secs => $3))", resource, holder, ttl.Seconds()).Scan(&granted)
	if err != nil || !granted {
		t.Fatalf("%s isn't granted to %s: %v", resource, holder, err)
	}
}
