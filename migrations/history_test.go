package migrations_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/wirefence/wirefence/internal/stack"
)

// told returns the history as the issuer reads it, a line for each row.
func told(t *testing.T, conn *pgx.Conn, columns, filter string) []string {
	t.Helper()
	return column[string](t, conn, "SELECT concat_ws(' ', "+columns+") FROM wirefence.history("+filter+")")
}

func TestHandoffsAreKept(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, app := db.as(t, "issuer"), db.app(t)
		mustExec(t, issuer, "SET application_name = 'locker'")
		mustExec(t, issuer, `SELECT wirefence.seal('orders', 33, 'a/1'), wirefence.seal('orders', 34, 'a/2'), wirefence.seal('orders', 35, 'b/1', 'etcd')`)
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 35, 'c/1')") // not higher: nothing happens
		mustExec(t, issuer, "SELECT wirefence.revoke('orders')")
		mustExec(t, issuer, "SELECT wirefence.acquire('leased', 'd', '1 min', 'd/1')")
		mustExec(t, issuer, "SELECT wirefence.renew('leased', 'd/1', '1 min')")
		mustExec(t, issuer, "SELECT wirefence.declare_resource('declared', 'why')")
		mustExec(t, app, "SET application_name = 'job'; SELECT wirefence.check('used=7')")
		mustExec(t, app, "SELECT wirefence.check('used=7')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('used=8'); ROLLBACK")
		mustExec(t, app, "SELECT wirefence.check('used=9')")
		mustExec(t, issuer, "SELECT wirefence.set_resource('used', 'why', last_token => 3, must_name_source => false)")
		got := told(t, issuer, `kind, resource, current_token, 'to', token, coalesce(former_holder, '-'), coalesce(holder, '-'), source, reason, login, application,
			pid = `+fmt.Sprint(issuer.PgConn().PID())+`, count`, "")
		if want := []string{
			"handoff orders to 33 - a/1 granted issuer locker t 1",
			"handoff orders 34 to 35 a/2 b/1 etcd granted issuer locker t 1",
			"revocation orders 35 to 36 b/1 - etcd by an operator issuer locker t 1",
			"handoff leased to 1 - d postgres granted issuer locker t 1",
			"handoff used to 7 - - first use app job f 1",
			"handoff used 7 to 9 - - first use app job f 1",
			"revocation used 9 to 3 - - by an operator issuer locker t 1",
		}; !slices.Equal(got, want) {
			t.Errorf("the history has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestTheHistoryIsRead(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, issuer := db.admin(t), db.as(t, "issuer")
		mustExec(t, admin, `INSERT INTO wirefence.history (at, kind, resource, last_at)
			SELECT now() - n * interval '1 hour', (ARRAY['handoff', 'refusal'])[1 + n % 2], 'r' || n % 3, CASE n WHEN 9 THEN now() END
			FROM generate_series(1, 12) AS n`)
		for filter, want := range map[string]string{
			"":                                             "12 11 10 9 8 7 6 5 4 3 2 1",
			"resource => 'r1'":                             "10 7 4 1",
			"kinds => '{handoff}'":                         "12 10 8 6 4 2",
			"max_rows => 2":                                "2 1",
			"'r0', max_rows => 3":                          "9 6 3",
			"resource => 'unknown'":                        "",
			"since => now() - interval '2.5 hours'":        "9 2 1",
			"NULL, NULL, '{refusal,handoff}', 1":           "1",
			"kinds => '{}', resource => 'r1'":              "",
			"kinds => '{dropped}', resource => 'r1'":       "",
			"max_rows => 2147483647, kinds => '{refusal}'": "11 9 7 5 3 1",
		} {
			if got := strings.Join(told(t, issuer, "round(extract(epoch FROM now() - at) / 3600)", filter), " "); got != want {
				t.Errorf("history(%s) has the hours %q, want %q", filter, got, want)
			}
		}
		for _, wrong := range []string{"kinds => '{refusals}'", "kinds => ARRAY['handoff', NULL]", "max_rows => 0", "max_rows => NULL"} {
			wantCode(t, exec(issuer, "SELECT * FROM wirefence.history("+wrong+")"), "22023")
		}
	})
}

