package fencingtest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/proxy"
)

// attempt is a way to get past the fence. Token 34 is sealed; each row comes to
// carry 33, and whatever it does to jobs is a stale write: a look past the proxy
// must find none. What the table doesn't try stands in bypasses (setters and
// their hiding places), in TestMessagesSentAheadPassNothingUnchecked,
// TestSettingsDontChangeTheVerdict, TestReadOnlySavepoint and
// TestSavepointsLoseTheirCheck, in TestLargeStatements, TestUnfenceable and
// TestCommitInsideAProcedure, in wiretest's TestHostileSearchPath, and in the
// tests of poolertest.
type attempt struct {
	name string
	want string // the SQLSTATEs of which one must come, "" for none
	run  func(c *client, db *database) error
}

const (
	behindStale = " /*wirefence.token='" + stale + "'*/"
	behindGood  = " /*wirefence.token='orders=34'*/"
)

// attemptObjects are what the attempts have at hand, made past the proxy.
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

// raw sends messages with a Sync behind them, and returns the first error.
func raw(c *client, messages ...pgproto3.FrontendMessage) error {
	return firstError(c.exchange(1, append(messages, &pgproto3.Sync{})...))
}

// Messages that a client of one line can write.
func parseOf(name, sql string) *pgproto3.Parse { return &pgproto3.Parse{Name: name, Query: sql} }
func bindOf(portal, name string) *pgproto3.Bind {
	return &pgproto3.Bind{DestinationPortal: portal, PreparedStatement: name}
}
func executeOf(portal string) *pgproto3.Execute { return &pgproto3.Execute{Portal: portal} }
func closeOf(kind byte, name string) *pgproto3.Close {
	return &pgproto3.Close{ObjectType: kind, Name: name}
}

// zombie makes the session carry the stale token.
func (c *client) zombie() { c.t.Helper(); c.must("set wirefence.token = '" + stale + "'") }

// texts is an attempt of simple queries, the last of which is refused.
func texts(all ...string) func(*client, *database) error {
	return func(c *client, _ *database) error {
		c.must(all[:len(all)-1]...)
		return c.simple(all[len(all)-1])
	}
}

// stales is texts in a session that carries the stale token by now.
func stales(all ...string) func(*client, *database) error {
	return texts(append([]string{"set wirefence.token = '" + stale + "'"}, all...)...)
}

func TestAttempts(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, db *database) {
		db.seal(t, "orders", 34)
		db.exec(t, attemptObjects)
		tryAll(t, db, false)
	})
}

// tryAll makes all attempts. Where the proxy refuses more than a stale fence,
// nothing but what was written counts.
func tryAll(t *testing.T, db *database, refusesMore bool) {
	t.Helper()
	for _, a := range slices.Concat(attemptsByMessages, attemptsByNames, attemptsByText, attemptsBySQL) {
		t.Run(a.name, func(t *testing.T) {
			c := db.connect(t)
			c.refusable = refusesMore
			err := a.run(c, db)
			if got := code(err); !refusesMore && !slices.Contains(strings.Split(a.want, " "), got) {
				t.Errorf("got %q, want %q (%v)", got, a.want, err)
			}
			_ = c.simple("commit")
			_ = c.Close(context.Background())
			db.wantRows(t, 0)
			db.exec(t, "truncate jobs")
		})
	}
}

