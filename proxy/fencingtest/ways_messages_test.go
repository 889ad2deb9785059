package fencingtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// attempt is a way to get past the fence: a session that comes to carry token 33 writes to
// jobs. Afterwards the table must be empty. A busy session holds a fence of token 34 when the
// attempt begins. The proxy may refuse a statement on the way; a bypass is for those that must
// reach the last one.
type attempt struct {
	name string
	want string // the SQLSTATEs of which one must come, "" for none
	run  func(c *client, w *world) error
}

// attemptObjects are tables and functions for the attempts, made past the proxy.
const attemptObjects = `
	create table log (a int); create table queue (a int);
	create view "window" as select 1 as token, ''::text as note;
	create function log_write() returns trigger language plpgsql as $$ begin insert into jobs values (33, 'by a trigger'); return null; end $$;
	create trigger instead instead of insert on "window" for each row execute function log_write();
	create rule also as on insert to log do also insert into jobs values (33, 'by a rule');
	create constraint trigger late after insert on queue deferrable initially deferred for each row execute function log_write();
	create function opens() returns refcursor language plpgsql as $$ declare c refcursor := 'opened'; begin open c for select writes(1); return c; end $$;
	create function dynamic() returns void language plpgsql as $$ begin execute 'ins' || 'ert into public.jobs values (33)'; end $$;
	create function unconforming() returns void language plpgsql as $$ begin execute 'set standard_conforming_strings = off'; end $$;
	grant all on all tables in schema public to app;`

// zombie makes the session carry the stale token.
func (c *client) zombie() { c.T.Helper(); c.Must("set wirefence.token = '" + stale + "'") }

// texts is an attempt of simple queries. One of them must be refused, at the latest the last.
func texts(all ...string) func(*client, *world) error {
	return func(c *client, _ *world) error {
		c.Must(all[:len(all)-1]...)
		return c.Simple(all[len(all)-1])
	}
}

// stales is texts in a session that carries the stale token.
func stales(all ...string) func(*client, *world) error {
	return texts(append([]string{"set wirefence.token = '" + stale + "'"}, all...)...)
}

func TestAttempts(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, attemptObjects)
		w.tryAll(t, slices.Concat(attemptsByMessages, attemptsAhead, attemptsByNames, attemptsByText, attemptsBySQL))
	})
}

// tryAll makes attempts, each in a session of its own.
func (w *world) tryAll(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			c := w.begins(t)
			c.attempt = true
			err := a.run(c, w)
			if c.refusal != nil {
				err = c.refusal
			}
			if got := stack.State(err); !slices.Contains(strings.Split(a.want, " "), got) {
				t.Errorf("got %q, want %q (%v)", got, a.want, err)
			}
			_ = c.Simple("commit")
			c.Close()
			w.wantRows(t, 0)
			w.Exec(t, "truncate jobs")
		})
	}
}

