package conformance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
)

// world is a proxy of a language's own, with a database and a Redis, and networks that can
// fail: from each of two clients to what it takes its leases from, and from the proxy to
// Redis.
type world struct {
	*stack.DB
	redis   *servers.Redis
	store   *servers.Link            // from the proxy to Redis
	links   map[string]*servers.Link // by client
	url     string                   // of the database through the proxy, as the role app
	admin   string                   // of the proxy, host:port
	clients map[string]client
	writer  pgx.Tx
	bySQL   bool // leases are in PostgreSQL, and programs take them by SQL
}

// bearer is the token that the API wants.
const bearer = "the-token-of-all-the-tests"

// newWorldFor starts a world for a language, or one "by SQL".
func newWorldFor(t *testing.T, language string) *world {
	t.Helper()
	if !strings.Contains(language, " by SQL") {
		return newWorld(t)
	}
	w := newWorld(t, "WIREFENCE_REDIS_URL=") // leases are in PostgreSQL, for all who take some
	w.bySQL = true
	return w
}

// newWorld starts a world without clients, ended with the test. Settings are of the proxy.
func newWorld(t *testing.T, settings ...string) *world {
	t.Helper()
	redis := stack.Started(servers.StartRedis(t.Context())).EndWith(t)
	w := &world{DB: suite.Database(t, 0), redis: redis, links: map[string]*servers.Link{}, clients: map[string]client{}}
	w.store = link(t, redis.Addr())
	w.startProxy(t, settings)
	return w
}

func link(t *testing.T, target string) *servers.Link {
	t.Helper()
	return stack.Started(servers.StartLink(target)).EndWith(t)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := servers.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func (w *world) startProxy(t *testing.T, settings []string) {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("tests operate "+bearer+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listen := freeAddress(t)
	w.admin = freeAddress(t)
	w.url = fmt.Sprintf("postgres://app@%s/%s?sslmode=disable", listen, w.Name)
	log := &stack.Log{}
	cmd := exec.Command(binary, "proxy")
	cmd.Env = append(os.Environ(), "WIREFENCE_LISTEN="+listen, "WIREFENCE_ADMIN_LISTEN="+w.admin, "WIREFENCE_ADMIN_TOKEN_FILE="+tokens,
		"WIREFENCE_UPSTREAM=postgres://"+w.Addr()+"/?sslmode=disable", "WIREFENCE_DATABASE_URL="+w.URL(w.Name),
		"WIREFENCE_REDIS_URL=redis://"+w.store.Addr()+"/0", "WIREFENCE_LOG_FORMAT=json")
	cmd.Env = append(cmd.Env, settings...)
	cmd.Stdout, cmd.Stderr = log, log
	start(t, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the proxy:\n%s", log)
		}
	})
	log.Await(t, `"msg":"serving"`)
}

// start starts a command that is killed with the test, or with this process.
func start(t *testing.T, cmd *exec.Cmd) (over chan error) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over = make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		over <- cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return over
}

// source is what programs take leases from: that of a world by SQL is the database, of others the
// proxy.
func (w *world) source() string {
	if w.bySQL {
		return w.Addr()
	}
	return w.admin
}

// environment is what a program is given. It takes leases from an address, host:port.
func (w *world) environment(name, source string) []string {
	api := "http://" + source
	if w.bySQL {
		api = "postgresql://leases@" + source + "/" + w.Name + "?sslmode=disable"
	}
	return append(os.Environ(), "NAME="+name, "API="+api, "API_TOKEN="+bearer, "ADMIN=http://"+w.admin, "DATABASE_URL="+w.url,
		"PYTHONPATH="+absolute(clients.python), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1")
}

func absolute(path string) string {
	all, err := filepath.Abs(path)
	if err != nil {
		panic(err)
	}
	return all
}

// change does what a step of a case has happen around the clients. Failing networks are
// those of the client a.
func (w *world) change(t *testing.T, s step) {
	t.Helper()
	network := w.links["a"]
	switch s.World {
	case "pass":
		time.Sleep(time.Duration(s.number("seconds") * float64(time.Second))) // what is tested is that time goes by
	case "silence":
		network.Hold()
	case "hold_answers":
		network.HoldAnswers()
	case "cut":
		network.Cut()
	case "turn_away":
		network.TurnAway()
	case "turned_away":
		stack.Eventually(t, "it connects", func() bool { return network.TurnedAway() > 0 })
		time.Sleep(time.Duration(s.number("seconds") * float64(time.Second))) // what is tested is how often it connects in that time
		if n := network.TurnedAway(); n > int(s.number("at_most")) {
			t.Fatalf("%d connections were tried", n)
		}
	case "restore":
		network.Restore()
	case "store_down":
		w.storeLinks((*servers.Link).Cut)
	case "store_up":
		w.storeLinks((*servers.Link).Restore)
	case "seal":
		w.Becomes(t, "true", "SELECT wirefence.seal($1, $2, 'another/1')::text", s.text("resource"), s.text("token"))
	case "granted":
		w.awaitGrant(t, s.text("resource"), int(s.number("above")))
	case "writer":
		w.writer = w.begin(t, s.text("resource"))
	case "hold_answers_to_a_takeover":
		w.Becomes(t, "true", "SELECT EXISTS (SELECT FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND NOT granted AND datname = current_database())::text")
		network.HoldAnswers()
	case "writer_ends":
		if err := w.writer.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	case "revoke":
		w.revoke(t, s.text("resource"))
	default:
		t.Fatalf("the world knows no %q", s.World)
	}
}

// begin begins a transaction under the last token of a resource.
func (w *world) begin(t *testing.T, resource string) pgx.Tx {
	t.Helper()
	token := stack.Value[int64](t, w.DB, "SELECT last_token FROM wirefence.resource_locks WHERE resource_id = $1", resource)
	tx, err := stack.Connect(t, "postgres://app@"+w.Addr()+"/"+w.Name+"?sslmode=disable").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT wirefence.check($1)", fmt.Sprintf("%s=%d", resource, token)); err != nil {
		t.Fatal(err)
	}
	return tx
}

// awaitGrant waits until a lease was granted whose client may not have the answer, with a token
// above another: where it asks Redis itself, the grant isn't sealed before that.
func (w *world) awaitGrant(t *testing.T, resource string, above int) {
	t.Helper()
	if _, direct := w.clients["a"].(*goClient); !direct {
		w.Becomes(t, "1", "SELECT count(*)::text FROM wirefence.resource_locks WHERE resource_id = $1 AND last_token > $2", resource, above)
		return
	}
	stack.Eventually(t, "the lease is in Redis", func() bool {
		found, err := w.redis.Do(t.Context(), "EXISTS", "wirefence:{"+resource+"}:lease")
		if err != nil {
			t.Fatal(err)
		}
		return found == int64(1)
	})
}

// storeLinks has a failure on the way to the lease store: the proxy's, or that of clients which
// ask it themselves.
func (w *world) storeLinks(fail func(*servers.Link)) {
	fail(w.store)
	for name, c := range w.clients {
		if _, direct := c.(*goClient); direct || w.bySQL {
			fail(w.links[name])
		}
	}
}

func (w *world) revoke(t *testing.T, resource string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.admin+"/v1/resources/"+url.PathEscape(resource)+"/revoke", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+bearer)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		t.Fatalf("revoke: %d %s %v", answer.StatusCode, text, err)
	}
}
