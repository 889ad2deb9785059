package sqlscan

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// objects are what the statements of the other files use.
//
//go:embed testdata/objects.sql
var objects string

// reads are classed as reads, and a READ ONLY transaction runs them.
//
//go:embed testdata/reads.sql
var reads string

// writes are classed as writes, and a READ ONLY transaction refuses them.
//
//go:embed testdata/writes.sql
var writes string

// alarms are classed as writes although PostgreSQL runs them in a READ ONLY
// transaction: there is no telling, or it doesn't matter.
//
//go:embed testdata/alarms.sql
var alarms string

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

func TestReadsAndWritesAsTheServerDoes(t *testing.T) {
	forEachServer(t, func(t *testing.T, major int, conn *pgconn.PgConn) {
		mustRun(t, conn, objects)
		cat := readCatalog(t, conn)
		for _, sql := range lines(reads) {
			if scanOne(t, sql, Options{}, cat).Write {
				t.Errorf("%s: classed as a write", sql)
			}
			mustRun(t, conn, "begin read only")
			if _, state := run(t, conn, sql); state != "" {
				t.Errorf("%s: the server answers %s", sql, state)
			}
			mustRun(t, conn, "rollback")
		}
		for _, sql := range lines(writes) {
			if !scanOne(t, sql, Options{}, cat).Write {
				t.Errorf("%s: classed as a read", sql)
			}
			mustRun(t, conn, "begin read only")
			if _, state := run(t, conn, sql); state == "" {
				t.Errorf("%s: the server runs it in a READ ONLY transaction", sql)
			} else if state != "25006" {
				t.Logf("%s: %s", sql, state)
			}
			mustRun(t, conn, "rollback")
		}
		for _, sql := range lines(alarms) {
			if !scanOne(t, sql, Options{}, cat).Write {
				t.Errorf("%s: classed as a read", sql)
			}
		}
	})
}
