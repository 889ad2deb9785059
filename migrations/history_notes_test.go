package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// note runs, as the owner, what a session calls for a shadow refusal, each time with
// another token.
const note = "SELECT wirefence.note('shadow', 'WF001', 'orders', 1000 + (random() * 1e15)::bigint, 34, 'etcd', 'b/1', 'public.orders')"

// The repeated events of a session are one row with a count, as long as they do not
// differ, and the row exists and is of this session.
func TestASessionsRepeatedNotesAreOneRow(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, other := db.admin(t), db.admin(t)
		noted := func(token int) string {
			return fmt.Sprintf("SELECT wirefence.note('shadow', 'WF001', 'orders', %d, NULL, NULL, 'b/1', 'public.orders')", token)
		}
		want := func(rows ...string) {
			t.Helper()
			got := column[string](t, admin, "SELECT concat_ws(' ', token, count, last_at > at) FROM wirefence.history ORDER BY token, count")
			if !slices.Equal(got, rows) {
				t.Errorf("the history has %q, want %q", got, rows)
			}
		}
		for range 3 {
			for token := 1; token <= 8; token++ {
				mustExec(t, admin, noted(token))
			}
		}
		want("1 3 t", "2 3 t", "3 3 t", "4 3 t", "5 3 t", "6 3 t", "7 3 t", "8 3 t")
		mustExec(t, admin, "DELETE FROM wirefence.history WHERE token > 1")

		mustExec(t, admin, noted(2)) // its row is gone
		mustExec(t, admin, "BEGIN; "+noted(1)+"; "+noted(3)+"; ROLLBACK")
		mustExec(t, admin, noted(3))
		mustExec(t, admin, noted(3))
		want("1 3 t", "2 1", "3 2 t")
		// A snapshot may not hold the row, and to read it could fail the transaction.
		for _, isolation := range isolations[1:] {
			mustExec(t, admin, "BEGIN ISOLATION LEVEL "+isolation+"; "+noted(2)+"; COMMIT")
		}
		want("1 3 t", "2 1", "2 1", "2 1", "3 2 t")

		// Another session doesn't wait for the row, nor count in it by saying that it is
		// its own.
		mustExec(t, admin, "BEGIN; "+noted(3))
		mustExec(t, other, "SET lock_timeout = '5s'")
		mustExec(t, other, "SELECT set_config('wirefence.noted', $1, false)", value[string](t, admin, "SHOW wirefence.noted"))
		mustExec(t, other, noted(3))
		mustExec(t, admin, "COMMIT")
		want("1 3 t", "2 1", "2 1", "2 1", "3 1", "3 3 t")

		// Other values of the variable, or old ones, do not matter.
		for _, text := range []string{"x", "9999999999999999 " + strings.Repeat("f", 32) + ",", strings.Repeat("1,", 5000)} {
			mustExec(t, other, "SELECT set_config('wirefence.noted', $1, false)", text)
			mustExec(t, other, noted(4))
		}
		mustExec(t, admin, "DELETE FROM wirefence.history WHERE token < 4; UPDATE wirefence.history SET at = at - interval '1 minute'")
		mustExec(t, other, noted(4))
		want("4 1", "4 1", "4 1", "4 1")
		if dropped := value[int](t, admin, "SELECT last_value FROM wirefence.history_dropped"); dropped != 0 {
			t.Errorf("%d rows were dropped", dropped)
		}
	})
}

// The repeated events of a transaction count once, and the rows of a prepared transaction
// block nobody.
func TestATransactionsRepeatedNotesCountOnce(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin := db.admin(t)
		const same = "SELECT wirefence.note('shadow', 'WF001', 'orders', 33, 34, NULL, 'b/1', NULL)"
		mustExec(t, admin, "BEGIN; "+same+"; SAVEPOINT s; "+same+"; "+same+"; COMMIT")
		mustExec(t, admin, same)
		gid := "'" + db.name + "'"
		mustExec(t, admin, "BEGIN; "+same+"; PREPARE TRANSACTION "+gid)
		mustExec(t, admin, "SET statement_timeout = '10s'; "+same)
		mustExec(t, admin, "COMMIT PREPARED "+gid)
		if got := column[int](t, admin, "SELECT count FROM wirefence.history ORDER BY at"); !slices.Equal(got, []int{3, 1}) {
			t.Errorf("counted %d", got)
		}
		if dropped := value[int](t, admin, "SELECT last_value FROM wirefence.history_dropped"); dropped != 0 {
			t.Errorf("%d rows were dropped", dropped)
		}
	})
}

