package relay

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
)

var (
	suite  = stack.Suite{}
	shared *servers.Redis
	serial atomic.Int64
)

func TestMain(m *testing.M) {
	var err error
	if shared, err = servers.StartRedis(context.Background(), "--maxmemory-policy", "noeviction"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(suite.Run(m, shared.Close))
}

// world is one sidecar's relay before a Redis, which seals in a database.
type world struct {
	*Relay
	addr  string
	redis *servers.Redis
	book  *adopt.Book
	db    *stack.DB
	lock  string // the key of the lock
	res   fence.Resource
	log   *lines
}

// lines is a log that a test reads.
type lines struct {
	text atomic.Pointer[string]
}

func (l *lines) Write(p []byte) (int, error) {
	for {
		old := l.text.Load()
		text := string(p)
		if old != nil {
			text = *old + text
		}
		if l.text.CompareAndSwap(old, &text) {
			return len(p), nil
		}
	}
}

func (l *lines) String() string {
	if text := l.text.Load(); text != nil {
		return *text
	}
	return ""
}

// start starts a relay with a lock of its own, after changes of its options.
func start(t testing.TB, changes ...func(*Options)) *world {
	t.Helper()
	n := serial.Add(1)
	return startFor(t, shared, suite.Database(t, 0), fmt.Sprintf("lock-%d", n), changes...)
}

// beside starts a second sidecar for the same lock.
func (w *world) beside(t testing.TB, changes ...func(*Options)) *world {
	t.Helper()
	return startFor(t, w.redis, w.db, w.lock, changes...)
}

func startFor(t testing.TB, redis *servers.Redis, db *stack.DB, key string, changes ...func(*Options)) *world {
	t.Helper()
	w := &world{redis: redis, book: &adopt.Book{}, db: db, lock: key, res: "orders", log: &lines{}}
	pool, err := pgxpool.New(t.Context(), db.URL(db.Name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o := Options{
		Listen: "127.0.0.1:0", Upstream: redis.URL(), Locks: map[string]fence.Resource{key: w.res}, Book: w.book,
		ID: fmt.Sprintf("sidecar-%d", serial.Add(1)), Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: pool, Source: Source}},
		Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, change := range changes {
		change(&o)
	}
	if w.Relay, err = New(o); err != nil {
		t.Fatal(err)
	}
	if err := w.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.addr = w.Addr().String()
	serving := make(chan error, 1)
	go func() { serving <- w.Serve() }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = w.Shutdown(ctx)
		if err := <-serving; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", w.opts.ID, w.log)
		}
	})
	return w
}

// client connects a client of go-redis through the relay, by one connection.
func (w *world) client(t testing.TB, changes ...func(*goredis.Options)) *goredis.Client {
	t.Helper()
	o := &goredis.Options{Addr: w.addr, PoolSize: 1, MaxRetries: -1, ReadTimeout: time.Minute}
	for _, change := range changes {
		change(o)
	}
	c := goredis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// direct connects a client past the relay.
func (w *world) direct(t testing.TB) *goredis.Client {
	t.Helper()
	c := goredis.NewClient(&goredis.Options{Addr: w.redis.Addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// wantFence checks what the sidecar holds.
func (w *world) wantFence(t testing.TB, want string) {
	t.Helper()
	if want != "" {
		want += "@" + string(Source)
	}
	if got := w.book.Fence(); got != want {
		t.Fatalf("%s holds %q, want %q", w.opts.ID, got, want)
	}
}

// wantSealed checks which token is recorded in PostgreSQL.
func (w *world) wantSealed(t testing.TB, want int64) {
	t.Helper()
	if got := stack.Value[int64](t, w.db, "SELECT coalesce((SELECT last_token FROM wirefence.resource_locks WHERE resource_id = 'orders'), 0)"); got != want {
		t.Fatalf("token %d is recorded, want %d", got, want)
	}
}

// conn is a connection on which a test sends and reads bytes.
type conn struct {
	net.Conn
	t testing.TB
	r *bufio.Reader
}

func (w *world) dialRaw(t testing.TB) *conn { return dialRaw(t, w.addr) }

func dialRaw(t testing.TB, addr string) *conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return &conn{c, t, bufio.NewReader(c)}
}

// send sends commands, words with blanks between.
func (c *conn) send(commands ...string) {
	c.t.Helper()
	var out []byte
	for _, command := range commands {
		out = appendCommand(out, strings.Fields(command)...)
	}
	if _, err := c.Write(out); err != nil {
		c.t.Fatal(err)
	}
}

// reply reads one reply and returns its bytes with blanks in place of ends of lines.
func (c *conn) reply() string {
	c.t.Helper()
	var all []byte
	var f frame
	for {
		line, err := c.r.ReadBytes('\n')
		if err != nil {
			c.t.Fatalf("reading a reply: %v, after %q", err, all)
		}
		all = append(all, line...)
		n, err := f.next(all)
		if err != nil {
			c.t.Fatalf("%v: %q", err, all)
		}
		if n > 0 {
			return strings.TrimSpace(strings.ReplaceAll(string(all), "\r\n", " "))
		}
	}
}

// does sends a command and checks the reply, or its begin if that ends in an ellipsis.
func (c *conn) does(command, want string) {
	c.t.Helper()
	c.send(command)
	c.gets(want)
}

func (c *conn) gets(want string) {
	c.t.Helper()
	got := c.reply()
	if begin, found := strings.CutSuffix(want, "…"); got != want && (!found || !strings.HasPrefix(got, begin)) {
		c.t.Fatalf("reply %q, want %q", got, want)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
