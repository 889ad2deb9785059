package api

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	pgleases "github.com/wirefence/wirefence/lockclient/postgres"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// The tests share these.
var (
	spec  *specification
	suite = stack.Suite{Objects: "CREATE ROLE issuer LOGIN IN ROLE wirefence_issuer", Check: check}
	store *servers.Redis
)

func TestMain(m *testing.M) {
	var err error
	if spec, err = readSpecification(); err == nil {
		store, err = servers.StartRedis(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(suite.Run(m, store.Close))
}

// check is called when all tests have passed.
func check() error {
	all := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == ""
	if missing := spec.unseen(); all && len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("documented, but answered in no test: %q", missing)
	}
	return goleak.Find()
}

// world is a served API.
type world struct {
	*Server
	database string // the superuser's connection string
	pool     *pgxpool.Pool
	http     *httptest.Server
	log      *stack.Log
	registry *prometheus.Registry
	token    string // presented if not ""
}

// backends are the lease stores of the tests.
var backends = []string{"postgres", "redis"}

// serve starts a world with a lease store and the rights of an issuer; edit changes its options.
func serve(t *testing.T, backend string, edit func(*Options)) *world {
	t.Helper()
	db := suite.Database(t, 0)
	cfg, err := pgxpool.ParseConfig(db.URLFor("issuer", db.Name))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "own"
	NameCallers(cfg)
	pool := stack.Started(pgxpool.NewWithConfig(t.Context(), cfg)).EndWith(t)
	w := &world{database: db.URL(db.Name), pool: pool, log: &stack.Log{}, registry: prometheus.NewRegistry()}
	options := Options{
		Database: pool, Effects: pool, Loopback: true, Registerer: w.registry,
		Logger: w.log.Logger(),
	}
	switch backend {
	case "postgres":
		leases := pgleases.New(pool)
		t.Cleanup(func() { _ = leases.Close() })
		options.Store = leases
	case "redis":
		leases := openRedis(t, store.URL())
		options.Store, options.Sealers = leases, []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool}}
	}
	if edit != nil {
		edit(&options)
	}
	if w.Server, err = New(options); err != nil {
		t.Fatal(err)
	}
	w.http = httptest.NewUnstartedServer(w.Server)
	w.http.Config.ReadTimeout, w.http.Config.WriteTimeout = 10*time.Second, 30*time.Second
	w.http.Start()
	t.Cleanup(func() {
		w.Drain()
		w.http.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return w
}

// withTokens gives the API the file namedTokens.
func withTokens(t *testing.T) func(*Options) {
	_, token := tokenFile(t, namedTokens)
	return func(o *Options) { o.Token = token }
}

func openRedis(t *testing.T, url string) *redis.Store {
	t.Helper()
	leases, err := redis.Open(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = leases.Close() })
	return leases
}

// onEach runs a test with each backend.
func onEach(t *testing.T, edit func(*Options), test func(t *testing.T, w *world)) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			test(t, serve(t, backend, edit))
		})
	}
}

var names atomic.Int64

// fresh returns a name that no other test uses.
func fresh(t *testing.T) string {
	return fmt.Sprintf("%s %d/ä", t.Name(), names.Add(1))
}

func path(resource, operation string) string {
	p := "/v1/resources/" + url.PathEscape(resource)
	if operation != "" {
		p += "/" + operation
	}
	return p
}

// answer is the answer to a request.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	text   string
	fields map[string]any
}

// request is a request of a test; beyond says that it is invalid by a rule that openapi.yaml
// can't express.
type request struct {
	method, path, body string
	header             map[string]string
	host               string
	beyond             bool
}

func (w *world) post(t *testing.T, path, body string) answer {
	t.Helper()
	return w.send(t, request{method: http.MethodPost, path: path, body: body})
}

func (w *world) get(t *testing.T, path string) answer {
	t.Helper()
	return w.send(t, request{method: http.MethodGet, path: path})
}

func (w *world) send(t *testing.T, q request) answer {
	t.Helper()
	a, err := w.try(t, t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// try sends a request, and compares it and its answer with openapi.yaml.
func (w *world) try(t *testing.T, ctx context.Context, q request) (answer, error) {
	t.Helper()
	r := w.request(t, ctx, q)
	response, err := w.http.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	all := io.Reader(response.Body)
	if response.Header.Get("Content-Type") == "text/event-stream" {
		all = io.LimitReader(all, 1) // it doesn't end
	}
	text, err := io.ReadAll(all)
	if err != nil {
		return answer{}, err
	}
	a := answer{t: t, status: response.StatusCode, header: response.Header, text: string(text)}
	if strings.HasSuffix(response.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(text, &a.fields); err != nil {
			t.Errorf("%v: %s", err, text)
		}
	}
	if response.StatusCode >= 400 && (response.Header.Get("Content-Type") != "application/problem+json" || a.fields["title"] == "") {
		t.Errorf("%s %s: %d without a problem: %s", q.method, q.path, response.StatusCode, text)
	}
	spec.hold(t, r, q.body, response, text, q.beyond)
	return a, nil
}

func (w *world) request(t *testing.T, ctx context.Context, q request) *http.Request {
	t.Helper()
	var body io.Reader
	if q.method == http.MethodPost || q.method == http.MethodPatch {
		body = strings.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, w.http.URL+q.path, body)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	for name, value := range q.header {
		r.Header.Set(name, value)
	}
	r.Host = q.host
	return r
}

// want fails the test at once unless the answer has the status, and a problem the type.
func (a answer) want(status int, problem string) answer {
	a.t.Helper()
	if a.status != status || problem != "" && a.fields["type"] != problemPrefix+problem {
		a.t.Fatalf("want %d %s, got %d: %s", status, problem, a.status, a.text)
	}
	return a
}

func (a answer) string(field string) string {
	s, _ := a.fields[field].(string)
	return s
}

func (a answer) number(field string) float64 {
	a.t.Helper()
	n, ok := a.fields[field].(float64)
	if !ok {
		a.t.Errorf("%s is no number in %s", field, a.text)
	}
	return n
}

// admin returns a superuser's connection.
func (w *world) admin(t *testing.T) *pgx.Conn { return stack.Connect(t, w.database) }