func TestTheBoundsOfTheHistoryAreSet(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer := db.as(t, "issuer")
		for _, c := range [][2]string{
			{"", "100000 30 days"}, {"5000", "5000 30 days"}, {"max_age => '90 days'", "5000 90 days"}, {"100, '1 min'", "100 00:01:00"},
		} {
			if got := value[string](t, issuer, "SELECT concat_ws(' ', max_rows, max_age) FROM wirefence.set_history("+c[0]+")"); got != c[1] {
				t.Errorf("set_history(%s) returns %q, want %q", c[0], got, c[1])
			}
		}
		for _, wrong := range []string{"99", "1000001", "-1", "max_age => '59 s'", "max_age => '-1 day'", "max_age => '101 years'"} {
			wantCode(t, exec(issuer, "SELECT wirefence.set_history("+wrong+")"), "22023")
		}
		if got := value[string](t, issuer, "SELECT wirefence.set_history()::text"); got != "(100,00:01:00)" {
			t.Errorf("after what was refused, the bounds are %s", got)
		}
	})
}

func TestTheHistoryIsBoundedByAgeAndNumber(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, "SELECT wirefence.set_history(1000, '1 day')")
		mustExec(t, admin, `INSERT INTO wirefence.history (at, kind, resource) SELECT now() - interval '1 day' - n * interval '1 s', 'handoff', 'old'
			FROM generate_series(1, 3000) AS n`)
		mustExec(t, admin, `INSERT INTO wirefence.history (at, kind, resource) SELECT now() - n * interval '1 s', 'handoff', 'new'
			FROM generate_series(1, 900) AS n`)
		if got := value[int](t, admin, "SELECT wirefence.prune_history()"); got != 3000 {
			t.Errorf("%d rows pruned, 3000 were too old", got)
		}
		mustExec(t, admin, "INSERT INTO wirefence.history (kind, resource) SELECT 'handoff', 'newest' FROM generate_series(1, 12000)")
		if got := value[int](t, admin, "SELECT wirefence.prune_history()"); got != 10000 {
			t.Errorf("%d rows pruned at once", got)
		}
		mustExec(t, admin, "SELECT wirefence.prune_history()")
		if got := value[string](t, admin, "SELECT string_agg(DISTINCT resource, ' ') || count(*) FROM wirefence.history"); got != "newest1000" {
			t.Errorf("kept: %s", got)
		}
	})
}

// Writers of all isolation levels write rows far beyond the bound. None of them fails,
// none waits for another whose pruning transaction is open, and the number of rows stays
// near the bound.
func TestPruningStandsInNobodysWay(t *testing.T) {
	stack.NeedsMore(t, "4 s of CPU")
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, "SELECT wirefence.set_history(100)")
		mustExec(t, admin, "INSERT INTO wirefence.history (at, kind) SELECT now() - interval '1 hour', 'handoff' FROM generate_series(1, 2000)")
		open := db.admin(t)
		mustExec(t, open, "BEGIN; SELECT wirefence.prune(500)")
		var wg sync.WaitGroup
		for _, isolation := range append(slices.Clone(isolations), "READ COMMITTED", "READ COMMITTED") {
			conn := db.admin(t)
			wg.Go(func() {
				for i := range 200 {
					sql := note
					if i%10 == 0 {
						sql += "; SELECT wirefence.prune(20)"
					}
					if err := exec(conn, "BEGIN ISOLATION LEVEL "+isolation+"; SET LOCAL lock_timeout = '30s'; "+sql+"; COMMIT"); err != nil {
						t.Errorf("%s: %v", isolation, err)
						return
					}
				}
			})
		}
		wg.Wait()
		// On a busy machine a session that waited for a page may have dropped a row.
		if dropped := value[int](t, admin, "SELECT last_value FROM wirefence.history_dropped"); dropped > 50 {
			t.Errorf("%d rows of 1000 were dropped", dropped)
		}
		mustExec(t, open, "ROLLBACK")
		// One row in 256 prunes, on average: that none of 6,000 does is as good as
		// impossible.
		before := value[int](t, admin, "SELECT count(*) FROM wirefence.history")
		for range 30 {
			mustExec(t, admin, note+" FROM generate_series(1, 200)")
		}
		if rows := value[int](t, admin, "SELECT count(*) FROM wirefence.history"); rows >= before+6000 {
			t.Errorf("nothing was pruned: %d rows are kept", rows)
		}
		mustExec(t, admin, "SELECT wirefence.prune_history()")
		if rows := value[int](t, admin, "SELECT count(*) FROM wirefence.history"); rows != 100 {
			t.Errorf("%d rows are kept", rows)
		}
	})
}

