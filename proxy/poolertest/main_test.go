// Package poolertest runs chains of a real PgBouncer and the proxy, in either
// order: what a fence is worth where clients share server connections.
package poolertest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/migrations"
	"github.com/wirefence/wirefence/proxy"
)

//go:embed testdata/objects.sql
var objects string

// patience bounds whatever a test waits for.
const patience = 20 * time.Second

const template = "wf_template"

var (
	shared *servers.Postgres
	serial atomic.Int64
)

func TestMain(m *testing.M) {
	pg, err := start(0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	shared = pg
	status := m.Run()
	all.stop()
	pg.Close()
	os.Exit(status)
}

// start starts a server of a version with the template.
func start(major int) (*servers.Postgres, error) {
	ctx := context.Background()
	pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Major: major})
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, pg); err != nil {
		pg.Close()
		return nil, err
	}
	return pg, nil
}

func prepare(ctx context.Context, pg *servers.Postgres) error {
	admin, err := pgx.Connect(ctx, pg.URL("postgres"))
	if err != nil {
		return err
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+template); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, pg.URL(template))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := migrations.Apply(ctx, conn, nil); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, objects)
	return err
}

// place is a database of a test's own, seen past proxy and pooler.
type place struct {
	t     *testing.T
	pg    *servers.Postgres
	db    string
	admin *pgx.Conn
}

func newPlace(t *testing.T, pg *servers.Postgres) *place {
	t.Helper()
	p := &place{t: t, pg: pg, db: fmt.Sprintf("wf_%d", serial.Add(1))}
	stack.Exec(t, pg.URL("postgres"), "CREATE DATABASE "+p.db+" TEMPLATE "+template)
	p.admin = stack.Connect(t, pg.URL(p.db))
	return p
}

// standing is what tests share: a PgBouncer pools each database by itself, and a
// proxy knows nothing of one session in another.
type standing struct {
	mu    sync.Mutex
	addrs map[string]string
	stops []func()
}

var all = standing{addrs: map[string]string{}}

// once returns the address of what make starts, which it does only once for
// what is described.
func (s *standing) once(t *testing.T, what string, make func() (addr string, stop func(), err error)) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr, ok := s.addrs[what]; ok {
		return addr
	}
	addr, stop, err := make()
	if err != nil {
		t.Fatal(err)
	}
	s.addrs[what] = addr
	s.stops = append(s.stops, stop)
	return addr
}

func (s *standing) stop() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
}

// pooler returns a PgBouncer before upstream.
func (p *place) pooler(upstream string, cfg servers.PgBouncerConfig) string {
	p.t.Helper()
	cfg.Upstream, cfg.Clients = upstream, 100
	return all.once(p.t, fmt.Sprintf("%+v", cfg), func() (string, func(), error) {
		b, err := servers.StartPgBouncer(context.Background(), cfg)
		if err != nil {
			return "", nil, err
		}
		return b.Addr(), b.Close, nil
	})
}

// fencing returns a proxy before upstream; parameters are of its URL.
func (p *place) fencing(upstream, parameters string, o proxy.Options) string {
	p.t.Helper()
	o.Upstream = "postgres://" + upstream + "/?" + parameters
	return all.once(p.t, o.Upstream+string(o.UnfencedWrites), func() (string, func(), error) {
		return startProxy(o)
	})
}

func startProxy(o proxy.Options) (addr string, stop func(), err error) {
	o.Listen, o.DrainTimeout = []string{"127.0.0.1:0"}, time.Second
	s, err := proxy.New(o)
	if err != nil {
		return "", nil, err
	}
	if err := s.Listen(); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- s.Serve(ctx) }()
	return s.Addrs()[0].String(), func() {
		cancel()
		<-over
	}, nil
}

// Ways to pool: clients share one or two server connections of their database,
// from transaction to transaction, or have one each.
var (
	one  = servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 1}
	two  = servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 2}
	each = servers.PgBouncerConfig{PoolMode: "session"}
)

// behind is the chain application, proxy, pooler, PostgreSQL.
func behind(t *testing.T, cfg servers.PgBouncerConfig, parameters string, o proxy.Options) (*place, string) {
	t.Helper()
	p := newPlace(t, shared)
	return p, p.fencing(p.pooler(p.pg.Addr(), cfg), parameters, o)
}

// before is the chain application, pooler, proxy, PostgreSQL.
func before(t *testing.T, cfg servers.PgBouncerConfig, o proxy.Options) (*place, string) {
	t.Helper()
	p := newPlace(t, shared)
	return p, p.pooler(p.fencing(p.pg.Addr(), "", o), cfg)
}

