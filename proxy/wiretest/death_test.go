package wiretest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// Case 13: the server is killed, or shut down, under sessions in every state.
// Each sees what a direct one sees, one FATAL at most, and its connection ends.
func TestServerDies(t *testing.T) {
	states := []struct {
		name    string
		prepare func(*peer)
	}{
		{"idle", func(*peer) {}},
		{"in a block", func(p *peer) { p.query("BEGIN; INSERT INTO t SELECT pg_backend_pid(), 'a'") }},
		{"in a query", func(p *peer) { p.Send(q("SELECT pg_sleep(60)")); p.sleeps() }},
		{"in a batch", func(p *peer) { p.Send(append(run("SELECT 1"), flush)...); p.Until("C") }},
		{"in copy-in", func(p *peer) { p.Send(q("COPY t FROM STDIN"), data("2\tb\n")); p.Until("G") }},
	}
	for name, die := range map[string]func(*servers.Postgres){"killed": (*servers.Postgres).Kill, "stopped": (*servers.Postgres).Stop} {
		for _, major := range majors {
			t.Run(fmt.Sprint(name, " ", major), func(t *testing.T) {
				t.Parallel()
				pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: major})).EndWith(t)
				pl := &place{stack.NewDB(t, pg, fixture)}
				addr := stack.Proxy(t, pg, proxy.Options{})
				var direct, proxied []*peer
				for _, s := range states {
					for to, list := range map[string]*[]*peer{pg.Addr(): &direct, addr: &proxied} {
						p := login(t, pl, to)
						s.prepare(p)
						*list = append(*list, p)
					}
				}
				die(pg)
				for i, s := range states {
					proxied[i].End()
					direct[i].End()
					want, got := types(direct[i].transcript()), types(proxied[i].transcript())
					if name == "killed" { // a crash doesn't promise last words
						want, got = strings.TrimRight(want, "N"), strings.TrimRight(got, "N")
					}
					if want != got || proxied[i].fatals() > 1 {
						t.Errorf("%s: direct %s, proxied %s", s.name, want, got)
					}
				}
				if got := outcome(t, addr, "postgres", "", pl.Name); !strings.Contains(got, "Code:08006") {
					t.Errorf("while the server is down a client gets %s", got)
				}
				if err := pg.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				p := login(t, &place{&stack.DB{Postgres: pg, Name: pl.Name, Admin: pl.Direct(t)}}, addr)
				if got := p.query("SELECT count(*) FROM t"); !strings.Contains(got[1], `\x010"`) {
					t.Errorf("after the restart: %q", got)
				}
			})
		}
	}
}

// Case 14: clients that vanish, whatever they were doing, leave no backend.
func TestVanishedClientsLeaveNoBackend(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	addr := stackProxy(t, pl, proxy.Options{})
	for name, act := range map[string]func(*peer){
		"at once":            func(*peer) {},
		"behind a Parse":     func(p *peer) { p.Send(parse("s", "SELECT 1")) },
		"behind a Flush":     func(p *peer) { p.Send(parse("s", "SELECT 1"), flush); p.Until("1") },
		"in a message":       func(p *peer) { p.Write([]byte("P\x00\x00\x01\x00s\x00SEL")) },
		"in a header":        func(p *peer) { p.Write([]byte("Q\x00")) },
		"in a large message": func(p *peer) { p.Write(append([]byte("Q\x10\x00\x00\x00"), make([]byte, 1<<20)...)) },
		"in a block":         func(p *peer) { p.query("BEGIN; INSERT INTO t VALUES (1, 'a')") },
		"in copy-in":         func(p *peer) { p.Send(q("COPY t FROM STDIN"), data("2\tb\n")); p.Until("G") },
		"in copy-out":        func(p *peer) { p.Send(q("COPY (SELECT generate_series(1, 10000000)) TO STDOUT")); p.Until("d") },
		"in rows":            func(p *peer) { p.Send(q("SELECT generate_series(1, 10000000)")); p.Until("D") },
		"in a fenced block": func(p *peer) {
			p.query("SET wirefence.token = 'orders=34'")
			p.query("BEGIN; INSERT INTO t VALUES (3, 'c')")
		},
	} {
		for _, politely := range []bool{false, true} {
			p := login(t, pl, addr)
			act(p)
			if politely {
				p.Send(terminate)
			}
			_ = p.Conn.Close()
			pid, _ := p.Key()
			pl.Becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", pid)
			if rows := pl.rows(t); rows != "" {
				t.Errorf("a client that vanishes %s leaves %s", name, rows)
			}
		}
	}
	for _, packet := range [][]byte{stack.Startup(v30, pl.Name), stack.Startup(v30, pl.Name)[:20]} { // in the login
		p := dial(t, pl, addr)
		p.Write(packet)
		_ = p.Conn.Close()
	}
	pl.Becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
}