var attemptsByMessages = []attempt{
	{"several statements behind a harmless one", "WF001", stales("select 1; select 2; " + insert)},
	{"several statements with a COMMIT in between", "WF001", stales("begin; select 1; commit; " + insert)},
	{"a reset that is rolled back behind one that was", "WF001", func(c *client, _ *world) error {
		c.Must("set wirefence.token = '" + stale + "'")
		for range 2 {
			_ = c.Batch(pipelined("reset all", "select 1", "select 1/0")...)
		}
		return c.Simple(insert)
	}},
	{"transaction chain in one message", "WF001", texts("begin; set local wirefence.token = 'orders=34'; insert into cell values (50, 0); rollback and chain; set local wirefence.token = '" + stale + "'; " + insert)},
	{"pipeline behind a chain", "WF001", func(c *client, _ *world) error {
		return stack.Err(c.Exchange(1, pipelined("begin", "set local wirefence.token = 'orders=34'", "insert into cell values (51, 0)", "rollback and chain", "set local wirefence.token = '"+stale+"'", insert, "")...))
	}},
	{"COPY", "WF001", func(c *client, _ *world) error {
		c.zombie()
		return c.CopyIn("copy jobs from stdin", "33\tx")
	}},
	{"COPY in the extended protocol", "WF001", func(c *client, _ *world) error {
		return c.CopyInExtended("", "copy jobs from stdin"+behindStale, "33\tx")
	}},
	{"COPY ahead of its refusal", "WF001", func(c *client, _ *world) error {
		c.zombie()
		return stack.Err(c.Exchange(1, &pgproto3.Query{String: "copy jobs from stdin"}, &pgproto3.CopyData{Data: []byte("33\tx\n")}, &pgproto3.CopyDone{}))
	}},
	{"FunctionCall", "WF001 WF006", func(c *client, w *world) error {
		c.zombie()
		return c.Call(w.function(c.T, "writes(int)"), "1")
	}},
	{"FunctionCall behind a SET of its batch", "WF001 WF006 XX000", func(c *client, w *world) error {
		messages := append(stack.Unnamed("set wirefence.token = '"+stale+"'"), w.call(c.T, "writes(int)", "1"))
		return stack.Err(c.Exchange(1, messages...))
	}},
	{"statement prepared before the fence", "WF001", func(c *client, _ *world) error {
		c.Exchange(1, parseOf("w", insert), &pgproto3.Sync{})
		c.zombie()
		return c.Batch(bindOf("", "w"), executeOf(""))
	}},
	{"PREPARE before the fence", "WF001", texts("prepare w as "+insert, "set wirefence.token = '"+stale+"'", "execute w")},
	{"statement that sets the variable, by EXECUTE of its name", "WF001", func(c *client, _ *world) error {
		c.Exchange(1, parseOf("p", setsStale), &pgproto3.Sync{})
		c.Must("execute p")
		return c.Simple(insert)
	}},
	{"portal bound before the fence", "WF001", func(c *client, _ *world) error {
		c.Must("begin")
		c.Exchange(1, parseOf("w", insert), bindOf("p", "w"), &pgproto3.Sync{})
		c.Must("set local wirefence.token = '" + stale + "'")
		return c.Batch(executeOf("p"))
	}},
	{"portal bound before the fence, in one batch", "WF001", func(c *client, _ *world) error {
		return stack.Err(c.Exchange(1, slices.Concat([]pgproto3.FrontendMessage{parseOf("w", insert), bindOf("p", "w")},
			stack.Unnamed("set wirefence.token = '"+stale+"'"), []pgproto3.FrontendMessage{executeOf("p"), &pgproto3.Sync{}})...))
	}},
	{"portal suspended before the fence", "WF001", func(c *client, _ *world) error {
		c.Must("begin")
		c.Exchange(1, parseOf("s", "select case when a > 1 then writes(a) end from generate_series(1, 3) a"), bindOf("p", "s"), &pgproto3.Execute{Portal: "p", MaxRows: 1}, &pgproto3.Sync{})
		c.Must("set local wirefence.token = '" + stale + "'")
		return c.Batch(&pgproto3.Execute{Portal: "p", MaxRows: 1})
	}},
	{"portal with a comment, behind a DECLARE of another", "WF001", func(c *client, _ *world) error {
		c.Must("begin")
		c.Exchange(1, parseOf("w", insert+behindStale), bindOf("p", "w"), &pgproto3.Sync{})
		c.Must("declare other cursor for select 1", "close other")
		return c.Batch(executeOf("p"))
	}},
	{"portal with a comment, behind CLOSE ALL", "WF001 WF006 34000", func(c *client, _ *world) error {
		c.Must("begin")
		c.Exchange(1, parseOf("w", insert+behindStale), bindOf("p", "w"), &pgproto3.Sync{})
		c.Must("close all")
		return c.Batch(executeOf("p"))
	}},
	{"portal that SQL replaces in its own batch", "WF001", func(c *client, _ *world) error {
		c.Must("begin")
		return stack.Err(c.Exchange(1, slices.Concat([]pgproto3.FrontendMessage{parseOf("r", "select 1"), bindOf("p", "r")},
			stack.Unnamed("close p"), stack.Unnamed("declare p cursor for select writes(1)"), stack.Unnamed("set local wirefence.token = '"+stale+"'"),
			[]pgproto3.FrontendMessage{executeOf("p"), &pgproto3.Sync{}})...))
	}},
	{"Flush between Bind and Execute", "WF001", func(c *client, _ *world) error {
		c.zombie()
		c.Send(parseOf("", insert), &pgproto3.Flush{}, bindOf("", ""), &pgproto3.Flush{})
		c.note(stack.Err(c.Until("2E")))
		return c.Batch(executeOf(""))
	}},
	{"Flush behind every message of a SET and a write", "WF001", func(c *client, _ *world) error {
		var all []pgproto3.FrontendMessage
		for _, m := range slices.Concat(stack.Unnamed("set wirefence.token = '"+stale+"'"), stack.Unnamed(insert)) {
			all = append(all, m, &pgproto3.Flush{})
		}
		return c.Batch(all...)
	}},
	{"cancel of a check that waits", "57014", cancelWaitingCheck(protocols[0].run)},
	{"cancel of an extended check that waits", "57014", cancelWaitingCheck(protocols[1].run)},
	{"timeout of a check that waits", "55P03", func(c *client, w *world) error {
		defer w.holdLock(c.T)()
		c.Must("set wirefence.token = 'orders=34'", "set lock_timeout = '50ms'")
		return c.Simple(insert)
	}},
	{"NUL in a Query", "08P01", func(c *client, _ *world) error { c.zombie(); return c.Simple("select 1;\x00" + insert) }},
	{"NUL in a Query before the comment", "08P01", texts(insert + "\x00" + behindStale)},
	{"NUL in a Parse", "08P01 26000 34000 WF001 WF006", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("a\x00b", "x\x00"+insert), bindOf("", "a"), executeOf(""))
	}},
	{"NUL in the name of a Bind", "08P01 26000 WF001", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("w", insert), bindOf("p\x00q", "w\x00x"), executeOf("p"))
	}},
	{"NUL in the name of an Execute", "08P01 WF001", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("w", insert), bindOf("p", "w"), executeOf("p\x00q"))
	}},
	{"NUL in the name of a Close", "08P01 WF001", func(c *client, _ *world) error {
		c.zombie()
		return c.Batch(parseOf("w", insert), closeOf('S', "w\x00x"), bindOf("", "w"), executeOf(""))
	}},
}

