package wiretest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/proxy"
)

// A client whose machine vanishes says nothing more, not even goodbye: a probe
// notices it where all is quiet, and a timeout where bytes are under way. It
// lives in a network of its own whose cable is pulled, which takes root's rights
// to make.
func TestAClientThatVanishesIsNoticed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("networks are made by root only")
	}
	for n, c := range []struct {
		name    string
		options proxy.Options
		sends   string
		until   string // what pg_stat_activity says before the cable is pulled
	}{
		{"quiet", proxy.Options{TCPKeepalive: time.Second}, "BEGIN; INSERT INTO t VALUES (1, 'gone');\n", "idle in transaction"},
		{"under way", proxy.Options{TCPKeepalive: -1, TCPUserTimeout: time.Second}, "BEGIN; INSERT INTO t SELECT 1, 'gone' FROM pg_sleep(2);\n", "active"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFarNetwork(t, n)
			pl := at(t, 15)
			c.options.Listen = []string{f.near + ":0"}
			r := start(t, "postgres://"+pl.Addr()+"/", c.options)
			f.psql(t, "postgres://postgres@"+r.Addr+"/"+pl.db+"?application_name=far&sslmode=disable", c.sends)
			theirs := "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'far' AND query LIKE 'INSERT%'"
			pl.becomes(t, "1", theirs+" AND state = $1", c.until)
			if c.until != "active" {
				f.allAcknowledged(t)
			}
			f.ip("link", "set", f.name+"a", "down")
			pl.becomes(t, "0", theirs)
			if rows := pl.rows(t); rows != "" {
				t.Errorf("t holds %s", rows)
			}
		})
	}
}

// farNetwork is a network namespace with a cable to ours.
type farNetwork struct {
	name, near string
	ip         func(args ...string) string
}

func newFarNetwork(t *testing.T, n int) *farNetwork {
	t.Helper()
	f := &farNetwork{name: fmt.Sprintf("wf%d%d", os.Getpid()%100000, n)}
	f.ip = func(args ...string) string {
		t.Helper()
		out, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	// Addresses that are for benchmarks only (RFC 2544).
	prefix := fmt.Sprintf("198.18.%d.", 2*(os.Getpid()%100)+n)
	f.near = prefix + "1"
	f.ip("netns", "add", f.name)
	t.Cleanup(func() { f.ip("netns", "del", f.name) }) // and both ends of the cable
	f.ip("link", "add", f.name+"a", "type", "veth", "peer", "name", f.name+"b", "netns", f.name)
	f.ip("addr", "add", f.near+"/30", "dev", f.name+"a")
	f.ip("link", "set", f.name+"a", "up")
	f.ip("-n", f.name, "addr", "add", prefix+"2/30", "dev", f.name+"b")
	f.ip("-n", f.name, "link", "set", f.name+"b", "up")
	return f
}

// psql runs psql in the far network and gives it its first input.
func (f *farNetwork) psql(t *testing.T, url, input string) {
	t.Helper()
	psql := exec.Command("ip", "netns", "exec", f.name, "psql", "-X", "-d", url)
	in, err := psql.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := psql.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = psql.Process.Kill()
		_ = psql.Wait()
	})
	if _, err := io.WriteString(in, input); err != nil {
		t.Fatal(err)
	}
}

// allAcknowledged waits until the far side has all that was sent to it.
func (f *farNetwork) allAcknowledged(t *testing.T) {
	t.Helper()
	for began := time.Now(); ; {
		out, err := exec.Command("ss", "-tnH", "state", "established", "src", f.near).Output()
		if err != nil {
			t.Fatal(err)
		}
		if fields := strings.Fields(string(out)); len(fields) > 1 && fields[1] == "0" {
			return
		}
		if time.Since(began) > patience {
			t.Fatalf("not all was acknowledged: %s", out)
		}
	}
}
