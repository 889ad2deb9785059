package fencingtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// A standby is promoted while sessions hold at the primary, which goes on, and while others
// read under the same fence at the standby. Behind the promotion the fence is stale there
// for all of them, and the next holder's sessions hold at once.
//
// Evidence: I9
func TestPromotionWhileSessionsHold(t *testing.T) {
	onOwnServer(t, func(t *testing.T, old, promoted *world) {
		hosts := old.Addr() + "," + promoted.Addr()
		old = old.asked(t, proxy.Options{Upstream: "postgres://" + hosts + "/?target_session_attrs=read-write"})
		var holding []*client
		for range 4 {
			holding = append(holding, old.fenced(t, "orders=34", "user", "app"))
		}
		old.warm("", holding...)
		open := holding[0]
		open.Must("BEGIN", late)
		promoted = promoted.own(t, proxy.Options{})
		var reading []*client
		for range 4 {
			c := promoted.fenced(t, "orders=34", "user", "app")
			c.Must("SELECT 1", "SELECT 2", "SELECT 3")
			reading = append(reading, c)
		}
		if err := promoted.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, c := range reading { // the first group behind a promotion, in each form
			var err error
			switch i {
			case 0:
				err = c.Simple(late)
			case 1:
				err = c.Extended(late)
			case 2:
				err = c.Simple("BEGIN; " + late + "; COMMIT")
			default:
				err = c.Simple("CALL committing()")
			}
			stack.WantState(t, err, "WF001", "session", i, "behind the promotion")
		}
		for i, c := range holding { // at the old primary
			stack.Eventually(t, "the session is ended", func() bool {
				return c.Ended() || c.Simple("SELECT 1") != nil && c.Ended()
			})
			if i == 0 && stack.State(c.Simple("COMMIT")) == "" {
				t.Error("a COMMIT at the old primary was confirmed")
			}
		}
		promoted.Admin = stack.Connect(t, promoted.URL(old.Name))
		token := stack.Value[int64](t, promoted.DB, "SELECT (wirefence.acquire('orders', 'the next', interval '1 minute')).token")
		var next *client
		stack.Eventually(t, "the proxy finds the new primary", func() bool {
			c, err := stack.TryLogin(t, old.proxy, old.Name, "user", "app", "options", fmt.Sprintf("-c wirefence.token=orders=%d", token))
			next = &client{Client: c}
			return err == nil
		})
		promoted.warm("", next)
		older := old.fenced(t, "orders=34", "user", "app")
		promoted.wantRefused(t, "the old token at the new primary", older, late)
		began := time.Now()
		promoted.Seal(t, "orders", token+1)
		if took := time.Since(began); took > defaultPreempt/2 {
			t.Errorf("a seal behind the promotion took %s", took)
		}
		promoted.wantRefused(t, "behind the seal", next, late)
		promoted.wantRows(t, 0)
	})
}

// onOwnServer runs a test on a primary of its own and a standby.
func onOwnServer(t *testing.T, test func(t *testing.T, primary, standby *world)) {
	t.Helper()
	stack.OnEach(t, oldAndNew, func(t *testing.T, major int) {
		primary, standby := withStandby(t, major)
		test(t, primary, standby)
	})
}

// withStandby starts a primary and a standby that has followed it.
func withStandby(t *testing.T, major int) (primary, standby *world) {
	t.Helper()
	pg := stack.Started(servers.StartPostgres(t.Context(), servers.PostgresConfig{Major: major, Settings: suite.Settings})).EndWith(t)
	primary = &world{DB: stack.NewDB(t, pg, suite.Objects)}
	network := stack.Started(servers.StartLink(pg.Addr())).EndWith(t)
	copied := stack.Started(pg.StartStandby(t.Context(), network)).EndWith(t)
	return primary, &world{DB: &stack.DB{Postgres: copied, Name: primary.Name, Admin: stack.Connect(t, copied.URL(primary.Name))}, follows: network}
}

