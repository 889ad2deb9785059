//go:build linux

package loadtest

import (
	"flag"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

var statements = flag.Int("statements", 20_000, "how many statements each session prepares under fresh names and drops")

// namers are clients that prepare statements under fresh names, and drop them by DEALLOCATE.
var namers = []struct {
	client, name, comment string
	extended              bool // DEALLOCATE is sent by the extended protocol
	kept                  int  // statements that are kept before the oldest is dropped
}{
	{client: "PDO", name: "pdo_stmt_%08x"},
	{client: "psycopg 3 with libpq 16", name: "_pg3_%d", extended: true, kept: 100},
	{client: "Rails", name: "a%d", kept: 1000},
	{client: "Rails with a fence in comments", name: "a%d", comment: " /*wirefence.token='orders=34'*/", kept: 1000},
}

// namesBound is by how many bytes the heap may grow while names come and go.
const namesBound = 2 << 20

// A session's names take no memory of the proxy's once they are dropped.
func TestStatementsUnderFreshNames(t *testing.T) {
	count := *statements
	if testing.Short() {
		count = min(count, 4_000)
	}
	pg := stack.Postgres(t, 0)
	database := stack.Database(t, pg)
	stack.Exec(t, pg.URL(database), "SELECT wirefence.seal('orders', 34, 'B')")
	addr := stack.Proxy(t, pg, proxy.Options{DatabaseURL: pg.URL(database)})
	for _, fence := range []string{"", "orders=34"} {
		for _, n := range namers {
			t.Run(fmt.Sprintf("%s, session with %q", n.client, fence), func(t *testing.T) {
				plain, err := pgconn.Connect(t.Context(), stack.URL(addr, database)+"&options=-c%20wirefence.token%3D"+url.QueryEscape(fence))
				if err != nil {
					t.Fatal(err)
				}
				conn, err := plain.Hijack()
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Conn.Close() }()
				var warm uint64
				began := time.Now()
				for i := range count {
					prepare(conn.Frontend, fmt.Sprintf(n.name, i), "SELECT 1"+n.comment)
					syncs := 1
					if old := i - n.kept; old >= 0 {
						deallocate(conn.Frontend, fmt.Sprintf(n.name, old), n.extended)
						syncs++
					}
					if err := answers(conn.Frontend, syncs); err != nil {
						t.Fatalf("statement %d: %v", i, err)
					}
					if i == max(count/10, n.kept) {
						warm = heapInUse()
					}
				}
				grown := int64(heapInUse()) - int64(warm)
				t.Logf("%d statements in %s, the heap of %d bytes has grown by %d", count, time.Since(began).Round(time.Second), warm, grown)
				if grown > namesBound {
					t.Errorf("the heap has grown by %d bytes", grown)
				}
				conn.Frontend.Send(&pgproto3.Terminate{})
				_ = conn.Frontend.Flush()
			})
		}
	}
}

// prepare prepares a statement and runs it, as libpq does with two calls.
func prepare(f *pgproto3.Frontend, name, sql string) {
	for _, m := range []pgproto3.FrontendMessage{
		&pgproto3.Parse{Name: name, Query: sql}, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{}, &pgproto3.Sync{},
	} {
		f.Send(m)
	}
}

func deallocate(f *pgproto3.Frontend, name string, extended bool) {
	sql := "DEALLOCATE " + name
	if extended {
		prepare(f, "", sql)
	} else {
		f.Send(&pgproto3.Query{String: sql})
	}
}

// answers sends what was collected, and takes the answers up to the n-th ReadyForQuery.
func answers(f *pgproto3.Frontend, n int) error {
	if err := f.Flush(); err != nil {
		return err
	}
	for n > 0 {
		switch m, err := f.Receive(); m := m.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			n--
		default:
			if err != nil {
				return err
			}
		}
	}
	return nil
}
