package fencingtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

func TestCommentsAndLocalSettingsFenceThroughAPooler(t *testing.T) {
	for name, chain := range chains {
		w := chain(t, two, proxy.Options{})
		for _, p := range protocols[:2] {
			c := w.connect(t)
			for _, token := range []int{34, 33} {
				want := map[int]string{34: "", 33: "WF001"}[token]
				stack.WantState(t, p.run(c, insertOf(token)+comment(token)), want, name, p.name, "comment", token)
				c.Must("BEGIN")
				stack.WantState(t, p.run(c, setLocal(token)), "", name, p.name)
				stack.WantState(t, p.run(c, insertOf(token)), want, name, p.name, "SET LOCAL", token)
				c.Must("ROLLBACK")
				stack.WantState(t, p.run(c, insertOf(0)), "", name, p.name, "unfenced, behind a ROLLBACK")
				c.Must("BEGIN")
				stack.WantState(t, c.Extended("SELECT set_config('wirefence.token', $1, true)", fmt.Sprint("orders=", token)), "")
				stack.WantState(t, p.run(c, insertOf(token)), want, name, p.name, "set_config", token)
				stack.WantState(t, p.run(c, "COMMIT"), "", name, p.name)
				stack.WantState(t, p.run(c, insertOf(0)), "", name, p.name, "unfenced, behind a COMMIT")
			}
		}
		w.wantRowsOf(t, 33, 0)
		w.wantRowsOf(t, 34, 2*2)
		w.wantRowsOf(t, 0, 2*2*2)
	}
}

func TestBehindThePoolerForeignSettingsDontCount(t *testing.T) {
	w := poolerBehind(t, one, proxy.Options{})
	strict := w.beforePooler(t, one, proxy.Options{UnfencedWrites: proxy.Reject})
	for w, unfenced := range map[*world]string{w: "", strict: "WF002"} {
		early := w.connect(t)
		w.leave(t, "orders=33")
		for name, c := range map[string]*client{"logged in before": early, "logged in behind": w.connect(t)} {
			for _, p := range protocols[:2] {
				stack.WantState(t, p.run(c, insertOf(0)), unfenced, name, p.name, "unfenced")
				stack.WantState(t, p.run(c, insertOf(34)+comment(34)), "", name, p.name, "comment")
				c.Must("BEGIN", "SET LOCAL wirefence.token = 'orders=34'")
				stack.WantState(t, p.run(c, insertOf(34)), "", name, p.name, "SET LOCAL")
				c.Must("COMMIT")
			}
		}
	}
	w.wantRowsOf(t, 0, 2*2)
	w.wantRowsOf(t, 34, 2*2*2*2)
}