// wantOver fails the test if a session whose proxy goes on can still write.
func (w *world) wantOver(t *testing.T, c *client, sql string) {
	t.Helper()
	if err := c.Simple(sql); err == nil {
		t.Errorf("%s succeeded behind the seal", sql)
	}
	if n := w.count(t, "SELECT count(*) FROM jobs WHERE note = 'late'"); n > 0 {
		t.Errorf("%d late rows", n)
	}
}

const late = "INSERT INTO jobs (note) VALUES ('late')"

// startProxy returns a proxy in a process of its own, which holds for long, and the world behind it.
func (w *world) startProxy(t *testing.T) (*servers.Wirefence, *world) {
	t.Helper()
	p := stack.Started(servers.StartWirefence(t.Context(), suite.Program(t, "../.."), "WIREFENCE_ADMIN_LISTEN=off", "WIREFENCE_UPSTREAM=postgres://"+w.Addr()+"/",
		"WIREFENCE_HOLD=10s", "WIREFENCE_DRAIN_TIMEOUT=1s")).EndWith(t)
	return p, w.at(p.Addr())
}

// freeze returns when the proxy has stopped: until then it may still send something on.
func freeze(t *testing.T, p *servers.Wirefence) (resume func()) {
	t.Helper()
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := p.Resume(); err != nil {
			t.Error(err)
		}
	}
}

// A takeover does not wait for idle sessions of a frozen proxy that hold, even without
// preempt_after.
//
// Evidence: I7
func TestFrozenProxyWithIdleSessions(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.preempt(t, nil)
		c, behind := w.startProxy(t)
		var sessions []*client
		for range 8 {
			sessions = append(sessions, behind.fenced(t, "orders=34", "user", "app"))
		}
		w.warm("", sessions...)
		resume := freeze(t, c)
		w.rival(t).within(t, 600*time.Millisecond+slack)
		resume()
		for _, s := range sessions {
			w.wantOver(t, s, late)
		}
	})
}

// slack is what a crowded machine may add to the bounds of a takeover.
const slack = time.Second

// An open transaction of a frozen proxy is ended after preempt_after.
//
// Evidence: I7
func TestFrozenProxyWithAnOpenTransaction(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		const preempt = time.Second
		w.preempt(t, preempt)
		c, behind := w.startProxy(t)
		s := behind.fenced(t, "orders=34", "user", "app") // no takeover ends a superuser's
		s.Must("SELECT 1", "SELECT 2", "SELECT 3", "BEGIN", late)
		resume := freeze(t, c)
		r := w.rival(t)
		r.within(t, preempt+100*time.Millisecond+slack)
		if r.took < preempt {
			t.Errorf("the transaction was ended after %s", r.took)
		}
		resume()
		w.wantOver(t, s, "COMMIT")
	})
}

// A proxy is frozen while it waits for a hold, so it does not learn that the server grants the
// lock.
func TestFrozenProxyThatTakesAHold(t *testing.T) {
	stack.NeedsMore(t, "3 s of CPU")
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.preempt(t, nil)
		c, behind := w.startProxy(t)
		s := behind.fenced(t, "orders=34", "user", "app") // no takeover ends a superuser's
		s.Must("SELECT 1")
		free := w.blocks(t)
		over := make(chan error, 1)
		go func() { over <- s.Simple("CALL committing()") }()
		stack.Eventually(t, "the session waits for its hold", func() bool { return w.waiting(t) == 1 })
		resume := freeze(t, c)
		free()
		stack.Eventually(t, "the hold is granted", func() bool { return w.waiting(t) == 0 && w.held(t) == 1 })
		w.rival(t).within(t, 600*time.Millisecond+slack)
		resume()
		if err := <-over; err == nil {
			t.Error("CALL succeeded behind the seal")
		}
		w.wantRows(t, 0)
	})
}
