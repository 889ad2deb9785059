package wiretest

import (
	"fmt"
	"strings"
	"testing"

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
		{"in a query", func(p *peer) { p.send(q("SELECT pg_sleep(60)")); p.sleeps() }},
		{"in a batch", func(p *peer) { p.send(append(run("SELECT 1"), flush)...); p.until('C') }},
		{"in copy-in", func(p *peer) { p.send(q("COPY t FROM STDIN"), data("2\tb\n")); p.until('G') }},
	}
	for name, die := range map[string]func(*servers.Postgres){"killed": (*servers.Postgres).Kill, "stopped": (*servers.Postgres).Stop} {
		for _, major := range majors {
			t.Run(fmt.Sprint(name, " ", major), func(t *testing.T) {
				t.Parallel()
				pg, err := startMigrated(servers.PostgresConfig{Major: major})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(pg.Close)
				pl := on(t, pg)
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
					proxied[i].ended()
					direct[i].ended()
					want, got := types(direct[i].transcript()), types(proxied[i].transcript())
					if name == "killed" { // a crash doesn't promise last words
						want, got = strings.TrimRight(want, "N"), strings.TrimRight(got, "N")
					}
					if want != got || proxied[i].fatals() > 1 {
						t.Errorf("%s: direct %s, proxied %s", s.name, want, got)
					}
				}
				if got := outcome(t, addr, "postgres", "", pl.db); !strings.Contains(got, "Code:08006") {
					t.Errorf("while the server is down a client gets %s", got)
				}
				if err := pg.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				p := login(t, &place{pg, pl.db, stack.Connect(t, pg.URL(pl.db))}, addr)
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
		"behind a Parse":     func(p *peer) { p.send(parse("s", "SELECT 1")) },
		"behind a Flush":     func(p *peer) { p.send(parse("s", "SELECT 1"), flush); p.until('1') },
		"in a message":       func(p *peer) { p.write([]byte("P\x00\x00\x01\x00s\x00SEL")) },
		"in a header":        func(p *peer) { p.write([]byte("Q\x00")) },
		"in a large message": func(p *peer) { p.write(append([]byte("Q\x10\x00\x00\x00"), make([]byte, 1<<20)...)) },
		"in a block":         func(p *peer) { p.query("BEGIN; INSERT INTO t VALUES (1, 'a')") },
		"in copy-in":         func(p *peer) { p.send(q("COPY t FROM STDIN"), data("2\tb\n")); p.until('G') },
		"in copy-out":        func(p *peer) { p.send(q("COPY (SELECT generate_series(1, 10000000)) TO STDOUT")); p.until('d') },
		"in rows":            func(p *peer) { p.send(q("SELECT generate_series(1, 10000000)")); p.until('D') },
		"in a fenced block": func(p *peer) {
			p.query("SET wirefence.token = 'orders=34'")
			p.query("BEGIN; INSERT INTO t VALUES (3, 'c')")
		},
	} {
		for _, politely := range []bool{false, true} {
			p := login(t, pl, addr)
			act(p)
			if politely {
				p.send(terminate)
			}
			_ = p.conn.Close()
			pid, _ := p.key()
			pl.becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", pid)
			if rows := pl.rows(t); rows != "" {
				t.Errorf("a client that vanishes %s leaves %s", name, rows)
			}
		}
	}
	for _, packet := range [][]byte{startup(pl.db), startup(pl.db)[:20]} { // in the login
		p := dial(t, pl, addr)
		p.write(packet)
		_ = p.conn.Close()
	}
	pl.becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
}

// Case 14: bulk data in both directions at once doesn't stall: on two
// connections, and on one whose answers are only read when all is sent.
func TestBulkBothWays(t *testing.T) {
	for _, options := range []string{"", "-c wirefence.token=orders=34"} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			pl := at(t, 15)
			addr := stackProxy(t, pl, proxy.Options{})
			pl.exec(t, "CREATE TABLE bulk(a int, b text)", "INSERT INTO bulk SELECT i, repeat('x', 100) FROM generate_series(1, 100000) i")
			in, out := login(t, pl, addr, "options", options), login(t, pl, addr, "options", options)
			out.send(q("COPY bulk TO STDOUT"), q("SELECT * FROM bulk"))
			in.send(q("COPY t FROM STDIN"))
			in.until('G')
			for i := range 100 {
				in.send(data(strings.ReplaceAll(lines(1000), "\tthe", fmt.Sprintf("%03d\tthe", i))))
			}
			in.send(copyDone)
			in.ready(1)
			out.ready(2)
			if n := pl.text(t, "SELECT count(*)::text FROM t"); n != "100000" {
				t.Errorf("%s rows came in", n)
			}
			// One connection: many megabytes of requests whose answers are as many.
			one := login(t, pl, addr, "options", options)
			for range 40 {
				one.send(append(run("SELECT $1::text", strings.Repeat("y", 500_000)), sync_)...)
			}
			one.send(q("COPY bulk TO STDOUT"), q("TRUNCATE t"), q("COPY t FROM STDIN"), data(lines(100_000)), copyDone, q("COPY t TO STDOUT"))
			one.ready(40 + 4)
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
	slow := &peer{t: t, place: pl, cut: whole, news: make(chan struct{}, 1), patience: patience, conn: rawDial(t, addr)}
	slow.write(startup(pl.db))
	slow.send(q("SELECT repeat('z', 1000) FROM generate_series(1, 30000)"), q("INSERT INTO t VALUES (1, 'slow')"))
	other := login(t, pl, addr)
	for range 100 {
		other.query("SELECT 1")
	}
	if rows := pl.rows(t); rows != "" {
		t.Errorf("30 MB fit into the sockets: %s", rows)
	}
	go slow.read()
	slow.ready(3)
	if got := types(slow.transcript()); strings.Count(got, "D") != 30000 || !strings.HasSuffix(got, "CZ(I) CZ(I)") {
		t.Errorf("the slow reader gets %d rows, then %s", strings.Count(got, "D"), got[len(got)-12:])
	}
}
