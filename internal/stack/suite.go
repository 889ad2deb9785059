package stack

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

// Suite is what the tests of one binary share: a server of each version with a
// template database, and a proxy before it. They start when a test first asks.
type Suite struct {
	// Objects is SQL for the template, which has the schema.
	Objects string
	// Settings are lines of postgresql.conf.
	Settings map[string]string
	// Options are those of the shared proxy, without its upstream.
	Options proxy.Options
	// Parallel is how many tests run at once, for tests that wait for servers and for time
	// more than they compute; 0 is what go test has.
	Parallel int
	// Check is called when all has ended. Its error fails the tests.
	Check func() error

	mu       sync.Mutex
	clusters map[int]*cluster
	building sync.Mutex // of programs
	programs string     // their folder
}

type cluster struct {
	mu    sync.Mutex
	pg    *servers.Postgres
	proxy *Running
}

// Run runs the tests and ends what they started, after what the test binary started
// beside it.
func (s *Suite) Run(m *testing.M, stops ...func()) int {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if s.Parallel > 0 && !given {
		_ = flag.Set("test.parallel", strconv.Itoa(s.Parallel))
	}
	if programs := servers.Programs(); programs != "" {
		_ = os.Setenv("PATH", programs+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	status := m.Run()
	for _, stop := range slices.Backward(stops) {
		stop()
	}
	s.close()
	if s.Check == nil || status != 0 {
		return status
	}
	if err := s.Check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (s *Suite) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all sync.WaitGroup // each removes many files
	for _, c := range s.clusters {
		all.Go(func() {
			if c.proxy != nil {
				_ = c.proxy.Stop()
			}
			if c.pg != nil {
				c.pg.Close()
			}
		})
	}
	all.Wait()
	if s.programs != "" {
		_ = os.RemoveAll(s.programs)
	}
	if issuedIn != "" {
		_ = os.RemoveAll(issuedIn)
	}
}

// Program is wirefence, from the module's root.
func (s *Suite) Program(t testing.TB, root string) string {
	t.Helper()
	return s.Built(t, "wirefence", func(path string) error { return servers.BuildWirefence(t.Context(), root, path) })
}

// Built is a program that is built when a test first asks.
func (s *Suite) Built(t testing.TB, name string, build func(path string) error) (path string) {
	t.Helper()
	s.building.Lock()
	defer s.building.Unlock()
	var err error
	if s.programs == "" {
		s.programs, err = os.MkdirTemp("", "wf-programs-")
	}
	path = filepath.Join(s.programs, name)
	if _, none := os.Stat(path); err == nil && none != nil {
		err = build(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cluster returns the place of a version, locked.
func (s *Suite) cluster(major int) *cluster {
	major = Version(major)
	s.mu.Lock()
	c := s.clusters[major]
	if c == nil {
		if s.clusters == nil {
			s.clusters = map[int]*cluster{}
		}
		c = &cluster{}
		s.clusters[major] = c
	}
	s.mu.Unlock()
	c.mu.Lock()
	return c
}

// Server returns the shared server of a version; 0 is the default one.
func (s *Suite) Server(t testing.TB, major int) *servers.Postgres {
	t.Helper()
	pg, err := s.Start(major)
	if err != nil {
		t.Fatal(err)
	}
	return pg
}

// Start is Server for code that has no test.
func (s *Suite) Start(major int) (pg *servers.Postgres, err error) {
	c := s.cluster(major)
	defer c.mu.Unlock()
	if c.pg == nil {
		c.pg, err = start(context.Background(), servers.PostgresConfig{Major: major, Settings: s.Settings})
	}
	return c.pg, err
}

// Proxy returns the address of the shared proxy before a version's server.
func (s *Suite) Proxy(t testing.TB, major int) string {
	t.Helper()
	pg := s.Server(t, major)
	c := s.cluster(major)
	defer c.mu.Unlock()
	if c.proxy == nil {
		o := s.Options
		o.Upstream = "postgres://" + pg.Addr() + "/"
		r, err := Start(o)
		if err != nil {
			t.Fatal(err)
		}
		c.proxy = r
	}
	return c.proxy.Addr
}

// Database makes a database for one test: a copy of the template on the shared
// server of a version, seen past any proxy.
func (s *Suite) Database(t testing.TB, major int) *DB {
	t.Helper()
	return NewDB(t, s.Server(t, major), s.Objects)
}

// Bare makes a database without the schema.
func (s *Suite) Bare(t testing.TB, major int) *DB {
	t.Helper()
	pg := s.Server(t, major)
	name, err := copyOf(t.Context(), pg, "template0")
	return newDB(t, pg, name, err)
}

// DB is a database of one test's own.
type DB struct {
	*servers.Postgres
	Name  string
	Admin *pgx.Conn // of the superuser, past any proxy
}

// NewDB makes a database with the schema and with what the SQL makes.
func NewDB(t testing.TB, pg *servers.Postgres, objects string) *DB {
	t.Helper()
	name, err := CreateDatabase(t.Context(), pg, objects)
	return newDB(t, pg, name, err)
}

func newDB(t testing.TB, pg *servers.Postgres, name string, err error) *DB {
	t.Helper()
	if err != nil {
		t.Fatalf("PostgreSQL %d: %v", pg.Major, err)
	}
	DropWith(t, pg, name)
	return &DB{Postgres: pg, Name: name, Admin: Connect(t, pg.URL(name))}
}

// DropWith drops a database at the end of the test, since the servers' files may be in
// memory. What a test has stopped, or keeps there, keeps its database.
func DropWith(t testing.TB, pg *servers.Postgres, name string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		_ = pg.RunKept(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
	})
}

// CreateDatabase makes a database with the schema and with what the SQL makes, and
// returns its name.
func CreateDatabase(ctx context.Context, pg *servers.Postgres, objects string) (string, error) {
	name, err := template(ctx, pg, objects)
	if err != nil {
		return "", err
	}
	return copyOf(ctx, pg, name)
}

// Database makes a database with the schema, and returns its name.
func Database(t testing.TB, pg *servers.Postgres) string {
	t.Helper()
	name, err := CreateDatabase(t.Context(), pg, "")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

var (
	serial    atomic.Int64
	templates = struct {
		sync.Mutex
		names map[string]string
	}{names: map[string]string{}}
)

// template returns the database to copy on a server, which it makes only once.
func template(ctx context.Context, pg *servers.Postgres, objects string) (string, error) {
	templates.Lock()
	defer templates.Unlock()
	key := pg.SocketDir + objects
	if name := templates.names[key]; name != "" {
		return name, nil
	}
	name := fmt.Sprintf("wf_template_%d", serial.Add(1))
	if err := fill(ctx, pg, name, objects); err != nil {
		return "", err
	}
	templates.names[key] = name
	return name, nil
}

func fill(ctx context.Context, pg *servers.Postgres, name, objects string) error {
	if err := CreateBare(ctx, pg, name, ""); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, pg.URL(name))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := migrations.Apply(ctx, conn, nil); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, objects)
	return err
}

func copyOf(ctx context.Context, pg *servers.Postgres, template string) (string, error) {
	name := fmt.Sprintf("db_%d", serial.Add(1))
	return name, CreateBare(ctx, pg, name, "TEMPLATE "+template)
}

// CreateBare creates a database as options say. PostgreSQL 15 and later would write each page to the log; to copy
// files takes half the CPU time.
func CreateBare(ctx context.Context, pg *servers.Postgres, name, options string) error {
	if pg.Major >= 15 {
		options += " STRATEGY FILE_COPY"
	}
	return pg.RunKept(ctx, "CREATE DATABASE "+name+" "+options)
}

// Direct opens another superuser's connection past any proxy.
func (db *DB) Direct(t testing.TB) *pgx.Conn {
	t.Helper()
	return Connect(t, db.URL(db.Name))
}

// Exec runs statements as the superuser.
func (db *DB) Exec(t testing.TB, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		MustExec(t, db.Admin, sql)
	}
}

// Seal records a grant.
func (db *DB) Seal(t testing.TB, resource string, token int64) {
	t.Helper()
	if !Value[bool](t, db, "SELECT wirefence.seal($1, $2, 'worker-b')", resource, token) {
		t.Fatalf("token %d of %s was not sealed", token, resource)
	}
}

// Becomes waits until a query's one value is what is wanted.
func (db *DB) Becomes(t testing.TB, want, sql string, args ...any) {
	t.Helper()
	got := ""
	if !within(Patience, func() bool {
		got = Value[string](t, db, sql, args...)
		return got == want
	}) {
		t.Fatalf("%s is %q after %s, want %q", sql, got, Patience, want)
	}
}

// MustExec runs SQL that succeeds.
func MustExec(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Value is the one value of a query by the superuser.
func Value[V any](t testing.TB, db *DB, sql string, args ...any) (v V) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := db.Admin.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}
