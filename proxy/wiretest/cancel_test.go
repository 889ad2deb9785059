package wiretest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// sleeps waits until the session's backend runs pg_sleep.
func (p *peer) sleeps() {
	p.T.Helper()
	pid, _ := p.Key()
	p.place.Becomes(p.T, "true", "SELECT coalesce(bool_or(wait_event = 'PgSleep'), false)::text FROM pg_stat_activity WHERE pid = $1", pid)
}

// Case 8, and 9 for the long keys of protocol 3.2.
func TestCancelReachesTheQuery(t *testing.T) {
	for _, major := range majors {
		for _, version := range []uint32{pgproto3.ProtocolVersion30, pgproto3.ProtocolVersion32} {
			for _, options := range []string{"", "-c wirefence.token=orders=34"} {
				t.Run(fmt.Sprintf("%d protocol 3.%d %s", major, version&0xffff, options), func(t *testing.T) {
					t.Parallel()
					pl := at(t, major)
					addr := stackProxy(t, pl, proxy.Options{})
					p := dial(t, pl, addr)
					p.Write(stack.Startup(version, pl.Name, "options", options))
					p.Ready(1)
					pid, key := p.Key()
					if long := major >= 18 && version == pgproto3.ProtocolVersion32; (len(key) > 4) != long {
						t.Errorf("the cancel key has %d bytes", len(key))
					}
					for _, sql := range []string{"SELECT pg_sleep(60)", "INSERT INTO t SELECT 1, 'x' FROM pg_sleep(60)"} {
						for _, messages := range [][]pgproto3.FrontendMessage{all(q(sql)), all(run(sql), run("SELECT 1"), sync_)} {
							p.Send(messages...)
							p.sleeps()
							stack.CancelRequest(t, addr, pid, append(key[:len(key)-1:len(key)-1], key[len(key)-1]^1)) // a wrong key
							p.sleeps()
							stack.CancelRequest(t, addr, pid, key)
							if e := fmt.Sprint(stack.Err(p.Until("E"))); !strings.Contains(e, "57014") {
								t.Errorf("a query that was cancelled ended with %s", e)
							}
							p.Ready(1)
						}
					}
					if got := p.query("SELECT 'alive'"); !strings.Contains(got[1], "alive") {
						t.Errorf("after a cancellation the session answers %q", got)
					}
				})
			}
		}
	}
}

// Case 8: a cancellation that comes late, between two queries, hits neither the
// next query nor the check before it.
func TestLateCancelHitsNothing(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	addr := stackProxy(t, pl, proxy.Options{})
	for _, options := range []string{"", "-c wirefence.token=orders=34"} {
		p := login(t, pl, addr, "options", options)
		pid, key := p.Key()
		for i := range 100 {
			stack.CancelRequest(t, addr, pid, key)
			for _, line := range p.query(fmt.Sprintf("INSERT INTO t VALUES (%d, 'late') ON CONFLICT DO NOTHING", i)) {
				if line[0] == 'E' {
					t.Fatalf("query %d behind a cancellation: %s", i, line)
				}
			}
		}
	}
	if n := stack.Value[string](t, pl.DB, "SELECT count(*)::text FROM t"); n != "100" {
		t.Errorf("%s rows", n)
	}
}

// A CancelRequest for a session that is over, or never was, does nothing.
func TestCancelOfNobody(t *testing.T) {
	t.Parallel()
	pl := at(t, 18)
	addr := stackProxy(t, pl, proxy.Options{})
	p := login(t, pl, addr)
	pid, key := p.Key()
	p.Send(terminate)
	p.End()
	stack.CancelRequest(t, addr, pid, key)
	stack.CancelRequest(t, addr, 1, []byte{1, 2, 3, 4})
	login(t, pl, addr).query("SELECT 1")
}

