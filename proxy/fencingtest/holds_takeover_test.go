package fencingtest

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

var sessions = flag.Int("sessions", 16, "how many busy sessions a takeover meets")

// A takeover succeeds against busy sessions that hold. Then they are refused, and none of their
// commits follows one of the new token.
//
// Evidence: I7
func TestTakeoverFromBusySessions(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) { w.own(t, proxy.Options{}).takeOverFrom(t, *sessions, defaultPreempt) })
}

// Two proxies in a row take a hold each in the same backend, and both ask whether a takeover waits. It
// succeeds against both.
func TestTakeoverThroughTwoProxiesThatAsk(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		w = w.asked(t, proxy.Options{})
		w.asked(t, proxy.Options{Upstream: w.upstream()}).takeOverFrom(t, 8, defaultPreempt/2)
	})
}

// upstream is the world's proxy as the upstream of another one.
func (w *world) upstream() string { return "postgres://" + w.proxy + "/" }

func (w *world) takeOverFrom(t *testing.T, sessions int, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Patience)
	defer cancel()
	var writers, warm sync.WaitGroup
	var written atomic.Int64
	for i := range sessions {
		c := w.fenced(t, "orders=34", "user", "app")
		warm.Add(1)
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if n == 10 {
					warm.Done()
				}
				if err := w.write(c, 34, i); err != nil {
					stack.WantState(t, err, "WF001", "writer", i)
					stack.WantState(t, w.write(c, 34, i+1), "WF001", "writer, once more", i)
					return
				}
				written.Add(1)
			}
			t.Errorf("writer %d was never refused", i)
		})
	}
	warm.Wait()
	began := time.Now()
	w.Exec(t, "SELECT wirefence.seal('orders', 35, 'the next')")
	took := time.Since(began)
	before := w.rowsOf(t, 34)
	next := w.fenced(t, "orders=35", "user", "app")
	for i := range 20 {
		if err := w.write(next, 35, i); err != nil {
			t.Error(err)
		}
	}
	writers.Wait()
	t.Logf("PostgreSQL %d: the seal took %s against %d busy sessions, behind %d of their commits", w.Major, took.Round(time.Millisecond), sessions, written.Load())
	if took > limit {
		t.Errorf("the seal took %s", took)
	}
	if after := w.rowsOf(t, 34); after != before {
		t.Errorf("%d rows of the old token came behind the seal's return", after-before)
	}
	w.neverDown(t)
}

// defaultPreempt is the default: from then on a takeover ends sessions.
const defaultPreempt = 5 * time.Second

// write writes a row in one of several ways.
func (w *world) write(c *client, token, way int) error {
	sql := insertOf(token)
	defer func() {
		if c.TxStatus() == 'E' && !c.Ended() {
			c.Must("ROLLBACK")
		}
	}()
	switch way % 5 {
	case 0:
		return c.Simple(sql)
	case 1:
		return c.Extended(sql)
	case 2:
		return c.Simple("BEGIN; " + sql + "; COMMIT")
	case 3:
		return c.Simple(fmt.Sprintf("DO $$ BEGIN %s; COMMIT; END $$", sql))
	}
	for _, sql := range []string{"BEGIN", "SAVEPOINT s", sql, "RELEASE s", "COMMIT"} {
		if err := c.Simple(sql); err != nil {
			return err
		}
	}
	return nil
}

// neverDown fails the test unless the commits of token 34, the last seal and the commits
// of token 35 came in this order. The server takes the time of a commit while the
// transaction has its locks.
func (w *world) neverDown(t *testing.T) {
	t.Helper()
	var older, newer int
	if err := w.Admin.QueryRow(t.Context(), `
		WITH sealed AS (SELECT pg_xact_commit_timestamp(xmin) AS at FROM wirefence.resource_locks WHERE resource_id = 'orders'),
		     rows AS (SELECT token, pg_xact_commit_timestamp(xmin) AS at FROM jobs)
		SELECT count(*) FILTER (WHERE r.token < 35 AND r.at < s.at), count(*) FILTER (WHERE r.token = 35 AND r.at > s.at)
		FROM rows AS r, sealed AS s`).Scan(&older, &newer); err != nil {
		t.Fatal(err)
	}
	if all := w.count(t, "SELECT count(*) FROM jobs WHERE token > 0"); older == 0 || newer != 20 || older+newer != all {
		t.Errorf("%d commits of 34 before the seal, %d of 35 behind it, %d in all", older, newer, all)
	}
}

// flows are ways to send without a pause. Each statement numbers its answer.
var flows = []struct {
	name     string
	window   int // how many are sent ahead of their answers
	messages func(n int) []pgproto3.FrontendMessage
}{
	{"one by one", 1, simple("SELECT %d")},
	{"simple queries", 20, simple("SELECT %d")},
	{"batches", 20, func(n int) []pgproto3.FrontendMessage {
		return append(stack.Unnamed(fmt.Sprintf("SELECT %d", n)), &pgproto3.Sync{})
	}},
	{"blocks", 2, simple("BEGIN; SELECT %d", "SELECT %d", "SELECT %d; COMMIT")},
	{"longer blocks", 7, simple("BEGIN; SELECT %d", "SELECT %d", "SAVEPOINT s; SELECT %d", "SELECT %d; COMMIT")},
}

// simple sends one of the texts after the other.
func simple(texts ...string) func(n int) []pgproto3.FrontendMessage {
	return func(n int) []pgproto3.FrontendMessage {
		return []pgproto3.FrontendMessage{&pgproto3.Query{String: fmt.Sprintf(texts[n%len(texts)], n)}}
	}
}

// A takeover succeeds against a session that sends without a pause. That gets its answers in
// order until it is refused. (One that chains its transactions is never outside of one, and is ended.)
func TestPipelinesLetTakeoversIn(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.own(t, proxy.Options{})
		for _, flow := range flows {
			c := w.fenced(t, "orders=34", "user", "app")
			c.Must("SELECT 1", "SELECT 2", "SELECT 3") // now it holds
			sent := 0
			send := func() {
				c.Send(flow.messages(sent)...)
				sent++
			}
			for range flow.window {
				send()
			}
			var r *rival
			began, refused := time.Now(), false
			for answered := 0; !refused && time.Since(began) < stack.Patience; answered++ {
				all := c.Ready(1)
				err := stack.Err(all)
				switch {
				case err == nil && fmt.Sprint(stack.Column(all)) != "["+strconv.Itoa(answered)+"]":
					t.Fatalf("%s: answer %d is %v", flow.name, answered, stack.Column(all))
				case err != nil && (r == nil || stack.State(err) != "WF001"):
					t.Fatalf("%s: answer %d: %v", flow.name, answered, err)
				}
				refused = err != nil
				if r == nil && time.Since(began) > 250*time.Millisecond {
					r = w.rival(t)
				}
				send()
			}
			if !refused {
				t.Fatalf("%s: never refused", flow.name)
			}
			r.within(t, defaultPreempt/2)
			c.Close()
			w.back(t)
		}
	})
}