// Rows of roles that can only write do not displace rows of issuers.
func TestClientsPushOutRowsOfTheirOwnOnly(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		admin, issuer, app := db.admin(t), db.as(t, "issuer"), db.app(t)
		mustExec(t, admin, "SELECT wirefence.set_history(100)")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 33, 'a/1'), wirefence.seal('orders', 34, 'b/1'), wirefence.revoke('orders')")
		for token := range 300 {
			mustExec(t, app, fmt.Sprintf("SELECT wirefence.check('used=%d')", token+1))
		}
		mustExec(t, issuer, "SELECT wirefence.prune_history()")
		if got := told(t, issuer, "kind, resource, token", "max_rows => 5"); !slices.Equal(got, []string{
			"handoff used 296", "handoff used 297", "handoff used 298", "handoff used 299", "handoff used 300",
		}) {
			t.Errorf("the newest: %q", got)
		}
		if got := told(t, issuer, "kind, token", "'orders'"); !slices.Equal(got, []string{"handoff 33", "handoff 34", "revocation 35"}) {
			t.Errorf("of the issuer: %q", got)
		}
		if kept := value[int](t, admin, "SELECT count(*) FROM wirefence.history WHERE NOT issued"); kept != 100 {
			t.Errorf("%d rows of clients are kept", kept)
		}
	})
}

// The history includes bypasses, and keeps them for as long as other rows, whatever their
// number.
func TestBypassesAreInTheHistory(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		guarded(t, db)
		admin, issuer := db.admin(t), db.as(t, "issuer")
		mustExec(t, admin, fmt.Sprintf("CREATE ROLE %[1]s_fixer LOGIN IN ROLE app, wirefence_bypass; DELETE FROM wirefence.history", db.name))
		mustExec(t, db.as(t, db.name+"_fixer"), "UPDATE orders SET item = 'm'")
		mustExec(t, db.as(t, db.name+"_fixer"), "TRUNCATE reports")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 35, 'z/1')")
		const columns = "kind, resource, replace(login, current_database(), 'db'), replace(relation, 'public.', ''), token"
		want := []string{"bypass orders db_fixer orders", "bypass report:{tenant}:{id} db_fixer reports", "handoff orders issuer 35"}
		if got := told(t, issuer, columns, ""); !slices.Equal(got, want) {
			t.Errorf("the history has %q, want %q", got, want)
		}
		for filter, rows := range map[string][]string{
			"kinds => '{bypass}'": want[:2], "'orders'": {want[0], want[2]}, "max_rows => 2": want[1:], "since => now() + interval '1 hour'": nil, "kinds => '{handoff}'": want[2:],
		} {
			if got := told(t, issuer, columns, filter); !slices.Equal(got, rows) {
				t.Errorf("history(%s) has %q, want %q", filter, got, rows)
			}
		}
		if ids := value[int](t, issuer, "SELECT count(DISTINCT id) FROM wirefence.history()"); ids != 3 {
			t.Errorf("%d ids of 3 rows", ids)
		}
		mustExec(t, admin, "UPDATE wirefence.bypasses SET written_at = written_at - interval '2 hours' WHERE resource = 'orders'")
		mustExec(t, admin, "SELECT wirefence.set_history(100, '1 hour')")
		mustExec(t, admin, "INSERT INTO wirefence.history (kind) SELECT 'refusal' FROM generate_series(1, 200)")
		if pruned := value[int](t, issuer, "SELECT wirefence.prune_history()"); pruned != 101 {
			t.Errorf("%d rows pruned", pruned)
		}
		if got := told(t, issuer, columns, "kinds => '{bypass,handoff}'"); !slices.Equal(got, want[1:]) {
			t.Errorf("kept: %q", got)
		}
	})
}

// Neither refusals that a proxy is about to record, nor refused seals, count as missing.
func TestUnrecordedRefusalsAreThoseOfAMinuteAgo(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, app, admin := db.as(t, "issuer"), db.app(t), db.admin(t)
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 34, 'worker-b', 'redis')")
		wantCode(t, exec(issuer, "SELECT wirefence.seal('orders', 35, 'worker-b', 'etcd')"), "WF003")
		wants := func(what string, raised, unrecorded int, dated bool) {
			t.Helper()
			var r, u int
			var d bool
			if err := issuer.QueryRow(t.Context(), "SELECT raised, unrecorded, unrecorded_at IS NOT NULL FROM wirefence.history_totals()").Scan(&r, &u, &d); err != nil {
				t.Fatal(err)
			}
			if r != raised || u != unrecorded || d != dated {
				t.Errorf("%s: %d raised, %d unrecorded, dated %v; want %d, %d, %v", what, r, u, d, raised, unrecorded, dated)
			}
		}
		minuteLater := func() {
			t.Helper()
			mustExec(t, admin, "UPDATE wirefence.history_bounds SET marked_at = marked_at - interval '1 min'")
			mustExec(t, issuer, "SELECT wirefence.prune_history()")
		}
		refuse := func() { t.Helper(); wantCode(t, exec(app, "SELECT wirefence.check('orders=33')"), "WF001") }
		wants("a seal that was refused", 0, 0, false)
		refuse()
		wants("where nobody records", 1, 1, false)
		mustExec(t, issuer, "SELECT wirefence.prune_history()")
		refuse()
		wants("at once", 2, 0, false)
		mustExec(t, issuer, "SELECT wirefence.prune_history()") // which marks no earlier than after a minute
		minuteLater()
		wants("a minute later", 2, 1, true)
		mustExec(t, issuer, `SELECT wirefence.record_refusals('proxy', '[{"kind": "refusal", "count": 1, "age": 1, "last_age": 1, "raised": true}]')`)
		minuteLater()
		wants("one of them recorded", 2, 1, true)
		mustExec(t, admin, "UPDATE wirefence.history_bounds SET marked_at = marked_at - interval '6 min'")
		wants("when nobody records any more", 2, 1, false)
	})
}