// Case 14: bulk data in both directions at once doesn't stall: on two
// connections, and on one whose answers are only read when all is sent.
func TestBulkBothWays(t *testing.T) {
	stack.NeedsMore(t, "5 s of CPU")
	for _, options := range []string{"", "-c wirefence.token=orders=34"} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			pl := at(t, 15)
			addr := stackProxy(t, pl, proxy.Options{})
			pl.Exec(t, "CREATE TABLE bulk(a int, b text)", "INSERT INTO bulk SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i")
			in, out := login(t, pl, addr, "options", options), login(t, pl, addr, "options", options)
			out.Send(q("COPY bulk TO STDOUT"), q("SELECT * FROM bulk"))
			in.Send(q("COPY t FROM STDIN"))
			in.Until("G")
			for i := range 100 {
				in.Send(data(strings.ReplaceAll(lines(1000), "\tthe", fmt.Sprintf("%03d\tthe", i))))
			}
			in.Send(copyDone)
			in.Ready(1)
			out.Ready(2)
			if n := stack.Value[string](t, pl.DB, "SELECT count(*)::text FROM t"); n != "100000" {
				t.Errorf("%s rows came in", n)
			}
			// One connection: many megabytes of requests whose answers are as many.
			one := login(t, pl, addr, "options", options)
			for range 40 {
				one.Send(append(run("SELECT $1::text", strings.Repeat("y", 500_000)), sync_)...)
			}
			one.Send(q("COPY bulk TO STDOUT"), q("TRUNCATE t"), q("COPY t FROM STDIN"), data(lines(100_000)), copyDone, q("COPY t TO STDOUT"))
			one.Ready(40 + 4)
			for _, p := range []*peer{in, out, one} {
				for _, line := range p.transcript() {
					if line[0] == 'E' {
						t.Error(line)
					}
				}
			}
		})
	}
}

// Case 14: a client that doesn't read for long stalls nobody else, and gets all
// of its answer in the end.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	pl := at(t, 18)
	addr := stackProxy(t, pl, proxy.Options{})
	conn := stack.Raw(t, addr)
	_ = conn.SetDeadline(time.Time{})
	queries := encoded(q("SELECT repeat('z', 1000) FROM generate_series(1, 30000)"), q("INSERT INTO t VALUES (1, 'slow')"))
	if _, err := conn.Write(append(stack.Startup(v30, pl.Name), queries...)); err != nil {
		t.Fatal(err)
	}
	other := login(t, pl, addr)
	for range 100 {
		other.query("SELECT 1")
	}
	if rows := pl.rows(t); rows != "" {
		t.Errorf("30 MB fit into the sockets: %s", rows)
	}
	slow := newPeer(pl, stack.NewClient(t, conn))
	slow.Ready(3)
	if got := types(slow.transcript()); strings.Count(got, "D") != 30000 || !strings.HasSuffix(got, "CZ(I) CZ(I)") {
		t.Errorf("the slow reader gets %d rows, then %s", strings.Count(got, "D"), got[len(got)-12:])
	}
}
