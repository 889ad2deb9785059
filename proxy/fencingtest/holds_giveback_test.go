package fencingtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// The proxy checks a session that has paused. A busy one holds, and gives the hold back when it
// pauses.
func TestABusySessionHolds(t *testing.T) {
	onEach(t, everyVersion, func(t *testing.T, w *world) {
		c := w.fenced(t, "orders=34")
		c.Must("INSERT INTO jobs (note) VALUES ('a check')")
		if n := w.held(t); n != 0 {
			t.Fatalf("a session that has just begun holds %d locks", n)
		}
		w.warm("", c)
		stack.Eventually(t, "the hold is given back", func() bool { return w.held(t) == 0 })
		c.Must("INSERT INTO jobs (note) VALUES ('again')")
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
			c.Must("SELECT 1", "SELECT 2", "SELECT 3")
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
