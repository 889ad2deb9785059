package fencingtest

import (
	"context"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/proxy"
)

// striker is between a proxy and its server. At one of the messages for the server it has
// the backend's statement cancelled.
type striker struct {
	addr    string
	strike  func()
	strikes sync.WaitGroup

	mu   sync.Mutex
	sent int // messages since arm
	at   int // the one to strike at, -1 for none
}

func newStriker(t *testing.T, server string) *striker {
	t.Helper()
	s := &striker{at: -1}
	s.addr = stack.Relayed(t, server, s.relay, nil)
	return s
}

// arm counts messages anew, to strike at one of them. It returns how many there were. No
// strike begins behind arm(-1).
func (s *striker) arm(at int) (sent int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent, s.sent, s.at = s.sent, 0, at
	return sent
}

// passed counts a message.
func (s *striker) passed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == s.at {
		s.strikes.Go(s.strike)
	}
	s.sent++
}

// relay passes messages on one by one; the first has no type.
func (s *striker) relay(to, from net.Conn) {
	for head := 4; ; head = 5 {
		msg, err := stack.ReadMessage(from, head)
		if err != nil {
			return
		}
		if head == 5 {
			s.passed()
		}
		if _, err := to.Write(msg); err != nil {
			return
		}
	}
}

// A cancel that comes at any message of an exchange, the proxy's own or the client's, costs
// that statement alone. The session then holds what it counts on, and no more: a takeover
// waits for its transaction, and is waited for by nothing else.
func TestCancelsAtEveryPointOfAnExchange(t *testing.T) {
	onEach(t, oldAndNew, func(t *testing.T, w *world) {
		w.preempt(t, nil)
		s := newStriker(t, w.Addr())
		w = w.own(t, proxy.Options{Upstream: "postgres://" + s.addr + "/?sslmode=disable", Hold: 40 * time.Millisecond})
		c := w.fenced(t, "orders=34")
		pid, _ := c.Key()
		conn := w.Direct(t)
		s.strike = func() {
			time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
			if _, err := conn.Exec(context.Background(), "SELECT pg_cancel_backend($1)", int(pid)); err != nil {
				t.Error(err)
			}
		}
		s.arm(-1)
		w.struck(t, c)
		points := s.arm(-1)
		tries, hits := 1, 0
		if !testing.Short() {
			tries = 3
		}
		for try := range tries * points {
			s.arm(try % points)
			if w.struck(t, c) {
				hits++
			}
			s.arm(-1)
			s.strikes.Wait()
			if c.TxStatus() != 'I' {
				c.Must("ROLLBACK")
			}
			c.Must("BEGIN", insertOf(34))
			r := w.rival(t)
			r.waits(t, "a session that was cancelled")
			c.Must("COMMIT")
			r.succeeds(t)
			if r.took > 2*time.Second+slack {
				t.Errorf("point %d: the seal took %s", try%points, r.took)
			}
			w.wantRefused(t, "behind the seal", c, late)
			w.back(t)
		}
		logged := strings.Count(w.Log(), "canceling statement due to user request")
		t.Logf("PostgreSQL %d: cancels at each of %d messages, %d times; the client got %d errors, the server cancelled %d statements", w.Major, points, tries, hits, logged)
		if hits == 0 && logged == 0 {
			t.Error("no cancel hit anything")
		}
	})
}

// struck runs what takes a hold in each way and gives it back, and reports whether a
// cancel hit it.
func (w *world) struck(t *testing.T, c *client) (hit bool) {
	t.Helper()
	for _, sql := range []string{
		"SELECT 1", "SELECT 2", "SELECT 3", "BEGIN", "SELECT 4", "COMMIT", "", "CALL committing()", "SELECT wirefence.check()", "SELECT 5", "SAVEPOINT none", "SELECT 6",
	} {
		if sql == "" {
			stack.Eventually(t, "the hold is given back", func() bool { return w.held(t) == 0 })
			continue
		}
		run := c.Simple
		if sql == "SELECT 2" || sql == "CALL committing()" {
			run = func(sql string) error { return c.Extended(sql) }
		}
		switch state := stack.State(run(sql)); {
		case state == "57014":
			hit = true
		case state != "" && state != "25P02" && state != "25P01":
			t.Errorf("%s: %q", sql, state)
		}
	}
	return hit
}
