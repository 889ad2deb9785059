package fencingtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// refusesUnfenced tries the writers without a fence.
func (w *world) refusesUnfenced(t *testing.T, c *client, p protocol, want string) {
	t.Helper()
	for _, wr := range writers {
		if wr.simple || wr.block || wr.run != nil || wr.before != nil || wr.since > w.Major || wr.until > w.Major {
			continue
		}
		before := stack.Value[string](t, w.DB, wr.effect)
		stack.WantState(t, p.run(c, strings.ReplaceAll(wr.sql, "%d", "0")), want, wr.name, p.name)
		if after := stack.Value[string](t, w.DB, wr.effect); after != before {
			t.Errorf("%s, %s: %s became %s", wr.name, p.name, before, after)
		}
	}
}

func TestUnfencedWritesAreRejected(t *testing.T) {
	onBoth(t, everyVersion, func(t *testing.T, w *world) {
		w.foreign(t)
		standby := w.own(t, proxy.Options{Lease: newLease(""), Hold: w.period()})
		w = w.own(t, proxy.Options{UnfencedWrites: proxy.Reject, Hold: w.period()})
		c, standing := w.begins(t), standby.begins(t)
		for _, p := range protocols {
			standby.refusesUnfenced(t, standing, p, "WF007")
			w.refusesUnfenced(t, c, p, "WF002")
			for _, sql := range append(reads, free...) {
				stack.WantState(t, p.run(c, sql), "", p.name, sql)
			}
			stack.WantState(t, p.run(c, "insert into jobs values (34) /*wirefence.token='orders=34'*/"), "", p.name)
			c.Must("set wirefence.token = 'orders=34'")
			stack.WantState(t, p.run(c, "insert into jobs values (34)"), "", p.name)
			c.Must("set wirefence.token = ''")
			stack.WantState(t, p.run(c, insert), "WF002", p.name)
			c.Must("reset wirefence.token")
			stack.WantState(t, p.run(c, insert), "WF002", p.name)
			c.Must("begin read only") // the client's own affair
			stack.WantState(t, p.run(c, insert), "25006", p.name)
			c.Must("rollback", "begin", "set local wirefence.token = 'orders=34'", "insert into jobs values (34)", "set local wirefence.token = ''")
			stack.WantState(t, p.run(c, insert), "WF002", p.name)
			c.Must("rollback")
		}
		stack.WantState(t, c.CopyIn("copy jobs from stdin", "33\tx"), "WF002")
		stack.WantState(t, c.Call(w.function(t, "writes(int)"), "1"), "WF002")
		w.wantRows(t, 6)
		if n := w.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": "WF002", "shadow": "false"}); n < 50 {
			t.Errorf("%d refusals were counted", n)
		}
	})
}

// Off lets all pass, too, and tells nothing.
func TestShadowLetsAllPassAndTells(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{Mode: proxy.Shadow})
		refusals := func(state string) int {
			return w.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": state, "shadow": "true"})
		}
		for _, p := range protocols {
			for fence, state := range map[string]string{"orders=33": "WF001", "orders": "WF004", "orders=99": "WF003"} {
				c := w.connect(t)
				before := refusals(state)
				stack.WantState(t, p.run(c, "insert into jobs values (33) /*wirefence.token='"+fence+"'*/"), "", p.name, fence)
				c.Must("set wirefence.token = '" + fence + "'")
				stack.WantState(t, p.run(c, "insert into jobs values (33)"), "", p.name, fence)
				stack.WantState(t, p.run(c, "call committing()"), "", p.name, fence)
				stack.WantState(t, p.run(c, "create index concurrently on jobs (token)"), "", p.name, fence)
				if n := refusals(state) - before; n < 2 {
					t.Errorf("%s, %s: %d refusals were reported", p.name, fence, n)
				}
			}
		}
		w.wantRows(t, 3*3*4)
		if n := w.metric(t, "wirefence_refusals_total", map[string]string{"shadow": "false"}); n != 0 {
			t.Errorf("%d refusals count as real", n)
		}
		off := w.own(t, proxy.Options{Mode: proxy.Off, UnfencedWrites: proxy.Reject})
		c := off.connect(t, "wirefence.token", stale)
		for _, p := range protocols {
			stack.WantState(t, p.run(c, insert+" /*wirefence.token='x'*/"), "", p.name)
		}
		off.wantRows(t, 3*3*4+3)
		if n := off.checks(t); n != 0 {
			t.Errorf("%d checks while the proxy is off", n)
		}
	})
}

func TestLargeStatements(t *testing.T) {
	stack.NeedsMore(t, "2 s of CPU")
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{MaxStatement: 4 << 10})
		w.Exec(t, "create table large (a text)")
		c, free := w.connect(t), w.connect(t)
		for _, size := range []int{3 << 10, 4 << 10, 5 << 10, 100 << 10, 3 << 20} {
			text := strings.Repeat("x", size)
			const comment = "/*wirefence.token='orders=34'*/"
			for _, p := range protocols {
				stack.WantState(t, p.run(free, "insert into large values ('"+text+"')"), "", p.name, size)
				if got := w.count(t, "select length(a) from large"); got != size {
					t.Errorf("%d bytes arrived of %d", got, size)
				}
				w.Exec(t, "truncate large")
				want := ""
				if size >= 4<<10 {
					want = "WF006"
				}
				for _, sql := range []string{
					comment + "insert into large values ('" + text + "')", "insert into large values ('" + text + "')" + comment,
					"insert into large values ('" + text + "' " + comment + "'" + text + "')",
				} {
					if strings.Count(sql, text) == 2 {
						sql = strings.Replace(sql, "' "+comment, "' "+comment+" || ", 1)
						if size < 4<<10 {
							continue
						}
					}
					c := w.connect(t) // it may carry nothing: then its connection ends
					stack.WantState(t, p.run(c, sql), want, p.name, size)
					c.Close()
				}
				w.Exec(t, "truncate large")
			}
		}
		// Words in data mean nothing, whichever came before.
		for _, word := range []string{"names", "reset", "execute", "discard", "dataset_config", "pg_settings", "wirefence", "wirefence.token='x'", "-- wirefence"} {
			for _, p := range protocols {
				stack.WantState(t, p.run(free, "insert into large values ('"+strings.Repeat(strings.ReplaceAll(word, "'", "''")+" ", 2000)+"')"), "", p.name, word)
			}
		}
		w.Exec(t, "truncate large")
		c.Must("set wirefence.token = 'orders=34'")
		for _, p := range protocols {
			stack.WantState(t, p.run(c, "insert into large values ('"+strings.Repeat("x", 5<<10)+"')"), "WF006", p.name)
			stack.WantState(t, p.run(c, "insert into large values ('x')"), "", p.name)
		}
		if n := w.count(t, "select count(*) from large where length(a) > 1"); n != 0 {
			t.Errorf("%d large rows", n)
		}
	})
}

