package wiretest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/proxy"
)

// cancel sends a CancelRequest and waits until the other side has closed the
// connection, which says that it is done.
func cancel(t tb, addr string, pid uint32, key []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer conn.Close()
	packet := binary.BigEndian.AppendUint32(nil, uint32(12+len(key)))
	packet = binary.BigEndian.AppendUint32(packet, 80877102)
	packet = append(binary.BigEndian.AppendUint32(packet, pid), key...)
	if _, err := conn.Write(packet); err != nil {
		t.Fatalf("%v", err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "timeout") {
		t.Fatalf("a CancelRequest was answered by %d bytes, %v", n, err)
	}
}

// sleeps waits until the session's backend runs pg_sleep.
func (p *peer) sleeps() {
	p.t.Helper()
	pid, _ := p.key()
	p.place.becomes(p.t, "true", "SELECT coalesce(bool_or(wait_event = 'PgSleep'), false)::text FROM pg_stat_activity WHERE pid = $1", pid)
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
					p.write(startupVersion(version, pl.db, "options", options))
					p.ready(1)
					pid, key := p.key()
					if long := major >= 18 && version == pgproto3.ProtocolVersion32; (len(key) > 4) != long {
						t.Errorf("the cancel key has %d bytes", len(key))
					}
					for _, sql := range []string{"SELECT pg_sleep(60)", "INSERT INTO t SELECT 1, 'x' FROM pg_sleep(60)"} {
						for _, messages := range [][]pgproto3.FrontendMessage{all(q(sql)), all(run(sql), run("SELECT 1"), sync_)} {
							p.send(messages...)
							p.sleeps()
							cancel(t, addr, pid, append(key[:len(key)-1:len(key)-1], key[len(key)-1]^1)) // a wrong key
							p.sleeps()
							cancel(t, addr, pid, key)
							if e := p.until('E').normal(0); !strings.Contains(e, "C57014") {
								t.Errorf("a query that was cancelled ended with %s", e)
							}
							p.ready(1)
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
		pid, key := p.key()
		for i := range 100 {
			cancel(t, addr, pid, key)
			for _, line := range p.query(fmt.Sprintf("INSERT INTO t VALUES (%d, 'late') ON CONFLICT DO NOTHING", i)) {
				if line[0] == 'E' {
					t.Fatalf("query %d behind a cancellation: %s", i, line)
				}
			}
		}
	}
	if n := pl.text(t, "SELECT count(*)::text FROM t"); n != "100" {
		t.Errorf("%s rows", n)
	}
}

// A CancelRequest for a session that is over, or never was, does nothing.
func TestCancelOfNobody(t *testing.T) {
	t.Parallel()
	pl := at(t, 18)
	addr := stackProxy(t, pl, proxy.Options{})
	p := login(t, pl, addr)
	pid, key := p.key()
	p.send(terminate)
	p.ended()
	cancel(t, addr, pid, key)
	cancel(t, addr, 1, []byte{1, 2, 3, 4})
	login(t, pl, addr).query("SELECT 1")
}

// Case 9: a server that sends no BackendKeyData can't be cancelled, and all else
// works: queries, fences, and the end of its sessions.
func TestServerWithoutBackendKeyData(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	keyless := scripted(t, func(client net.Conn) { relayWithoutKey(client, pl.Addr()) })
	r := start(t, "postgres://"+keyless+"/?sslmode=disable", proxy.Options{})
	p := login(t, pl, r.Addr)
	if pid, _ := p.key(); pid != 0 {
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
	cancel(t, r.Addr, 0, make([]byte, 4))
	if got := p.query("SELECT 'goes on'"); !strings.Contains(got[1], "goes on") {
		t.Errorf("behind a cancellation of nobody: %q", got)
	}
}

// relayWithoutKey is a server that sends no BackendKeyData: a real one, whose
// message is taken out.
func relayWithoutKey(client net.Conn, addr string) {
	server, err := net.Dial("tcp", addr)
	if err != nil {
		_ = client.Close()
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	defer client.Close()
	defer server.Close()
	head := make([]byte, 5)
	for {
		if _, err := io.ReadFull(server, head); err != nil {
			return
		}
		rest := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(server, rest); err != nil {
			return
		}
		if head[0] == 'K' {
			continue
		}
		if _, err := client.Write(append(append([]byte(nil), head...), rest...)); err != nil {
			return
		}
	}
}
