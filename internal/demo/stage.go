package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
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
	proxy    *servers.Wirefence
	token    string // of the admin listener's API, which may do everything
	dir      string // holds a file with the token, and what the workers print
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
	if s.postgres, err = servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{"wal_level": "logical"}}); err != nil {
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
	t.line("", "the proxy runs at "+s.proxy.Addr(), 0)
	return nil
}

// makeDatabase creates the database with the schema, roles and the application's table.
func (s *stage) makeDatabase(ctx context.Context) error {
	if err := s.postgres.Exec(ctx, "postgres", "CREATE DATABASE "+database); err != nil {
		return err
	}
	var err error
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
	if s.dir, err = os.MkdirTemp("", "wf-demo-"); err != nil {
		return err
	}
	s.token = rand.Text()
	tokens := filepath.Join(s.dir, "tokens")
	if err := os.WriteFile(tokens, []byte("you operate "+s.token+"\n"), 0o600); err != nil {
		return err
	}
	s.proxy, err = servers.StartWirefence(ctx, s.executable, "WIREFENCE_MODE="+mode,
		"WIREFENCE_UPSTREAM=postgres://"+s.postgres.Addr()+"/?sslmode=disable",
		"WIREFENCE_DATABASE_URL="+s.direct("issuer"), "WIREFENCE_REDIS_URL="+s.redisURL(0), "WIREFENCE_ADMIN_TOKEN_FILE="+tokens,
		"WIREFENCE_DRAIN_TIMEOUT=1s", "WIREFENCE_LOG_FORMAT=json")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for !s.proxy.Answers(ctx, "/readyz") {
		select {
		case <-ctx.Done():
			return fmt.Errorf("it did not get ready: %w\n%s", ctx.Err(), s.proxy.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// close ends the proxy, then the servers. The stage may be half built.
func (s *stage) close() {
	if s.proxy != nil {
		s.proxy.Stop()
		s.proxy.Close()
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
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", role, s.proxy.Addr(), database)
}

func (s *stage) redisURL(number int) string {
	return "redis://" + s.redis.Addr() + "/" + strconv.Itoa(number)
}

// console is the console's address. The token is in the fragment, which no server and no log
// gets.
func (s *stage) console() string { return "http://" + s.proxy.Admin + "/console/#token=" + s.token }