// Another client has left a stale setting on the one server connection, so WF001 means that the
// proxy judged by it. The proxy refuses ways to set the variable beyond the transaction, and
// they leave nothing behind.
func TestBehindThePoolerOnlyTheTransactionsOwnFenceCounts(t *testing.T) {
	const current, stale = "wirefence.token = 'orders=34'", "wirefence.token = 'orders=33'"
	write := insertOf(34)
	for name, steps := range map[string][][2]string{
		"a setting":                      {{"SET " + current, "WF006"}, {write, ""}},
		"a setting in a block":           {{"BEGIN", ""}, {"SET " + current, "WF006"}, {"ROLLBACK", ""}, {write, ""}},
		"a setting among others":         {{"SET application_name = 'a'; SET " + current + "; COMMIT", "WF006"}, {write, ""}},
		"set behind a failure":           {{"BEGIN", ""}, {"SELECT 1/0", "22012"}, {"ROLLBACK; SET " + stale, "WF006"}, {"ROLLBACK", ""}, {write, ""}},
		"a local setting is committed":   {{"BEGIN", ""}, {"SET LOCAL " + current, ""}, {write, ""}, {"COMMIT", ""}, {write, ""}},
		"a stale one":                    {{"BEGIN", ""}, {"SET LOCAL " + stale, ""}, {write, "WF001"}, {"ROLLBACK", ""}, {write, ""}},
		"a stale one is read under":      {{"BEGIN", ""}, {"SET LOCAL " + stale, ""}, {"SELECT 1", "WF001"}, {"COMMIT", ""}, {"SELECT 1", ""}},
		"a savepoint behind the setting": {{"BEGIN", ""}, {"SET LOCAL " + current, ""}, {"SAVEPOINT s", ""}, {"SELECT 1/0", "22012"}, {"ROLLBACK TO s", ""}, {write, ""}, {"COMMIT", ""}},
		"a savepoint is released":        {{"BEGIN", ""}, {"SAVEPOINT s", ""}, {"SET LOCAL " + stale, ""}, {"RELEASE s", ""}, {write, "WF001"}},
		"a stale one behind a failure":   {{"BEGIN", ""}, {"SET LOCAL " + current, ""}, {"SAVEPOINT s", ""}, {"SET LOCAL " + stale, ""}, {"ROLLBACK TO s", ""}, {write, ""}, {"COMMIT", ""}},
		"in one message":                 {{"SET LOCAL " + stale + "; " + write, "WF001"}, {"SET LOCAL " + current + "; " + write, ""}, {write, ""}},
		"all taken back":                 {{"RESET ALL", ""}, {write, ""}},
		"discarded":                      {{"DISCARD ALL", ""}, {write, ""}},
		"by set_config in a query":       {{"SELECT set_config('wirefence.token', v, false) FROM (VALUES ('orders=34')) x(v)", "WF006"}, {write, ""}},
		"of another variable in a query": {{"SELECT set_config('app.who', v, false) FROM (VALUES ('a')) x(v)", ""}, {write, ""}},
		"by a prepared statement":        {{"PREPARE p AS SELECT set_config('wirefence.token', 'orders=34', false)", "WF006"}, {write, ""}},
		"as an escaped literal":          {{`SET wirefence.token = E'orders=34'`, "WF006"}, {write, ""}},
		"only mentioned":                 {{"SHOW datestyle", ""}, {"SELECT current_setting('wirefence.token', true)", ""}, {"COMMENT ON TABLE jobs IS 'see wirefence'", ""}, {"SET application_name = E'a'", ""}, {write, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := poolerBehind(t, one, proxy.Options{})
			for _, p := range protocols[:2] {
				w.leave(t, "orders=33")
				c := w.connect(t)
				for _, step := range steps {
					if strings.Contains(step[0], "; ") {
						stack.WantState(t, c.Simple(step[0]), step[1], p.name, step[0])
						continue
					}
					stack.WantState(t, p.run(c, step[0]), step[1], p.name, step[0])
				}
				hangUp(c)
			}
		})
	}
}

// A fence that another client has left on the server connection does not count where one is
// required, not even behind a COMMIT in the same text.
func TestBehindThePoolerAForeignFenceIsNotMissed(t *testing.T) {
	const local = "BEGIN; SET LOCAL wirefence.token = 'orders=34'; "
	write := insertOf(0)
	for text, want := range map[string]string{
		local + "COMMIT; " + write:                        "WF002",
		local + "SELECT 1; COMMIT; " + write:              "WF002",
		local + "ROLLBACK; " + write:                      "WF002",
		local + "COMMIT AND CHAIN; " + write + "; COMMIT": "WF002",
		local + "COMMIT; BEGIN; " + write + "; COMMIT":    "WF002",
		local + insertOf(34) + "; COMMIT":                 "",
		write:                                             "WF002",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			w := poolerBehind(t, one, proxy.Options{UnfencedWrites: proxy.Reject})
			for _, foreign := range []string{"orders=34", "madeup=1"} {
				w.leave(t, foreign)
				c := w.connect(t)
				stack.WantState(t, c.Simple(text), want, foreign)
				if c.TxStatus() != 'I' {
					c.Must("ROLLBACK")
				}
				batch := c.Batch(pipelined(strings.Split(text, "; ")...)...)
				stack.WantState(t, batch, want, "as a pipeline", foreign)
				hangUp(c)
			}
			w.wantRowsOf(t, 0, 0)
		})
	}
}

