// Package holdtest tests holds from end to end: what a busy session may do under
// one, when it is given back, and how a takeover gets past it.
package holdtest

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

const objects = `
CREATE TABLE t (id serial PRIMARY KEY, token int, what text);
CREATE PROCEDURE commits(n int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. n LOOP
        INSERT INTO t (what) VALUES ('procedure');
        COMMIT;
    END LOOP;
END $$;
CREATE FUNCTION reads_and_writes() RETURNS int LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN write_one();
END $$;
CREATE FUNCTION write_one() RETURNS int LANGUAGE sql VOLATILE AS $$ INSERT INTO t (what) VALUES ('function') RETURNING 1 $$;
CREATE ROLE app LOGIN;
GRANT ALL ON ALL TABLES IN SCHEMA public TO app;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app;
GRANT ALL ON SCHEMA public TO app;
`

// The versions of PostgreSQL, set by TestMain once flags are parsed.
var everyVersion []int

// The period is long enough for a test to do something within it.
var suite = stack.Suite{
	Objects:  objects,
	Settings: map[string]string{"autovacuum": "off", "max_prepared_transactions": "10", "track_commit_timestamp": "on"},
	Options:  proxy.Options{DrainTimeout: time.Second, Hold: 400 * time.Millisecond},
}

func TestMain(m *testing.M) {
	if upstream := os.Getenv(proxyVariable); upstream != "" {
		os.Exit(serve(upstream))
	}
	flag.Parse()
	everyVersion = stack.Versions()
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
		w.seal(t, "orders", 34)
		test(t, w)
	})
}

func (w *world) seal(t *testing.T, resource string, token int) {
	t.Helper()
	w.exec(t, "SELECT wirefence.seal($1, $2, 'a holder')", resource, token)
}

func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.Admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (w *world) number(t *testing.T, sql string) (n int) {
	t.Helper()
	if err := w.Admin.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// held is how many session-level locks of resources there are in the database.
func (w *world) held(t *testing.T) int {
	t.Helper()
	return w.number(t, `SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.objsubid = 1`)
}

// client is a session through the proxy that carries a fence in its session variable.
func (w *world) client(t *testing.T, fence string) *stack.Client {
	t.Helper()
	return stack.Login(t, w.proxy, w.Name, "options", "-c wirefence.token="+fence)
}

// busy makes a session one that holds, however slow the machine is.
func (w *world) busy(t *testing.T, sessions ...*stack.Client) {
	t.Helper()
	stack.Eventually(t, "the sessions hold", func() bool {
		for _, c := range sessions {
			c.Must("INSERT INTO t (what) VALUES ('first')", "INSERT INTO t (what) VALUES ('second')", "SELECT 1")
		}
		return w.held(t) == len(sessions)
	})
}

var background = context.Background