// Case 9: a server that sends no BackendKeyData can't be cancelled, and all else
// works: queries, fences, and the end of its sessions.
func TestServerWithoutBackendKeyData(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	keyless := stack.Interposed(t, pl.Addr(), func(typ byte, msg []byte) []byte {
		if typ == 'K' {
			return nil
		}
		return msg
	})
	r := start(t, "postgres://"+keyless+"/?sslmode=disable", proxy.Options{})
	p := login(t, pl, r.Addr)
	if pid, _ := p.Key(); pid != 0 {
		t.Fatalf("the client gets a key that no server sent: %s", p.story())
	}
	if got := p.query("SELECT 'works'"); !strings.Contains(got[1], "works") {
		t.Errorf("a query is answered by %q", got)
	}
	for token, want := range map[string]string{"34": "INSERT 0 1", "33": "WF001"} {
		got := strings.Join(p.query("INSERT INTO t VALUES (77, 'x') /*wirefence.token='orders="+token+"'*/"), " ")
		if !strings.Contains(got, want) {
			t.Errorf("a write with token %s is answered by %q", token, got)
		}
	}
	stack.CancelRequest(t, r.Addr, 0, make([]byte, 4))
	if got := p.query("SELECT 'goes on'"); !strings.Contains(got[1], "goes on") {
		t.Errorf("behind a cancellation of nobody: %q", got)
	}
}

// While a session's hold waits for a takeover, a cancellation ends the wait and
// cancels the statement behind it.
func TestCancelWhileTheHoldWaits(t *testing.T) {
	for _, c := range []struct {
		sql  string // needs a hold
		busy bool   // or gets one, since the session is
	}{{"CALL commits()", false}, {"INSERT INTO t VALUES (1, 'a')", true}} {
		for name, messages := range map[string][]pgproto3.FrontendMessage{"simple": all(q(c.sql)), "extended": all(run(c.sql), run("SELECT 1"), sync_)} {
			t.Run(c.sql+", "+name, func(t *testing.T) {
				t.Parallel()
				pl := at(t, 15)
				addr := stackProxy(t, pl, proxy.Options{Hold: 10 * time.Second})
				p := login(t, pl, addr, "options", "-c wirefence.token=orders=34")
				if c.busy {
					p.query("SELECT 'the first is checked'")
				}
				taking := login(t, pl, pl.Addr())
				taking.query("BEGIN; SELECT wirefence.seal('orders', 35, 'next')")
				p.Send(messages...)
				pid, key := p.Key()
				pl.Becomes(t, "true", "SELECT coalesce(bool_or(wait_event_type = 'Lock'), false)::text FROM pg_stat_activity WHERE pid = $1", pid)
				stack.CancelRequest(t, addr, pid, key)
				if e := fmt.Sprint(stack.Err(p.Until("E"))); !strings.Contains(e, "57014") {
					t.Errorf("a statement whose hold waits was cancelled, and ended with %s", e)
				}
				p.Ready(1)
				taking.query("ROLLBACK")
				if got := types(p.query(c.sql)); got != "CZ(I)" {
					t.Errorf("behind the cancellation it is answered by %s", got)
				}
			})
		}
	}
}

// A cancellation while nothing of the client's runs reaches no server: the connection
// is closed at once, and what the proxy asks of its own goes on.
func TestCancelWhileNothingRuns(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	counted := countingCancels(t, pl.Addr())
	r := start(t, "postgres://"+counted.addr+"/?sslmode=disable", proxy.Options{Hold: time.Millisecond})
	for _, options := range []string{"", "-c wirefence.token=orders=34"} {
		p := login(t, pl, r.Addr, "options", options)
		pid, key := p.Key()
		for range 20 {
			p.query("INSERT INTO t VALUES (1, 'a') ON CONFLICT DO NOTHING")
			stack.CancelRequest(t, r.Addr, pid, key)
		}
		p.query("BEGIN")
		stack.CancelRequest(t, r.Addr, pid, key)
		if got := types(p.query("SELECT 1")); got != "TDCZ(T)" {
			t.Errorf("behind cancellations of nothing: %s", got)
		}
	}
	if n := counted.cancels.Load(); n != 0 {
		t.Errorf("%d cancellations reached the server", n)
	}
}

type cancelCounter struct {
	addr    string
	cancels atomic.Int64
}

// countingCancels relays to a server, and counts the cancel requests.
func countingCancels(t *testing.T, addr string) *cancelCounter {
	c := &cancelCounter{}
	c.addr = stack.Relayed(t, addr, func(server, client net.Conn) {
		first, err := stack.ReadMessage(client, 4)
		if err != nil {
			return
		}
		if len(first) >= 8 && binary.BigEndian.Uint32(first[4:]) == 80877102 {
			c.cancels.Add(1)
		}
		_, _ = server.Write(first)
		_, _ = io.Copy(server, client)
	}, nil)
	return c
}
