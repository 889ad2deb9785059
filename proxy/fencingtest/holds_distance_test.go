package fencingtest

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// distance is a network to a server that takes its time, the same for all bytes of one
// direction.
type distance struct {
	addr string
	way  time.Duration // from one side to the other
}

// far starts a network with a round trip of its own to a server, ended with the test.
func far(t *testing.T, server string, roundTrip time.Duration) *distance {
	t.Helper()
	d := &distance{way: roundTrip / 2}
	d.addr = stack.Relayed(t, server, d.pass, d.pass)
	return d
}

// pass copies what one side sends, each read as late as the way takes, and its end.
func (d *distance) pass(to, from net.Conn) {
	type chunk struct {
		bytes []byte
		due   time.Time
	}
	underWay := make(chan chunk, 10_000)
	var sending sync.WaitGroup
	sending.Go(func() {
		late := time.NewTimer(0)
		defer late.Stop()
		for c := range underWay {
			late.Reset(time.Until(c.due))
			<-late.C
			_, _ = to.Write(c.bytes)
		}
	})
	for {
		b := make([]byte, 32<<10)
		n, err := from.Read(b)
		if n > 0 {
			underWay <- chunk{b[:n], time.Now().Add(d.way)}
		}
		if err != nil {
			break
		}
	}
	close(underWay)
	sending.Wait()
}

// A takeover of what busy and idle sessions hold ends none of them, however far the proxy is
// from the server, and waits for a few round trips at most. The sessions call
// procedures, too, which need a hold at any distance.
func TestTakeoversFromFarAway(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures, for half a minute")
	}
	const sessions, rounds = 8, 10
	for _, roundTrip := range []time.Duration{100 * time.Microsecond, 20 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(fmt.Sprint(roundTrip), func(t *testing.T) {
			w := newWorld(t, 15)
			way := far(t, w.Addr(), roundTrip)
			w = w.own(t, proxy.Options{Upstream: "postgres://" + way.addr + "/", DatabaseURL: strings.Replace(w.URL(w.Name), w.Addr(), way.addr, 1)})
			var token atomic.Int64
			token.Store(34)
			var took []time.Duration
			stop := make(chan struct{})
			var busy sync.WaitGroup
			for i := range sessions {
				busy.Go(func() { w.work(t, &token, i, stop) })
			}
			idle := make([]*client, sessions)
			for i := range idle {
				idle[i] = w.connect(t, "user", "app")
			}
			held := 0
			for range rounds {
				var hold sync.WaitGroup
				for _, c := range idle {
					hold.Go(func() { becomeHolder(t, c, token.Load()) })
				}
				hold.Wait()
				pause(300 * time.Millisecond) // a session that is idle for 250 ms may be taken for a frozen one
				held = max(held, w.held(t))
				began := time.Now()
				w.Seal(t, "orders", token.Load()+1)
				took = append(took, time.Since(began))
				token.Add(1)
			}
			close(stop)
			busy.Wait()
			for i, c := range idle {
				if err := c.Simple("SELECT 1"); c.Ended() {
					t.Errorf("idle session %d was ended: %v", i, err)
				}
			}
			slices.Sort(took)
			t.Logf("round trip %s: %d sessions held at most; a seal takes %s in the median, %s at most", roundTrip, held, took[rounds/2].Round(time.Millisecond), took[rounds-1].Round(time.Millisecond))
			if most := took[rounds-1]; most > defaultPreempt/2 {
				t.Errorf("a seal took %s", most)
			}
			if held < sessions && roundTrip < 50*time.Millisecond {
				t.Errorf("%d sessions held at most", held)
			}
		})
	}
}

// becomeHolder has an idle session hold, where it may hold between its statements.
func becomeHolder(t *testing.T, c *client, token int64) {
	for _, sql := range []string{fmt.Sprintf("SET wirefence.token = 'orders=%d'", token), "SELECT 1", "SELECT 2", "CALL committing()"} {
		if err := c.Simple(sql); err != nil {
			t.Errorf("%s: %v", sql, err)
			return
		}
	}
}

// work writes without a pause under the current token, by a procedure in each other session.
func (w *world) work(t *testing.T, token *atomic.Int64, i int, stop <-chan struct{}) {
	c := w.connect(t, "user", "app")
	carried := int64(0)
	for {
		select {
		case <-stop:
			return
		default:
		}
		if now := token.Load(); now != carried {
			c.Must(fmt.Sprintf("SET wirefence.token = 'orders=%d'", now))
			carried = now
		}
		sql := "INSERT INTO jobs (note) VALUES ('busy')"
		if i%2 == 0 {
			sql = "CALL committing()"
		}
		if err := c.Simple(sql); err != nil && stack.State(err) != "WF001" {
			t.Errorf("busy session %d: %v", i, err)
			return
		}
	}
}

// pause lets time pass.
func pause(d time.Duration) { <-time.After(d) }
