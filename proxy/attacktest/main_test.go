// Package attacktest replays attacks on the proxy from end to end: ways past the
// fence, and ways to make the proxy lie to a client or serve nobody.
package attacktest

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

const objects = `
CREATE TABLE t (id serial PRIMARY KEY, token int, what text);
CREATE FUNCTION writes(n int) RETURNS int LANGUAGE sql VOLATILE AS $$ INSERT INTO public.t (token) VALUES (n) RETURNING token $$;
CREATE FUNCTION writes_stably(n int) RETURNS int LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN public.writes(n); END $$;
CREATE FUNCTION writes_immutably(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN public.writes(n); END $$;
CREATE DOMAIN noted AS int CHECK (public.writes_stably(VALUE) IS NOT NULL);
CREATE PROCEDURE commits(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. n LOOP
        INSERT INTO public.t (token) VALUES (i);
        COMMIT;
    END LOOP;
END $$;
CREATE ROLE app LOGIN;
GRANT ALL ON ALL TABLES IN SCHEMA public TO app;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app;
GRANT ALL ON SCHEMA public TO app;
`

// The versions of PostgreSQL, set by TestMain once flags are parsed.
var everyVersion, oldAndNew []int

// The period is long enough for a test to do something within it.
var suite = stack.Suite{
	Objects:  objects,
	Settings: map[string]string{"autovacuum": "off", "max_prepared_transactions": "10", "wal_level": "logical"},
	Options:  proxy.Options{DrainTimeout: time.Second, Hold: 400 * time.Millisecond},
}

func TestMain(m *testing.M) {
	flag.Parse()
	everyVersion, oldAndNew = stack.Versions(), stack.OldAndNew
	// These tests wait more than they compute.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(suite.Run(m))
}

// world is a database with a proxy before it, and a resource whose current token is 34.
type world struct {
	*stack.DB
	proxy string
}

func onEach(t *testing.T, versions []int, test func(t *testing.T, w *world)) {
	t.Helper()
	stack.OnEach(t, versions, func(t *testing.T, major int) {
		w := &world{suite.Database(t, major), suite.Proxy(t, major)}
		w.Seal(t, "orders", 34)
		test(t, w)
	})
}

// login opens a session through the proxy that carries nothing.
func (w *world) login(t *testing.T, params ...string) *stack.Client {
	t.Helper()
	return stack.Login(t, w.proxy, w.Name, params...)
}

// fenced opens a session through the proxy that carries a fence in its session variable.
func (w *world) fenced(t *testing.T, fence string) *stack.Client {
	t.Helper()
	return w.login(t, "options", "-c wirefence.token="+fence)
}

func (w *world) rows(t *testing.T) int { return w.count(t, "SELECT count(*) FROM t") }

func (w *world) count(t *testing.T, sql string) int {
	t.Helper()
	return int(stack.Value[int64](t, w.DB, sql))
}

// held is how many locks of resources there are at session level in the database.
func (w *world) held(t *testing.T) int {
	t.Helper()
	return w.count(t, `SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.objsubid = 2`)
}

// proxyWith starts a proxy of the test's own.
func (w *world) proxyWith(t *testing.T, o proxy.Options) *world {
	t.Helper()
	if o.Hold == 0 {
		o.Hold = suite.Options.Hold
	}
	o.DrainTimeout = time.Second
	return &world{w.DB, stack.Proxy(t, w.Postgres, o)}
}
