package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/wirefence/wirefence/fence"
)

func ExampleFence() {
	f, err := fence.Parse("orders=34")
	if err != nil {
		panic(err)
	}
	fmt.Println(f.Session())
	fmt.Println(f.Transaction())
	fmt.Println("UPDATE orders SET shipped = true WHERE id = 7 -- the last one" + f.Comment())
	fmt.Println(f.Check())
	// Output:
	// SET wirefence.token = 'orders=34'
	// SET LOCAL wirefence.token = 'orders=34'
	// UPDATE orders SET shipped = true WHERE id = 7 -- the last one
	// /*wirefence.token='orders=34'*/
	// SELECT wirefence.check('orders=34')
	// /*wirefence.token='orders=34'*/
}

// A zero fence is mostly what an error left behind that nobody looked at.
func TestAZeroFenceIsNotCarried(t *testing.T) {
	for name, carrier := range map[string]func(fence.Fence) string{
		"session": fence.Fence.Session, "transaction": fence.Fence.Transaction, "comment": fence.Fence.Comment, "check": fence.Fence.Check,
		"name": func(f fence.Fence) string { name, _ := f.Name(""); return name },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			t.Errorf("%s: %q", name, carrier(fence.Fence{}))
		}()
	}
}

func TestAName(t *testing.T) {
	for _, c := range []struct{ fence, label, want string }{
		{"orders=34", "nightly job", "wirefence:orders=34~nightly job"},
		{"Orders=34@redis", "", "wirefence:%4frders=34@redis~"},
		{"caf%C3%A9=1,%7E=2", "x~y", "wirefence:caf%C3%A9=1,%7E=2~x~y"},
		{"job(17)=-5", strings.Repeat("x", 99), "wirefence:job(17)=-5~" + strings.Repeat("x", 42)},
		{strings.Repeat("a", 49) + "=34", "x", "wirefence:" + strings.Repeat("a", 49) + "=34~"},
		{strings.Repeat("a", 50) + "=34", "", ""},
	} {
		f, err := fence.Parse(c.fence)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.Name(c.label); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.fence, got, err)
		}
	}
}

const (
	show          = "SELECT coalesce(pg_catalog.current_setting('wirefence.token', true), '')"
	checkVariable = "SELECT wirefence.check()"
)

// carriedByPgx leaves the session of conn without a fence.
func carriedByPgx(ctx context.Context, t *testing.T, conn *pgx.Conn) {
	f, err := fence.New(fence.Pair{Resource: "it's 100%/*--*/", Token: 1})
	if err != nil {
		t.Fatal(err)
	}
	carried := func(q fence.Querier) (text string) {
		t.Helper()
		if err := q.QueryRow(ctx, show).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, f.Transaction()); err != nil || carried(tx) != f.String() {
		t.Errorf("transaction: %v, %q", err, carried(tx))
	}
	if err := tx.Commit(ctx); err != nil || carried(conn) != "" {
		t.Errorf("after the transaction: %v, %q", err, carried(conn))
	}
	if _, err := conn.Exec(ctx, f.Session()); err != nil || carried(conn) != f.String() {
		t.Errorf("session: %v, %q", err, carried(conn))
	}
	if _, err := conn.Exec(ctx, checkVariable); err != nil {
		t.Errorf("the database does not read what was set: %v", err)
	}
	for i, statement := range []string{
		"SELECT 1", "SELECT 1;", "SELECT 1 -- one", "SELECT 1; -- one", "SELECT 1 /* one /* two */ */",
		"SELECT $$;--$$", "SELECT '/*'", `SELECT 1 AS "--"`, "-- nothing else", "", "VALUES (1); ;",
	} {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement} {
			if _, err := conn.Exec(ctx, statement+f.Comment(), mode); err != nil {
				t.Errorf("statement %d, %v: %v", i, mode, err)
			}
		}
	}
	if _, err := conn.Exec(ctx, "RESET wirefence.token"); err != nil {
		t.Fatal(err)
	}
}

func carriedBySQL(ctx context.Context, t *testing.T, driver, url string) {
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	session, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	carried := func(q interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}) (text string) {
		t.Helper()
		if err := q.QueryRowContext(ctx, show).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	for text, want := range map[string]fence.SQLState{"library=2": "", "library=1": fence.StaleToken, "library=3": fence.UnknownToken} {
		refused := func(err error) bool { return fence.StateOf(err) == want && (err == nil) == (want == "") }
		f, err := fence.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(ctx, f.Check()); !refused(err) {
			t.Errorf("%s: %v", text, err)
		}
		tx, err := session.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(ctx, f.Transaction()); err != nil || carried(tx) != text {
			t.Errorf("transaction: %v, %q", err, carried(tx))
		}
		if _, err := tx.ExecContext(ctx, checkVariable); !refused(err) {
			t.Errorf("the variable %q: %v", text, err)
		}
		end := tx.Rollback
		if want == "" {
			end = tx.Commit
		}
		if err := end(); err != nil || carried(session) != "" {
			t.Errorf("after the transaction: %v, %q", err, carried(session))
		}
		if _, err := tx.ExecContext(ctx, f.Transaction()); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("an ended transaction: %v", err)
		}
	}
	if _, err := session.ExecContext(ctx, checkVariable); err != nil {
		t.Errorf("no fence: %v", err)
	}
	current, err := fence.Parse("library=2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.ExecContext(ctx, current.Session()); err != nil || carried(session) != "library=2" {
		t.Errorf("session: %v, %q", err, carried(session))
	}
	if _, err := session.ExecContext(ctx, "SELECT 1 WHERE $1 -- one"+current.Comment(), true); err != nil {
		t.Errorf("comment: %v", err)
	}
}