// Without a proxy the last four refusals are recorded when somebody looks, with what was
// refused. One that a proxy may have recorded isn't recorded twice.
func TestRefusalsAreCollectedWithoutAProxy(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		app := guarded(t, db)
		issuer := db.as(t, "issuer")
		mustExec(t, app, "SELECT wirefence.protect('orders', 'orders'), wirefence.protect('free', 'unseen'), wirefence.protect('reports', 'report:{tenant}:{id}')")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 34, 'worker-b')")
		collects := func(want int) {
			t.Helper()
			if got := value[int](t, issuer, "SELECT wirefence.collect_refusals()"); got != want {
				t.Errorf("%d are collected, want %d", got, want)
			}
		}
		refused := func(sql, state string) { t.Helper(); wantCode(t, exec(app, sql), state) }
		collects(0)
		mustExec(t, app, "SET wirefence.token = 'orders=33'")
		refused("DELETE FROM orders", "WF001")
		mustExec(t, app, "RESET wirefence.token")
		refused("BEGIN; DELETE FROM free", "WF002")
		mustExec(t, app, "ROLLBACK")
		refused("INSERT INTO reports (tenant, id) VALUES (7, 17)", "WF002")
		refused("SELECT wirefence.check('orders')", "WF004") // of which no resource is known
		collects(3)
		collects(0)
		got := told(t, issuer, `kind, state, coalesce(resource, '-'), coalesce(token::text, '-'), coalesce(current_token::text, '-'), coalesce(holder, '-'),
			pid = `+fmt.Sprint(app.PgConn().PID())+`, abs(extract(epoch FROM at - now())) < 60`, "kinds => '{refusal}'")
		slices.Sort(got)
		if want := []string{
			"refusal WF001 orders 33 34 worker-b t t", "refusal WF002 - - - - t t", "refusal WF002 unseen - - - t t",
		}; !slices.Equal(got, want) {
			t.Errorf("the history has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got := value[int](t, issuer, "SELECT unrecorded FROM wirefence.history_totals()"); got != 1 {
			t.Errorf("%d count as missing, not the one that has no resource", got)
		}
		for range 6 {
			refused("SELECT wirefence.check('orders=33')", "WF001")
		}
		collects(4)
		mustExec(t, issuer, "SELECT wirefence.prune_history()") // a proxy looks after the history
		refused("SELECT wirefence.check('orders=33')", "WF001")
		collects(0)
		mustExec(t, db.admin(t), "UPDATE wirefence.history_bounds SET marked_at = marked_at - interval '6 min'")
		refused("SELECT wirefence.check('orders=33')", "WF001")
		collects(1)
		refused("SELECT wirefence.check('orders=33')", "WF001")
		mustExec(t, issuer, `SELECT wirefence.record_refusals('proxy', '[{"kind": "refusal", "count": 1, "age": 1, "last_age": 1, "raised": true}]')`)
		collects(0)
		mustExec(t, issuer, "SET default_transaction_read_only = on")
		refused("SELECT wirefence.check('orders=33')", "WF001")
		collects(0)
	})
}

// A handoff records how long it waited for open transactions.
func TestHandoffsTellHowLongTheyWaited(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		issuer, app := db.as(t, "issuer"), db.app(t)
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 33, 'a/1')")
		mustExec(t, app, "BEGIN; SELECT wirefence.check('orders=33')")
		mustExec(t, issuer, "SELECT wirefence.set_resource('orders', 'so that it waits', preempt_after => '300 ms')")
		mustExec(t, issuer, "SELECT wirefence.seal('orders', 34, 'b/1')") // which ends the transaction
		got := told(t, issuer, "token, waited_seconds >= CASE token WHEN 33 THEN 0 ELSE 0.3 END", "'orders', kinds => '{handoff}'")
		if want := []string{"33 t", "34 t"}; !slices.Equal(got, want) {
			t.Errorf("the history has %q, want %q", got, want)
		}
	})
}