// The client sends everything before the first answer.
func TestBehindThePoolerAPipeline(t *testing.T) {
	const current, stale = "wirefence.token = 'orders=34'", "wirefence.token = 'orders=33'"
	for name, steps := range map[string][][2]string{
		"a setting":               {{"SET " + stale, "WF006"}, {insertOf(0), ""}},
		"a local setting":         {{"BEGIN", ""}, {"SET LOCAL " + current, ""}, {insertOf(34), ""}, {"COMMIT", ""}},
		"a stale local setting":   {{"BEGIN", ""}, {"SET LOCAL " + stale, ""}, {insertOf(33), "WF001"}, {"ROLLBACK", ""}},
		"a setting in a block":    {{"BEGIN", ""}, {"SET " + stale, "WF006"}, {insertOf(33), "25P02"}, {"COMMIT", ""}, {insertOf(0), ""}},
		"a comment and a setting": {{insertOf(34) + comment(34), ""}, {insertOf(33) + comment(33), "WF001"}, {"SET " + current, "WF006"}, {insertOf(0), ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := poolerBehind(t, one, proxy.Options{})
			for _, extended := range []bool{false, true} {
				w.leave(t, "orders=35") // which was never granted
				c := w.connect(t)
				var all []pgproto3.FrontendMessage
				for _, step := range steps {
					if extended {
						all = append(all, &pgproto3.Parse{Query: step[0]}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})
					} else {
						all = append(all, &pgproto3.Query{String: step[0]})
					}
				}
				c.Send(all...)
				for _, step := range steps {
					stack.WantState(t, stack.Err(c.Ready(1)), step[1], step[0], "extended:", extended)
				}
				_ = c.Conn.Close() // what is open ends with it
			}
			w.wantRowsOf(t, 33, 0)
		})
	}
}

// The proxy cannot send this batch in one piece, because its VACUUM waits for the query before
// it. Another client waits for the server connection, and must not get it in the middle of the
// batch.
func TestBehindThePoolerABatchIsSentToOneServerConnection(t *testing.T) {
	cfg := servers.PgBouncerConfig{PoolMode: "transaction", PoolSize: 1, Settings: map[string]string{"admin_users": "postgres"}}
	w := poolerBehind(t, cfg, proxy.Options{})
	c, other := w.connect(t), w.connect(t)
	console := stack.Login(t, pgbouncer(t, w.Addr(), cfg), "pgbouncer")
	w.Exec(t, "SELECT pg_advisory_lock(8)")
	c.Send(&pgproto3.Query{String: "SELECT pg_advisory_xact_lock(8)"},
		&pgproto3.Parse{Query: insertOf(34) + comment(34)}, &pgproto3.Bind{}, &pgproto3.Execute{},
		&pgproto3.Parse{Query: "VACUUM jobs" + comment(34)}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})
	w.Becomes(t, "1", "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 8 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	other.Send(&pgproto3.Query{String: "SELECT 'another client'"})
	stack.Eventually(t, "the other client waits for a server connection", func() bool {
		return waitsInPool(console, w.Name)
	})
	w.Exec(t, "SELECT pg_advisory_unlock(8)")
	if got := stack.Types(c.Ready(1)); got != "TDCZ" {
		t.Errorf("the query ahead of the batch gets %s", got)
	}
	answers := c.Ready(1)
	if got := stack.Types(answers); got != "12C12EZ" {
		t.Errorf("the batch gets %s", got)
	}
	stack.WantState(t, stack.Err(answers), "WF006", "a fenced VACUUM in a batch")
	if got := stack.Types(other.Ready(1)); got != "TDCZ" {
		t.Errorf("the other client gets %s", got)
	}
	w.wantRowsOf(t, 34, 0)
}

// waitsInPool reports whether a client waits for a server connection to a database, as
// PgBouncer's console says.
func waitsInPool(console *stack.Client, database string) bool {
	console.T.Helper()
	pools, err := console.Query("SHOW POOLS")
	if err != nil {
		console.T.Fatal(err)
	}
	for _, m := range pools {
		if m.Type != 'D' {
			continue
		}
		if row := m.Backend().(*pgproto3.DataRow).Values; string(row[0]) == database && string(row[3]) != "0" { // cl_waiting
			return true
		}
	}
	return false
}