// A history that is locked or cannot be written delays and fails nothing, and counts the
// lost rows.
func TestAHistoryOutOfOrderStopsNoHandoff(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, issuer, app := db.admin(t), db.as(t, "issuer"), db.app(t)
		dropped := func() int { return value[int](t, admin, "SELECT last_value FROM wirefence.history_dropped") }
		token := 0
		handoffs := func(state string) {
			t.Helper()
			before := dropped()
			for _, isolation := range isolations {
				for _, conn := range []*pgx.Conn{issuer, app} {
					token++
					sql := fmt.Sprintf("SELECT wirefence.seal('orders', %d, 'w%d')", token, token)
					if conn == app {
						sql = fmt.Sprintf("SELECT wirefence.check('used=%d')", token)
					}
					ctx, cancel := context.WithTimeout(t.Context(), 20e9)
					if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL "+isolation+"; "+sql+"; COMMIT"); err != nil {
						t.Errorf("%s, %s, %s: %v", state, isolation, sql, err)
					}
					cancel()
				}
			}
			if got := dropped() - before; got != 2*len(isolations) {
				t.Errorf("%s: %d of %d rows were counted as dropped", state, got, 2*len(isolations))
			}
		}
		for _, lock := range []string{"wirefence.history", "wirefence.history IN SHARE MODE"} {
			other := db.admin(t)
			mustExec(t, other, "BEGIN; LOCK TABLE "+lock)
			handoffs(lock + " locked")
			mustExec(t, other, "ROLLBACK")
		}
		mustExec(t, admin, "ALTER TABLE wirefence.history ADD CONSTRAINT broken CHECK (false) NOT VALID")
		handoffs("a constraint fails")
		mustExec(t, admin, "ALTER TABLE wirefence.history RENAME TO gone")
		handoffs("the table is gone")
		if got := value[int](t, issuer, "SELECT last_token FROM wirefence.resource_locks WHERE resource_id = 'used'"); got != token {
			t.Errorf("the last token is %d, want %d", got, token)
		}
	})
}

// If a row cannot be written, lastval of the client stays the same, and a transaction
// waits only once, however many rows it has.
func TestAHistoryOutOfOrderIsNoticedByNobody(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app, admin := guarded(t, db), db.admin(t)
		mustExec(t, app, "CREATE TABLE plain (id serial); CREATE TABLE trial (k text); SELECT wirefence.protect('trial', 'trial:{k}', true)")
		mustExec(t, admin, "BEGIN; LOCK TABLE wirefence.history")
		mustExec(t, app, "BEGIN; INSERT INTO plain DEFAULT VALUES; INSERT INTO trial SELECT 't' || i FROM generate_series(1, 20) AS i")
		if got := value[int](t, app, "SELECT lastval()"); got != 1 {
			t.Errorf("lastval is %d", got)
		}
		mustExec(t, app, "COMMIT")
		other := db.admin(t)
		if got := value[int](t, other, "SELECT last_value FROM wirefence.history_dropped"); got != 20 {
			t.Errorf("%d rows were counted as dropped", got)
		}
		// Whom a takeover has ended it tells all the same.
		holder := db.app(t)
		mustExec(t, holder, "BEGIN; SELECT wirefence.check('orders=34')")
		mustExec(t, other, "UPDATE wirefence.resource_locks SET preempt_after = '1 ms'")
		issuer := db.as(t, "issuer")
		mustExec(t, issuer, "BEGIN; SELECT wirefence.revoke('orders')")
		if got := value[int](t, issuer, "SELECT (current_setting('wirefence.ended')::jsonb -> 0 ->> 'pid')::int"); got != int(holder.PgConn().PID()) {
			t.Errorf("process %d was ended, want %d", got, holder.PgConn().PID())
		}
		mustExec(t, issuer, "COMMIT")
		mustExec(t, admin, "ROLLBACK")
	})
}

func TestWhatCannotWriteNotesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		mustExec(t, admin, "BEGIN READ ONLY; "+note+"; COMMIT")
		mustExec(t, admin, note)
		if got := told(t, admin, "kind, state, resource, token > 34, current_token, source, holder, relation, login", ""); !slices.Equal(got, []string{
			"shadow WF001 orders t 34 etcd b/1 public.orders postgres",
		}) {
			t.Errorf("the history has %q", got)
		}
	})
}
