package fencingtest

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// asked is the world behind a proxy that asks on an issuer's connection whether holds are
// wanted.
func (w *world) asked(t *testing.T, o proxy.Options) *world {
	t.Helper()
	o.DatabaseURL = w.URL(w.Name)
	return w.own(t, o)
}

// A busy session takes its hold once, not once in each period, while no takeover comes. A
// takeover succeeds at once, and the session is refused.
func TestAHoldLastsUntilItIsWanted(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.asked(t, proxy.Options{Hold: 500 * time.Millisecond})
		c := w.fenced(t, "orders=34")
		w.warm("", c)
		var before int
		stack.Eventually(t, "a hold lasts for four periods", func() bool {
			before = w.checks(t)
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
				c.Must("SELECT 1")
			}
			return w.checks(t) == before
		})
		began := time.Now()
		w.Exec(t, "SELECT wirefence.seal('orders', 35, 'the next')")
		t.Logf("PostgreSQL %d: the seal took %s behind a hold of an idle session", w.Major, time.Since(began).Round(time.Millisecond))
		if took := time.Since(began); took > defaultPreempt/2 {
			t.Errorf("the seal took %s", took)
		}
		stack.WantState(t, c.Simple("SELECT 1"), "WF001", "behind the seal")
		if c.Ended() {
			t.Error("a live session was ended")
		}
	})
}

// A session that sends ten statements a second holds as well, since its hold lasts from one to
// the next, though the connection that asks whether it is wanted takes longer to open than a hold
// lasts without an answer. Where nothing asks, each of them is checked.
func TestStatementsWithPausesAreHeldWhereHoldsLast(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		slow := strings.Replace(w.URL(w.Name), w.Addr(), slowToOpen(t, w.Addr()), 1)
		const hold, pause = 90 * time.Millisecond, 100 * time.Millisecond
		for name, asked := range map[string]*world{
			"asked":     w.own(t, proxy.Options{Hold: hold, DatabaseURL: slow}),
			"not asked": w.own(t, proxy.Options{Hold: hold}),
		} {
			pauses := time.NewTicker(pause)
			defer pauses.Stop()
			checksOfFive := func() int {
				c := asked.fenced(t, "orders=34") // one that was slow at its login counts as far away
				defer c.Close()
				for range 3 {
					c.Must("SELECT 1")
				}
				before := asked.checks(t)
				for range 5 {
					<-pauses.C
					c.Must("SELECT 1")
				}
				return asked.checks(t) - before
			}
			if name == "asked" {
				stack.Eventually(t, "five statements need no check", func() bool { return checksOfFive() == 0 })
			} else if n := checksOfFive(); n == 0 {
				t.Errorf("five statements had no check, and nobody asked whether their hold is wanted")
			}
		}
	})
}

// slowToOpen starts a network on which a connection to a server takes a while to open, as a login
// by SCRAM does on a busy machine.
func slowToOpen(t *testing.T, server string) (addr string) {
	return stack.Relayed(t, server, func(up, client net.Conn) {
		time.Sleep(200 * time.Millisecond)
		_, _ = io.Copy(up, client)
	}, nil)
}

// A table is guarded while a session holds by a comment, which a guard can't see. The session
// is checked from the first refusal on.
func TestAGuardThatIsNewerThanAHold(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w = w.asked(t, proxy.Options{})
		c := w.connect(t)
		w.warm(behindGood, c)
		w.Exec(t, "SELECT wirefence.protect('public.jobs', 'orders')")
		refused := c.Simple(insertOf(34) + behindGood)
		if refused != nil { // otherwise the hold was over
			stack.WantState(t, refused, "WF002", "under the hold")
		}
		for range 5 {
			stack.WantState(t, c.Simple(insertOf(34)+behindGood), "", "behind the refusal")
		}
	})
}

// A client that sends just when the proxy gives its hold back gets its own answers, in order.
func TestStatementsAtTheMomentOfGivingBack(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		const period = 4 * time.Millisecond
		c := w.own(t, proxy.Options{Hold: period}).fenced(t, "orders=34")
		pause := time.NewTimer(0)
		for i := range 400 {
			<-pause.C
			c.Send(append([]pgproto3.FrontendMessage{&pgproto3.Query{String: fmt.Sprint("SELECT ", 2*i)}},
				append(stack.Unnamed(fmt.Sprint("SELECT ", 2*i+1)), &pgproto3.Sync{})...)...)
			first, second := c.Ready(1), c.Ready(1)
			if got := stack.Types(first) + " " + stack.Types(second); got != "TDCZ 12TDCZ" {
				t.Fatalf("answers of %d: %s", i, got)
			}
			if got := fmt.Sprint(stack.Column(first), stack.Column(second)); got != fmt.Sprintf("[%d] [%d]", 2*i, 2*i+1) {
				t.Fatalf("answers of %d: %s", i, got)
			}
			pause.Reset(period - time.Millisecond + time.Duration(i%40)*50*time.Microsecond)
		}
		stack.Eventually(t, "the hold is given back", func() bool { return w.held(t) == 0 })
	})
}

// The client's unnamed statement survives the proxy's own queries at each default isolation
// level.
func TestTheUnnamedStatementSurvives(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		for _, level := range []string{`read\ committed`, `repeatable\ read`} {
			c := w.isolated(t, level, "off")
			c.Must("SELECT 1")
			if w.holds(c) {
				t.Errorf("%s: a session that has just begun holds", level)
			}
			w.warm("", c)
			stack.WantState(t, c.Batch(&pgproto3.Parse{Query: "SELECT 'still here'"}), "", level)
			stack.Eventually(t, "the hold is given back", func() bool { return w.held(t) == 0 })
			for range 3 { // which makes it hold again
				all := c.Exchange(1, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})
				if got := fmt.Sprint(stack.Column(all)); got != "[still here]" {
					t.Errorf("%s: %s, %v", level, got, stack.Err(all))
				}
			}
		}
	})
}