// A resource in shadow mode lets its statements pass. The proxy counts them, and the client
// sees nothing of it.
func TestAResourceInShadowMode(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		w.Seal(t, "lines", 34)
		w.Exec(t, "select wirefence.set_resource('orders', 'a trial', mode => 'shadow')")
		told := func(state string) int {
			return w.metric(t, "wirefence_refusals_total", map[string]string{"sqlstate": state, "shadow": "true"})
		}
		for _, p := range protocols {
			for fence, state := range map[string]string{stale: "WF001", "orders=99": "WF003"} {
				c := w.connect(t)
				c.Must("set wirefence.token = '" + fence + "'")
				before := told(state)
				c.Must("begin", insert, insert, "commit", insert)
				stack.WantState(t, c.Call(w.function(t, "writes(int)"), "1"), "")
				stack.WantState(t, c.Simple("call proc()"), "")
				if n := told(state) - before; n != 5 {
					t.Errorf("%s: %d refusals were reported", fence, n)
				}
				stack.WantState(t, p.run(c, insert), "", p.name, fence)
			}
			c := w.connect(t)
			c.Must("set wirefence.token = 'orders=33,lines=33'")
			stack.WantState(t, p.run(c, insert), "WF001", p.name)
		}
		w.wantRows(t, 3*2*6)
		if n := w.metric(t, "wirefence_refusals_total", map[string]string{"shadow": "false"}); n != len(protocols) {
			t.Errorf("%d refusals count as real", n)
		}
		// The answers are PostgreSQL's own.
		c := w.connect(t)
		c.Must("set wirefence.token = '" + stale + "'")
		all, err := c.Query("insert into jobs values (1) returning token; select 2")
		if err != nil || stack.Types(all) != "TDCTDCZ" || !slices.Equal(stack.Column(all), []string{"1", "2"}) {
			t.Errorf("%v, %v", all, err)
		}
	})
}

// PostgreSQL tells a session that a takeover ends of an administrator's command. If the session
// had a fence, the proxy adds an explanation, and logs it.
func TestAnEndedTransactionIsExplained(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		var log stack.Log
		w = w.own(t, proxy.Options{Logger: log.Logger()})
		const ofOrders = `under a fence of "orders", and`
		for n, c := range []struct {
			name      string
			options   string
			sql       []string
			explained string // "" where it isn't
		}{
			{"startup options", "-c wirefence.token=orders=34", []string{"begin", insert}, ofOrders},
			{"comment", "", []string{"begin", insert + "/*wirefence.token='orders=34'*/"}, ofOrders},
			{"two in a comment", "", []string{"begin", insert + "/*wirefence.token='orders=34,we%22ird=7'*/"}, `under a fence of "orders", "we""ird", and`},
			{"variable", "", []string{"set wirefence.token = 'orders=34'", "begin", insert}, "under a fence, and"},
			{"variable after options", "-c wirefence.token=other=34", []string{"set wirefence.token = 'orders=34'", "begin", insert}, "under a fence, and"},
			{"no fence", "", []string{"begin", insert}, ""},
			{"a fence before", "", []string{insert + "/*wirefence.token='orders=34'*/", "select pg_sleep(0.2)", "select 1", "begin", insert}, ""},
		} {
			w.unseal(t)
			w.Seal(t, "orders", 34)
			client := w.connect(t, "user", "app", "options", c.options, "application_name", fmt.Sprint("client ", n))
			client.Must(c.sql...)
			pid, _ := client.Key()
			if c.explained != "" {
				w.Exec(t, "select wirefence.revoke('orders')")
			} else {
				stack.MustExec(t, w.Admin, "select pg_terminate_backend($1)", int32(pid))
			}
			err := client.End()
			stack.WantState(t, err, "57P01", c.name)
			end := (*pgconn.PgError)(nil)
			if !errors.As(err, &end) || end.Message != "terminating connection due to administrator command" || end.Severity != "FATAL" {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			line := fmt.Sprintf("sqlstate=57P01 reason=%q pid=%d", end.Message, pid)
			if c.explained == "" {
				if end.Detail != "" || end.Hint != "" || strings.Contains(log.String(), line) {
					t.Errorf("%s: explained by %q, %q", c.name, end.Detail, end.Hint)
				}
				continue
			}
			if !strings.Contains(end.Detail, c.explained) || !strings.Contains(end.Hint, "wirefence history") {
				t.Errorf("%s: explained by %q, %q", c.name, end.Detail, end.Hint)
			}
			if n == 0 { // later ones come within a second of it
				log.Await(t, line+` resources=[orders]`)
			}
		}
	})
}
