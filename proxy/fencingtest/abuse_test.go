package fencingtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Clients that are killed within a Terminate leave no backend and no session.
func TestOverlongTerminate(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{})
		for range 20 {
			c := w.connect(t)
			c.Must("BEGIN", "LOCK TABLE jobs IN SHARE MODE")
			c.Write([]byte("X\x00\x00\x03\xe8"))
			_ = c.Conn.Close()
		}
		w.Becomes(t, "0", "SELECT count(*)::text FROM pg_locks WHERE relation = 'jobs'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		stack.Eventually(t, "no session is left", func() bool { return w.metric(t, "wirefence_sessions", nil) == 0 })
	})
}

// A client that sends tiny messages and reads nothing uses little of the proxy's memory.
func TestPipelineOfTinyMessages(t *testing.T) {
	w := newWorld(t, 15)
	conn, err := net.Dial("tcp", w.proxy)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(stack.Startup(pgproto3.ProtocolVersion30, w.Name)); err != nil {
		t.Fatal(err)
	}
	tiny := []byte(strings.Repeat("C\x00\x00\x00\x06S\x00", 10_000))
	before := heap()
	var sent int
	for sent < 64<<20 && err == nil {
		if err = conn.SetWriteDeadline(time.Now().Add(2 * time.Second)); err == nil {
			var n int
			n, err = conn.Write(tiny)
			sent += n
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("behind %d bytes the writer wasn't held back: %v", sent, err)
	}
	if grown := int(heap()) - int(before); grown > 16<<20 {
		t.Errorf("%d bytes of tiny messages take %d bytes of memory", sent, grown)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// SQL can change the settings for literals without naming them. The messages behind it arrive
// before the server reports the change.
func TestLexingSettingsByComputedNames(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		const off = "UPDATE pg_settings SET setting = 'off' WHERE name = 'standard_conform'||'ing_strings'"
		const hidden = `SELECT '\', '; INSERT INTO jobs (token) VALUES (33); --'`
		for _, carried := range []string{"variable", "comment"} {
			sql, set := hidden, "SET wirefence.token = 'orders=33'"
			if carried == "comment" {
				sql, set = hidden+"\n"+behindStale, "SELECT 1"
			}
			messages := []pgproto3.FrontendMessage{&pgproto3.Query{String: off}, &pgproto3.Query{String: set}, &pgproto3.Query{String: sql}}
			for i, m := range messages { // each by itself
				c := w.connect(t)
				c.Send(messages[:i]...)
				c.Ready(i)
				c.Send(m)
				c.Ready(1)
				c.Send(messages[i+1:]...)
				c.Ready(len(messages) - i - 1)
			}
			c := w.connect(t)
			c.Send(messages...) // all at once
			c.Ready(3)
			c = w.connect(t)
			c.Send(append(stack.Unnamed(off), messages[1:]...)...) // behind a batch without a Sync
			c.Ready(2)
			c = w.connect(t)
			c.Must(set)
			c.Send(pipelined(off, sql, "")...)
			c.Ready(1)
		}
		w.wantRows(t, 0)
	})
}

// An advisory lock that any role can take stops a takeover for no longer than
// preempt_after.
func TestAdvisoryLocksOfAnyRole(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.preempt(t, "300 ms")
		for i, lock := range []string{
			`SELECT pg_advisory_lock(hashtextextended('orders' COLLATE "C", 8604534342903230051))`,
			`SELECT pg_advisory_lock_shared(hashtextextended('orders' COLLATE "C", 8604534342903230051))`,
			`SELECT pg_advisory_lock(hashtext('wirefence high orders'), 0)`,
		} {
			c := w.connect(t, "user", "app")
			c.Must("BEGIN", lock)
			began := time.Now()
			w.Seal(t, "orders", int64(40+i))
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s: the seal took %s", lock, took)
			}
		}
	})
}

// No client uses up the tokens of a resource that was never sealed.
func TestTokensAreNotUsedUp(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		c := w.connect(t, "user", "app")
		_ = c.Simple("SELECT wirefence.check('fresh1=9223372036854775807')")
		_ = c.Simple("SELECT wirefence.check('fresh2=1@evil')")
		_ = c.Simple("SELECT wirefence.check('fresh3=4611686018427387903')")
		for _, resource := range []string{"fresh1", "fresh2", "fresh3"} {
			ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
			var token int64
			err := w.Admin.QueryRow(ctx, "SELECT (wirefence.acquire($1, 'a holder', interval '10 s')).token", resource).Scan(&token)
			cancel()
			if err != nil || token < 1 {
				t.Errorf("%s: acquire: token %d, %v", resource, token, err)
			}
		}
	})
}

