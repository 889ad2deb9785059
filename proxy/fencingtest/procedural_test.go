package fencingtest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Commands that cannot share a transaction with a check run under a hold.
func TestWhatNoCheckCanCover(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		w.Exec(t, "create table parts (a int) partition by list (a); create table part partition of parts for values in (1)")
		made := w.Name + "_made"
		// Each is undone by a later one.
		commands := []string{
			"create index concurrently i on jobs (token)", "reindex index concurrently i", "drop index concurrently i",
			"create database " + made, "drop database " + made, "alter table parts detach partition part concurrently",
			"call committing()", "do $$ begin insert into jobs values (1); commit; end $$", "vacuum cell", "vacuum (full, analyze) cell", "reindex table concurrently cell", "reindex table cell", "cluster",
		}
		for _, p := range protocols[:2] {
			for _, test := range []struct{ variable, comment, want string }{
				{stale, "", "WF001"}, {"", stale, "WF001"}, {"orders=34", "", ""}, {"", "orders=34", ""}, {"", "", ""},
			} {
				c, behind, want := w.connect(t, "wirefence.token", test.variable), "", test.want
				if test.comment != "" {
					behind = " /*wirefence.token='" + test.comment + "'*/"
				}
				if !w.busy && want == "" && test.variable+test.comment != "" {
					want = "WF006"
				}
				for _, sql := range commands {
					stack.WantState(t, p.run(c, sql+behind), want, p.name, sql, test)
				}
				if want == "" {
					w.Exec(t, "alter table parts attach partition part for values in (1)")
				}
				stack.WantState(t, c.Simple("select 1"+behind), test.want, "the connection lives on", test)
				before := w.rows(t)
				for _, sql := range []string{"create index concurrently i on jobs (token)", "vacuum cell"} {
					if got := stack.State(c.Simple("insert into jobs values (1); " + sql + behind)); got == "" {
						t.Errorf("%v: %s in a message of several", test, sql)
					}
				}
				w.wantRows(t, before)
				c.Close()
			}
		}
	})
}

func TestTwoPhaseCommit(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		fenced, commented, free := w.connect(t, "wirefence.token", "orders=34"), w.begins(t), w.connect(t)
		for _, p := range protocols[:2] {
			name := "'" + w.Name + p.name + "'"
			for c, behind := range map[*client]string{fenced: "", commented: behindGood} {
				for _, more := range []string{"select 1", "set local wirefence.token = ''"} {
					c.Must("begin", "insert into jobs values (34)"+behind, more)
					stack.WantState(t, p.run(c, "prepare transaction "+name), "WF006", p.name, behind, more)
					endedBlock(c)
				}
			}
			// The batch begins where nobody knows yet that a block is open.
			ahead := slices.Concat([]pgproto3.FrontendMessage{&pgproto3.Query{String: "begin"}}, pipelined("set local wirefence.token = ''", "prepare transaction "+name, ""))
			stack.WantState(t, stack.Err(fenced.Exchange(2, ahead...)), "WF006", "sent ahead")
			endedBlock(fenced)
			free.Must("begin", "insert into jobs values (0)")
			stack.WantState(t, p.run(free, "prepare transaction "+name), "", p.name)
			stack.WantState(t, p.run(fenced, "commit prepared "+name), "WF006", p.name)
			stack.WantState(t, p.run(free, "commit prepared "+name), "", p.name)
			free.Must("begin", "insert into jobs values (0)", "prepare transaction "+name)
			stack.WantState(t, p.run(fenced, "rollback prepared "+name), "WF006", p.name)
			stack.WantState(t, p.run(free, "rollback prepared "+name), "", p.name)
			stack.WantState(t, p.run(fenced, "insert into jobs values (34)"), "", "the connection lives on")
		}
		w.wantRows(t, 4)
		if n := w.count(t, "select count(*) from pg_prepared_xacts where database = current_database()"); n != 0 {
			t.Errorf("%d transactions are prepared", n)
		}
		w.Seal(t, "orders", 35) // nothing keeps it out
	})
}

// endedBlock fails the test unless a refusal has ended the transaction block, as an error of
// PREPARE TRANSACTION does.
func endedBlock(c *client) {
	c.T.Helper()
	if c.TxStatus() != 'I' {
		c.T.Errorf("transaction status %c behind a refused PREPARE TRANSACTION", c.TxStatus())
	}
	c.Must("begin", "select 1", "commit")
}

// A replication connection to a database takes SQL too, as simple queries.
func TestReplicationConnectionsWriteNothingUnchecked(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		strict := w.own(t, proxy.Options{UnfencedWrites: proxy.Reject, MaxStatement: 4 << 10})
		large := insert + " -- " + strings.Repeat("x", 5<<10)
		for name, c := range map[string]struct {
			behind   *world
			settings []string
			before   string
			write    string
			want     string
		}{
			"unfenced":         {w, nil, "", "insert into cell values (9, 9)", ""},
			"comment":          {w, nil, "", insert + " /*wirefence.token='orders=33'*/", "WF001"},
			"malformed":        {w, nil, "", insert + " /*wirefence.token='orders'*/", "WF004"},
			"startup":          {w, []string{"wirefence.token", stale}, "", insert, "WF001"},
			"startup options":  {w, []string{"options", "-c wirefence.token=" + stale}, "", insert, "WF001"},
			"SET":              {w, nil, "set wirefence.token = '" + stale + "'", insert, "WF001"},
			"set_config":       {w, nil, "select set_config('wirefence.token', '" + stale + "', false)", insert, "WF001"},
			"policy":           {strict, nil, "", insert, "WF002"},
			"oversize, fenced": {strict, []string{"wirefence.token", stale}, "", large, "WF006"},
			"oversize, policy": {strict, nil, "", large, "WF006"},
		} {
			t.Run(name, func(t *testing.T) {
				r := c.behind.connect(t, append([]string{"replication", "database"}, c.settings...)...)
				r.Must("IDENTIFY_SYSTEM")
				if c.before != "" {
					r.Must(c.before)
				}
				stack.WantState(t, r.Simple(c.write), c.want)
				r.Must("IDENTIFY_SYSTEM")
			})
		}
		w.Exec(t, "alter role postgres in database "+w.Name+" set wirefence.token = '"+stale+"'")
		r := w.connect(t, "replication", "database")
		r.Fails(insert, "WF001")
		w.wantRows(t, 0)
	})
}

// A client that asks for all log messages gets none about the proxy's own queries.
func TestTheProxysMessagesAreNotHeard(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		cfg, err := pgx.ParseConfig(stack.URL(w.proxy, w.Name))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var heard []string
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, n.Message)
		}
		c, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.Background()) }()
		stack.MustExec(t, c, "set log_statement = 'all'")
		stack.MustExec(t, c, "set log_min_duration_statement = 0")
		stack.MustExec(t, c, "set client_min_messages = log")
		stack.MustExec(t, c, "select set_config('wirefence.token', 'orders=34', false)")
		for range 3 { // the first prepares the check
			if _, err := c.Exec(t.Context(), "insert into jobs values ($1)", 34); err != nil {
				t.Fatal(err)
			}
			stack.MustExec(t, c, "do $$ begin raise notice 'heard'; end $$")
		}
		mu.Lock()
		defer mu.Unlock()
		own := 0
		for _, message := range heard {
			if strings.Contains(message, "_wirefence") || strings.Contains(message, "pg_catalog.current_setting('wirefence.token'") {
				t.Errorf("the client hears %q", message)
			}
			if message == "heard" {
				own++
			}
		}
		if own != 3 {
			t.Errorf("the client hears its own notices %d times of %q", own, heard)
		}
	})
}
