package wiretest

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/proxy"
)

// A client whose machine vanishes says nothing more, not even goodbye: a probe
// notices it where all is quiet, and a timeout where bytes are under way.
func TestAClientThatVanishesIsNoticed(t *testing.T) {
	for _, c := range []struct {
		name    string
		options proxy.Options
		last    string // what the client sends last
		until   string // what pg_stat_activity says before the client vanishes
	}{
		{"quiet", proxy.Options{TCPKeepalive: time.Second}, "INSERT INTO t VALUES (1, 'gone')", "idle in transaction"},
		{"under way", proxy.Options{TCPKeepalive: -1, TCPUserTimeout: time.Second}, "INSERT INTO t SELECT 1, 'gone' FROM pg_sleep(2)", "active"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pl := at(t, 15)
			p := login(t, pl, stackProxy(t, pl, c.options))
			p.query("BEGIN")
			if p.Send(q(c.last)); c.until != "active" {
				p.Ready(1)
			}
			pid, _ := p.Key()
			theirs := "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1"
			pl.Becomes(t, "1", theirs+" AND query LIKE 'INSERT%' AND state = $2", pid, c.until)
			vanish(t, p.Socket().(*net.TCPConn))
			pl.Becomes(t, "0", theirs, pid)
			if p.Ended() {
				t.Error("the client hears of the end")
			}
			if rows := pl.rows(t); rows != "" {
				t.Errorf("t holds %s", rows)
			}
		})
	}
}

// vanish makes the kernel drop all that comes for a socket, before anything could
// acknowledge it, as if the cable were pulled.
func vanish(t testing.TB, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	var filtered, acknowledged error
	err = raw.Control(func(fd uintptr) {
		// What has come is acknowledged now: nothing of it is under way any more.
		acknowledged = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
		filtered = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	})
	for _, err := range []error{err, acknowledged, filtered} {
		if err != nil {
			t.Fatal(err)
		}
	}
}
