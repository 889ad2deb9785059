package wiretest

import (
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// What a timeout ends leaves nothing on the server, in whatever state it was.
func TestTimeouts(t *testing.T) {
	const short = 400 * time.Millisecond
	for name, c := range map[string]struct {
		options proxy.Options
		prepare func(*peer)
		want    string
	}{
		"idle": {proxy.Options{IdleTimeout: short}, func(p *peer) { p.query("SELECT 1") },
			"C57P05 | Mterminating connection due to idle-session timeout"},
		"idle from the login on": {proxy.Options{IdleTimeout: short}, func(*peer) {},
			"C57P05 | Mterminating connection due to idle-session timeout"},
		"idle in a block": {proxy.Options{IdleInTransactionTimeout: short, IdleTimeout: time.Hour},
			func(p *peer) { p.query("BEGIN; INSERT INTO t VALUES (1, 'a')") },
			"C25P03 | Mterminating connection due to idle-in-transaction timeout"},
		"idle in a pipeline": {proxy.Options{IdleInTransactionTimeout: short},
			func(p *peer) { p.Send(append(run("INSERT INTO t VALUES (1, 'a')"), flush)...); p.Until("C") },
			"C25P03 | Mterminating connection due to idle-in-transaction timeout"},
		"a long statement": {proxy.Options{TransactionTimeout: short, IdleTimeout: time.Hour},
			func(p *peer) { p.Send(q("INSERT INTO t SELECT 1, 'a' FROM pg_sleep(60)")) },
			"C25P04 | Mterminating connection due to transaction timeout"},
		"a long statement in a block": {proxy.Options{TransactionTimeout: short},
			func(p *peer) { p.query("BEGIN; INSERT INTO t VALUES (1, 'a')"); p.Send(q("SELECT pg_sleep(60)")) },
			"C25P04 | Mterminating connection due to transaction timeout"},
		"a block that goes on": {proxy.Options{TransactionTimeout: short, IdleInTransactionTimeout: time.Hour},
			func(p *peer) { p.query("BEGIN; INSERT INTO t VALUES (1, 'a')") },
			"C25P04 | Mterminating connection due to transaction timeout"},
		"a COPY without an end": {proxy.Options{TransactionTimeout: short},
			func(p *peer) { p.Send(q("COPY t FROM STDIN"), data("1\ta\n")); p.Until("G") },
			"C25P04 | Mterminating connection due to transaction timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pl := at(t, 15)
			p := login(t, pl, stackProxy(t, pl, c.options))
			began := time.Now()
			c.prepare(p)
			e := p.last()
			if took := time.Since(began); took < short {
				t.Errorf("ended after %s", took)
			}
			if !strings.HasPrefix(e, "E SFATAL | VFATAL | "+c.want) || p.fatals() != 1 {
				t.Errorf("the session ends with %s", e)
			}
			pid, _ := p.Key()
			pl.Becomes(t, "0", "SELECT count(*)::text FROM pg_stat_activity WHERE pid = $1", pid)
			if rows := pl.rows(t); rows != "" {
				t.Errorf("t holds %s", rows)
			}
		})
	}
}

// Who works on is left alone, however long the session lasts.
func TestTimeoutsSpareTheBusy(t *testing.T) {
	t.Parallel()
	pl := at(t, 18)
	const limit = time.Second
	p := login(t, pl, stackProxy(t, pl, proxy.Options{IdleTimeout: limit, IdleInTransactionTimeout: limit, TransactionTimeout: limit}))
	for began := time.Now(); time.Since(began) < 3*limit; {
		p.query("SELECT pg_sleep(0.05)")
		p.query("BEGIN; SELECT pg_sleep(0.05); COMMIT")
		p.Send(append(run("SELECT pg_sleep(0.05)"), sync_)...)
		p.Ready(1)
	}
	if n := p.fatals(); n > 0 {
		t.Error(p.story())
	}
}

func TestTooManyConnectionsOfAUser(t *testing.T) {
	t.Parallel()
	pl := at(t, 15)
	pl.Exec(t, `DO $$BEGIN CREATE ROLE other LOGIN; EXCEPTION WHEN duplicate_object THEN END$$`)
	addr := stackProxy(t, pl, proxy.Options{MaxUserConnections: 1})
	first := login(t, pl, addr)
	if got := outcome(t, addr, "postgres", "", pl.Name); !strings.Contains(got, "Code:53300") || !strings.Contains(got, `too many connections for role "postgres"`) {
		t.Errorf("the second client of a user gets %s", got)
	}
	if got := outcome(t, addr, "other", "", pl.Name); got != "logged in as other" {
		t.Errorf("another user gets %s", got)
	}
	first.Send(terminate)
	first.End()
	began := time.Now()
	for got := ""; got != "logged in as postgres"; {
		if got = outcome(t, addr, "postgres", "", pl.Name); time.Since(began) > stack.Patience {
			t.Fatalf("after one has left, the next gets %s", got)
		}
	}
}
