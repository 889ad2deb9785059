package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/migrations"
)

// stage has the servers of the play: a lease store, a database with the schema, and a proxy.
type stage struct {
	executable string
	ttl        time.Duration

	redis    *servers.Redis
	postgres *servers.Postgres
	conn     *pgx.Conn // the superuser's, to the database
	proxy    *process
	listen   string
	admin    string
	token    string // of the admin listener's API, which may do everything
	dir      string // holds the proxy's log, and a file with the token
}

// build sets the stage. The caller closes it.
func build(ctx context.Context, o Options, t *timeline) (*stage, error) {
	s := &stage{executable: o.Executable, ttl: o.TTL}
	err := s.build(ctx, o, t)
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) build(ctx context.Context, o Options, t *timeline) (err error) {
	if s.redis, err = servers.StartRedis(ctx); err != nil {
		return err
	}
	t.line("", "Redis runs at "+s.redis.Addr(), 0)
	if s.postgres, err = servers.StartPostgres(ctx, servers.PostgresConfig{}); err != nil {
		return err
	}
	t.line("", fmt.Sprintf("PostgreSQL %d runs at %s", s.postgres.Major, s.postgres.Addr()), 0)
	if err := s.makeDatabase(ctx); err != nil {
		return fmt.Errorf("making the database: %w", err)
	}
	t.line("", "database "+database+" has Wirefence's schema", 0)
	if err := s.startProxy(ctx, o.ProxyMode); err != nil {
		return fmt.Errorf("starting the proxy: %w", err)
	}
	t.line("", "the proxy runs at "+s.listen, 0)
	return nil
}

// makeDatabase creates the database with the schema, roles and the application's table.
func (s *stage) makeDatabase(ctx context.Context) error {
	root, err := pgx.Connect(ctx, s.postgres.URL("postgres"))
	if err != nil {
		return err
	}
	_, err = root.Exec(ctx, "CREATE DATABASE "+database)
	_ = root.Close(ctx)
	if err != nil {
		return err
	}
	if s.conn, err = pgx.Connect(ctx, s.postgres.URL(database)); err != nil {
		return err
	}
	if err := migrations.Apply(ctx, s.conn, nil); err != nil {
		return err
	}
	_, err = s.conn.Exec(ctx, `
		CREATE ROLE app LOGIN;
		CREATE ROLE issuer LOGIN IN ROLE wirefence_issuer;
		CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL, written_by text, token bigint);
		GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO app;
		INSERT INTO orders VALUES (1, 'new');`)
	return err
}

// startProxy runs the command `proxy` and returns when it is ready.
func (s *stage) startProxy(ctx context.Context, mode string) (err error) {
	if s.listen, err = freeAddress(); err != nil {
		return err
	}
	if s.admin, err = freeAddress(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "wf-demo-"); err != nil {
		return err
	}
	s.token = rand.Text()
	tokens := filepath.Join(s.dir, "tokens")
	if err := os.WriteFile(tokens, []byte("you operate "+s.token+"\n"), 0o600); err != nil {
		return err
	}
	log, err := os.Create(s.proxyLog())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.executable, "proxy")
	cmd.Env = append(os.Environ(),
		"WIREFENCE_LISTEN="+s.listen, "WIREFENCE_ADMIN_LISTEN="+s.admin, "WIREFENCE_MODE="+mode,
		"WIREFENCE_UPSTREAM=postgres://"+s.postgres.Addr()+"/?sslmode=disable",
		"WIREFENCE_DATABASE_URL="+s.direct("issuer"), "WIREFENCE_REDIS_URL="+s.redisURL(0), "WIREFENCE_ADMIN_TOKEN_FILE="+tokens,
		"WIREFENCE_DRAIN_TIMEOUT=1s", "WIREFENCE_LOG_FORMAT=json")
	cmd.Stdout, cmd.Stderr = log, log
	if s.proxy, err = launch(cmd); err != nil {
		return err
	}
	return s.awaitProxy(ctx)
}

// awaitProxy returns when /readyz answers 200.
func (s *stage) awaitProxy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		resp, err := client.Get("http://" + s.admin + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(resp.Status)
		}
		select {
		case <-s.proxy.exited:
			log, _ := os.ReadFile(s.proxyLog())
			return fmt.Errorf("it ended with %s:\n%s", s.proxy.cmd.ProcessState, log)
		case <-ctx.Done():
			log, _ := os.ReadFile(s.proxyLog())
			return fmt.Errorf("it did not get ready: %w\n%s", err, log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// close ends the proxy, then the servers. The stage may be half built.
func (s *stage) close() {
	if s.proxy != nil {
		_ = s.proxy.signal(syscall.SIGTERM)
		s.proxy.end(5 * time.Second)
	}
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = s.conn.Close(ctx)
		cancel()
	}
	if s.redis != nil {
		s.redis.Close()
	}
	if s.postgres != nil {
		s.postgres.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

func (s *stage) direct(role string) string { return s.postgres.URLFor(role, database) }

func (s *stage) proxied(role string) string {
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", role, s.listen, database)
}

func (s *stage) redisURL(number int) string {
	return "redis://" + s.redis.Addr() + "/" + strconv.Itoa(number)
}

// console is the console's address. The token is in the fragment, which no server and no log
// gets.
func (s *stage) console() string { return "http://" + s.admin + "/console/#token=" + s.token }

func (s *stage) proxyLog() string { return filepath.Join(s.dir, "proxy.log") }

func freeAddress() (string, error) {
	port, err := servers.FreePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}