var attemptsByMessages = []attempt{
	{"several statements behind a harmless one", "WF001", stales("select 1; select 2; " + insert)},
	{"several statements with a COMMIT in between", "WF001", stales("begin; select 1; commit; " + insert)},
	{"transaction chain in one message", "WF001", texts("begin; set local wirefence.token = 'orders=34'; insert into cell values (50, 0); rollback and chain; set local wirefence.token = '" + stale + "'; " + insert)},
	{"pipeline behind a chain", "WF001", func(c *client, _ *database) error {
		return firstError(c.exchange(1, pipelined("begin", "set local wirefence.token = 'orders=34'", "insert into cell values (51, 0)", "rollback and chain", "set local wirefence.token = '"+stale+"'", insert, "")...))
	}},
	{"COPY", "WF001", func(c *client, _ *database) error {
		c.zombie()
		return c.copySimple("copy jobs from stdin", "33\tx")
	}},
	{"COPY in the extended protocol", "WF001", func(c *client, _ *database) error {
		return c.copyIn("", "copy jobs from stdin"+behindStale, "33\tx")
	}},
	{"COPY ahead of its refusal", "WF001", func(c *client, _ *database) error {
		c.zombie()
		return firstError(c.exchange(1, &pgproto3.Query{String: "copy jobs from stdin"}, &pgproto3.CopyData{Data: []byte("33\tx\n")}, &pgproto3.CopyDone{}))
	}},
	{"FunctionCall", "WF001", func(c *client, db *database) error {
		c.zombie()
		return firstError(c.exchange(1, db.call(c.t.(*testing.T), "writes(int)", "1")))
	}},
	{"FunctionCall behind a SET of its batch", "WF001 XX000", func(c *client, db *database) error {
		messages := append(batch("set wirefence.token = '"+stale+"'"), db.call(c.t.(*testing.T), "writes(int)", "1"))
		return firstError(c.exchange(1, messages...))
	}},
	{"statement prepared before the fence", "WF001", func(c *client, _ *database) error {
		c.exchange(1, parseOf("w", insert), &pgproto3.Sync{})
		c.zombie()
		return raw(c, bindOf("", "w"), executeOf(""))
	}},
	{"PREPARE before the fence", "WF001", texts("prepare w as "+insert, "set wirefence.token = '"+stale+"'", "execute w")},
	{"portal bound before the fence", "WF001", func(c *client, _ *database) error {
		c.must("begin")
		c.exchange(1, parseOf("w", insert), bindOf("p", "w"), &pgproto3.Sync{})
		c.must("set local wirefence.token = '" + stale + "'")
		return raw(c, executeOf("p"))
	}},
	{"portal bound before the fence, in one batch", "WF001", func(c *client, _ *database) error {
		return firstError(c.exchange(1, slices.Concat([]pgproto3.FrontendMessage{parseOf("w", insert), bindOf("p", "w")},
			batch("set wirefence.token = '"+stale+"'"), []pgproto3.FrontendMessage{executeOf("p"), &pgproto3.Sync{}})...))
	}},
	{"portal suspended before the fence", "WF001", func(c *client, _ *database) error {
		c.must("begin")
		c.exchange(1, parseOf("s", "select case when a > 1 then writes(a) end from generate_series(1, 3) a"), bindOf("p", "s"), &pgproto3.Execute{Portal: "p", MaxRows: 1}, &pgproto3.Sync{})
		c.must("set local wirefence.token = '" + stale + "'")
		return raw(c, &pgproto3.Execute{Portal: "p", MaxRows: 1})
	}},
	{"portal with a comment, behind a DECLARE of another", "WF001", func(c *client, _ *database) error {
		c.must("begin")
		c.exchange(1, parseOf("w", insert+behindStale), bindOf("p", "w"), &pgproto3.Sync{})
		c.must("declare other cursor for select 1", "close other")
		return raw(c, executeOf("p"))
	}},
	{"portal with a comment, behind CLOSE ALL", "WF001 WF006 34000", func(c *client, _ *database) error {
		c.must("begin")
		c.exchange(1, parseOf("w", insert+behindStale), bindOf("p", "w"), &pgproto3.Sync{})
		c.must("close all")
		return raw(c, executeOf("p"))
	}},
	{"portal that SQL replaces in its own batch", "WF001", func(c *client, _ *database) error {
		c.must("begin")
		return firstError(c.exchange(1, slices.Concat([]pgproto3.FrontendMessage{parseOf("r", "select 1"), bindOf("p", "r")},
			batch("close p"), batch("declare p cursor for select writes(1)"), batch("set local wirefence.token = '"+stale+"'"),
			[]pgproto3.FrontendMessage{executeOf("p"), &pgproto3.Sync{}})...))
	}},
	{"Flush between Bind and Execute", "WF001", func(c *client, _ *database) error {
		c.zombie()
		c.send(parseOf("", insert), &pgproto3.Flush{}, bindOf("", ""), &pgproto3.Flush{})
		c.receive("BindComplete")
		return raw(c, executeOf(""))
	}},
	{"Flush behind every message of a SET and a write", "WF001", func(c *client, _ *database) error {
		var all []pgproto3.FrontendMessage
		for _, m := range slices.Concat(batch("set wirefence.token = '"+stale+"'"), batch(insert)) {
			all = append(all, m, &pgproto3.Flush{})
		}
		return raw(c, all...)
	}},
	{"unnamed statement behind a DEALLOCATE that hides its name", "WF001", func(c *client, _ *database) error {
		c.must("prepare x as select 1")
		c.exchange(1, parseOf("d", `deallocate U&"\0078"`), parseOf("", insert+behindStale), &pgproto3.Sync{})
		c.exchange(1, bindOf("q", "d"), executeOf("q"), &pgproto3.Sync{})
		return raw(c, bindOf("", ""), executeOf(""))
	}},
	{"cancel of a check that waits", "57014", cancelWaitingCheck((*client).simple)},
	{"cancel of an extended check that waits", "57014", cancelWaitingCheck((*client).extended)},
	{"timeout of a check that waits", "55P03", func(c *client, db *database) error {
		defer db.holdLock(c.t.(*testing.T))()
		c.must("set wirefence.token = 'orders=34'", "set lock_timeout = '50ms'")
		return c.simple(insert)
	}},
	{"NUL in a Query", "08P01", func(c *client, _ *database) error { c.zombie(); return c.simple("select 1;\x00" + insert) }},
	{"NUL in a Query before the comment", "08P01", texts(insert + "\x00" + behindStale)},
	{"NUL in a Parse", "08P01 26000 34000", func(c *client, _ *database) error {
		c.zombie()
		return raw(c, parseOf("a\x00b", "x\x00"+insert), bindOf("", "a"), executeOf(""))
	}},
	{"NUL in the name of a Bind", "08P01 26000", func(c *client, _ *database) error {
		c.zombie()
		return raw(c, parseOf("w", insert), bindOf("p\x00q", "w\x00x"), executeOf("p"))
	}},
	{"NUL in the name of an Execute", "08P01 WF001", func(c *client, _ *database) error {
		c.zombie()
		return raw(c, parseOf("w", insert), bindOf("p", "w"), executeOf("p\x00q"))
	}},
	{"NUL in the name of a Close", "08P01", func(c *client, _ *database) error {
		c.zombie()
		return raw(c, parseOf("w", insert), closeOf('S', "w\x00x"), bindOf("", "w"), executeOf(""))
	}},
}