// Reads write through the CHECK of a domain.
func TestReadsThatWriteByADomain(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w.Exec(t, "CREATE TYPE pair_of AS (n noted)")
		for _, sql := range []string{
			`SELECT jsonb_populate_record(NULL::pair_of, '{"n":33}')`, "SELECT domain_in('33', 'noted'::regtype, -1)",
			"SELECT record_in('(33)', 'pair_of'::regtype, -1)", "SELECT array_in('{33}', 'noted'::regtype, -1)", "SELECT 33::noted", "SELECT '{33}'::noted[]",
		} {
			for _, o := range []struct {
				w     *world
				fence string
				want  string
			}{{w, stale, "WF001"}, {w.own(t, proxy.Options{UnfencedWrites: proxy.Reject}), "", "WF002"}} {
				c := o.w.connect(t, "options", "-c wirefence.token="+o.fence)
				c.Fails(sql, o.want)
				stack.WantState(t, c.Extended(sql), o.want, sql)
				c.Close()
			}
		}
		w.wantRows(t, 0)
	})
}

// The proxy refuses a misspelt fence in a comment.
//
// Evidence: I5
func TestMisspeltFences(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		c := w.connect(t)
		for _, comment := range []string{
			"/*wirefence.token:'orders=33'*/", "/*wirefence . token='orders=33'*/", "/*wirefence-token='orders=33'*/", "/*wirefence.tokn='orders=33'*/",
			"/* outer /*wirefence.token='orders=33'*/ */", "/*wirefence.token='orders'*/", "--wirefence.token=orders=x",
		} {
			err := c.Simple(insert + " " + comment)
			if state := stack.State(err); state != "WF004" && state != "WF001" {
				t.Errorf("%s: %q", comment, state)
			}
		}
		w.wantRows(t, 0)
	})
}

// Two rows with different keys never share a token.
func TestRowTemplatesAreUnambiguous(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.Exec(t, "CREATE TABLE rows (a text NOT NULL, b text NOT NULL)", "SELECT wirefence.protect('public.rows', 'row:{a}:{b}')", "GRANT ALL ON rows TO app")
		w.Seal(t, "row:x:y:z", 5)
		c := w.connect(t, "user", "app", "options", "-c wirefence.token=row:x:y:z=5")
		written := 0
		for _, values := range []string{"('x', 'y:z')", "('x:y', 'z')"} {
			if c.Simple("INSERT INTO rows VALUES "+values) == nil {
				written++
			}
		}
		if n := w.count(t, "SELECT count(*) FROM rows"); n != 1 || written != 1 {
			t.Errorf("one token writes %d rows of two, %d succeeded", n, written)
		}
	})
}

// A client gets the error of each function call, and a Terminate does not overtake the call
// before it.
func TestFunctionCalls(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		writes := w.function(t, "writes(int)")
		c := w.fenced(t, "orders=33")
		c.Must("BEGIN")
		stack.WantState(t, c.Call(writes, "33"), "WF006")
		stack.WantState(t, c.Call(writes, "33"), "25P02", "in the failed block")
		c.Must("ROLLBACK", "RESET wirefence.token", "SET wirefence.token = ''")
		stack.WantState(t, c.Call(writes, "no number"), "22P02", "a call that fails")

		c = w.fenced(t, "orders=34")
		c.Send(&pgproto3.FunctionCall{Function: writes, Arguments: [][]byte{[]byte("34")}}, &pgproto3.Terminate{})
		_ = c.End()
		c = w.fenced(t, "orders=34")
		c.Send(&pgproto3.FunctionCall{Function: writes, Arguments: [][]byte{[]byte("34")}})
		c.CloseWrite()
		_ = c.End()
		w.Becomes(t, "2", "SELECT count(*)::text FROM jobs")
	})
}

// Failed logins leave nothing in memory, however long their database names are.
func TestFailedLogins(t *testing.T) {
	addr := suite.Proxy(t, 15)
	failing := func(t *testing.T, i int) {
		if _, err := stack.TryLogin(t, addr, fmt.Sprintf("none_%d_%s", i, strings.Repeat("x", 9_000))); err == nil {
			t.Fatal("logged in to a database that isn't there")
		}
	}
	failing(t, 0)
	before := heap()
	const logins = 500
	t.Run("clients", func(t *testing.T) { // which are gone with it
		for i := range logins {
			failing(t, i)
		}
	})
	if grown := int(heap()) - int(before); grown > logins*9_000/2 {
		t.Errorf("%d failed logins take %d bytes", logins, grown)
	}
}