// setsStale comes to carry the stale token.
const setsStale = "select set_config('wirefence.token', '" + stale + "', false)"

// holdLock holds the resource's lock against every check until the returned
// function is called.
func (w *world) holdLock(t testing.TB) (release func()) {
	t.Helper()
	w.Exec(t, "begin")
	w.Exec(t, "select wirefence.seal('orders', 35, 'worker-c')")
	return func() { w.Exec(t, "rollback") }
}

func cancelWaitingCheck(run func(*client, string) error) func(*client, *world) error {
	return func(c *client, w *world) error {
		t := c.T
		c.Must("set wirefence.token = 'orders=34'")
		release := w.holdLock(t)
		defer release()
		over := make(chan error, 1)
		go func() { over <- run(c, insert) }()
		watch := w.Direct(t)
		for waits := false; !waits; {
			if err := watch.QueryRow(t.Context(), "select exists(select from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database()))").Scan(&waits); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-over:
				t.Fatalf("the check did not wait: %v", err)
			default:
			}
		}
		c.Cancel()
		return <-over
	}
}

// The same works no better against a policy that requires a fence.
func TestAttemptsWithoutAnyFence(t *testing.T) {
	onBoth(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, attemptObjects)
		w = w.own(t, proxy.Options{UnfencedWrites: proxy.Reject, Hold: w.period()})
		w.tryAll(t, attemptsWithoutFence)
	})
}