// exec runs statements past proxy and pooler.
func (p *place) exec(statements ...string) {
	p.t.Helper()
	for _, sql := range statements {
		if _, err := p.admin.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			p.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// number is the one value of a query past proxy and pooler.
func (p *place) number(sql string, args ...any) (n int64) {
	p.t.Helper()
	if err := p.admin.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// wantRows says how many rows were written with a token; 0 is for none.
func (p *place) wantRows(token, want int64) {
	p.t.Helper()
	if got := p.number("SELECT count(*) FROM jobs WHERE coalesce(token, 0) = $1", token); got != want {
		p.t.Errorf("%d rows were written with token %d, want %d", got, token, want)
	}
}

// client is an application's connection.
type client struct {
	*pgconn.PgConn
	t *testing.T
}

func (p *place) connect(addr string, settings ...string) *client {
	p.t.Helper()
	c, err := p.dial(addr, settings...)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// dial connects with settings of the startup packet, by name and value.
func (p *place) dial(addr string, settings ...string) (*client, error) {
	cfg, err := pgconn.ParseConfig(stack.URL(addr, p.db))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(settings); i += 2 {
		cfg.RuntimeParams[settings[i]] = settings[i+1]
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return &client{conn, p.t}, nil
}

// hangUp ends the connection, and with it the transaction that it left open.
func (c *client) hangUp() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.TxStatus() != 'I' {
		c.must("ROLLBACK")
	}
	if err := c.Close(ctx); err != nil {
		c.t.Error(err)
	}
}

// protocols are the ways to run one statement that a transaction pooler has.
var protocols = map[string]func(*client, string, ...string) error{
	"simple": (*client).simple, "extended": (*client).extended,
}

func (c *client) simple(sql string, _ ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := c.Exec(ctx, sql).ReadAll()
	return err
}

// extended runs a statement as the unnamed one, with parameters.
func (c *client) extended(sql string, args ...string) error {
	var params [][]byte
	for _, a := range args {
		params = append(params, []byte(a))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.ExecParams(ctx, sql, params, nil, nil, nil).Read().Err
}

// function is the object id of a function.
func (p *place) function(signature string) uint32 {
	p.t.Helper()
	return uint32(p.number("SELECT $1::regprocedure::oid::bigint", signature))
}

// call calls a function by the protocol's own message, with arguments as text.
func (c *client) call(function uint32, args ...string) error {
	c.t.Helper()
	m := pgproto3.FunctionCall{Function: function}
	for _, a := range args {
		m.Arguments = append(m.Arguments, []byte(a))
	}
	c.send(&m)
	c.flush()
	return c.answer()
}

func (c *client) send(messages ...pgproto3.FrontendMessage) {
	for _, m := range messages {
		c.Frontend().Send(m)
	}
}

func (c *client) flush() {
	c.t.Helper()
	if err := c.Frontend().Flush(); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads up to a ReadyForQuery and returns the error before it, or nil.
func (c *client) answer() (failure error) {
	c.t.Helper()
	for {
		if err := c.Conn().SetDeadline(time.Now().Add(patience)); err != nil {
			c.t.Fatal(err)
		}
		back, err := c.Frontend().Receive()
		if err != nil {
			c.t.Fatal(err)
		}
		switch m := back.(type) {
		case *pgproto3.ErrorResponse:
			failure = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			_ = c.Conn().SetDeadline(time.Time{})
			return failure
		}
	}
}

// must runs simple queries that succeed.
func (c *client) must(statements ...string) {
	c.t.Helper()
	for _, sql := range statements {
		if err := c.simple(sql); err != nil {
			c.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// want runs a simple query that ends with an SQLSTATE; "" is success.
func (c *client) want(state, sql string) {
	c.t.Helper()
	wantState(c.t, c.simple(sql), state, sql)
}

// pid is the process id of the server connection that a transaction gets now.
func (c *client) pid() int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	results, err := c.Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
	if err != nil {
		c.t.Fatal(err)
	}
	n, err := strconv.Atoi(string(results[0].Rows[0][0]))
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// sqlstate is that of an error, "" for none.
func sqlstate(err error) string {
	if err == nil {
		return ""
	}
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return err.Error()
}

func wantState(t *testing.T, err error, want string, about ...any) {
	t.Helper()
	if got := sqlstate(err); got != want {
		t.Errorf("%v: got %q, want SQLSTATE %q (%v)", about, got, want, err)
	}
}

// insert is a write that says with which token it was made.
func insert(token int, rest string) string {
	return fmt.Sprintf("INSERT INTO jobs (token) VALUES (%d)%s", token, rest)
}

// comment carries a token.
func comment(token int) string { return fmt.Sprintf(" /*wirefence.token='orders=%d'*/", token) }
func itoa(n int) string        { return strconv.Itoa(n) }