// holdLock holds the resource's lock against every check until the returned
// function is called.
func (db *database) holdLock(t *testing.T) (release func()) {
	t.Helper()
	db.exec(t, "begin")
	db.exec(t, "select wirefence.seal('orders', 35, 'worker-c')")
	return func() { db.exec(t, "rollback") }
}

func cancelWaitingCheck(run func(*client, string) error) func(*client, *database) error {
	return func(c *client, db *database) error {
		t := c.t.(*testing.T)
		c.must("set wirefence.token = 'orders=34'")
		release := db.holdLock(t)
		defer release()
		over := make(chan error, 1)
		go func() { over <- run(c, insert) }()
		watch := db.direct(t, db.name)
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
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.CancelRequest(ctx); err != nil {
			t.Fatal(err)
		}
		return <-over
	}
}

// Without any fence, a policy that wants one isn't to be got round either.
func TestAttemptsWithoutAnyFence(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, shared *database) {
		shared.seal(t, "orders", 34)
		shared.exec(t, attemptObjects)
		db := *shared
		db.proxy = shared.proxyWith(t, proxy.Options{UnfencedWrites: proxy.Reject})
		for _, a := range attemptsWithoutFence {
			t.Run(a.name, func(t *testing.T) {
				c := db.connect(t)
				wantCode(t, a.run(c, &db), a.want, a.name)
				_ = c.simple("commit")
				_ = c.Close(context.Background())
				db.wantRows(t, 0)
				db.exec(t, "truncate jobs")
			})
		}
	})
}
