package queuetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// crowd is workers that come and go.
type crowd struct {
	*world
	acts   []string
	chance *rand.Rand
	all    []*member
	born   int

	mu      sync.Mutex // guards the fields below
	counts  map[string]int
	said    []event // about the ends of writes
	reading sync.WaitGroup
}

type member struct {
	*worker
	until time.Time // when it is continued; zero if it runs
}

// join starts a worker, in the place of another.
func (c *crowd) join(t *testing.T, at int) {
	c.born++
	m := &member{worker: c.start(t, fmt.Sprint("w", c.born), *seed*1000+c.born, c.acts...)}
	c.all[at] = m
	c.reading.Go(func() {
		for e := range m.events {
			c.mu.Lock()
			c.counts[e.Event]++
			if e.Event == "refused" || e.Event == "wrote" {
				c.said = append(c.said, e)
			}
			c.mu.Unlock()
			switch {
			case e.Event == "refused" && e.State != "WF001", e.Event == "failed" && !passing[e.State]:
				t.Errorf("worker %s: %+v", m.name, e)
			}
		}
	})
}

// passing are the SQLSTATEs of a failure that passes: the proxy has ended, or a session that was
// stopped inside of its transaction was ended.
var passing = map[string]bool{"": true, "57P01": true, "25P03": true, "08006": true, "08P01": true, "ECONNREFUSED": true, "ECONNRESET": true, "EPIPE": true}

// count counts n more of what there is, and returns how many there are.
func (c *crowd) count(what string, n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what] += n
	return c.counts[what]
}

// disturb does what happens to a crowd: it stops a worker for longer than the queue waits, or kills
// one, or restarts the proxy, or cancels a job.
func (c *crowd) disturb(t *testing.T) {
	at := c.chance.IntN(len(c.all))
	m := c.all[at]
	switch what := c.chance.IntN(40); {
	case !m.until.IsZero():
	case what == 0:
		c.count("restarts of the proxy", 1)
		c.restartProxy(t)
	case what < 3:
		c.count("kills", 1)
		m.worker.kill()
		c.join(t, at)
	case what < 10:
		c.count("stops", 1)
		m.signal(t, syscall.SIGSTOP)
		m.until = time.Now().Add(c.wait + time.Duration(c.chance.Int64N(int64(c.wait))))
	case what < 12 && c.cancel != nil:
		c.count("cancels", 1)
		if err := c.cancel(t.Context(), c.world); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("cancel a job: %v", err)
		}
	}
	for _, m := range c.all {
		if !m.until.IsZero() && time.Now().After(m.until) {
			m.signal(t, syscall.SIGCONT)
			m.until = time.Time{}
		}
	}
}

// Workers do all that a worker does, are stopped for longer than their queue waits, are killed, and
// lose the proxy. Every result is of the take that completed its job, and every worker that was
// refused had lost its job.
//
// Evidence: a-worker-that-lost-its-row-writes-nothing
func TestSoak(t *testing.T) {
	each(t, time.Second, func(t *testing.T, w *world) {
		c := &crowd{world: w, chance: rand.New(rand.NewPCG(uint64(*seed), 0)), all: make([]*member, 4), counts: map[string]int{}}
		for range 6 {
			c.acts = append(c.acts, "done")
		}
		c.acts = append(c.acts, w.acts...)
		stop := w.rescuing(t)
		defer stop()
		for i := range c.all {
			c.join(t, i)
		}
		var quiet time.Time // since when nothing is disturbed any more
		left := 0
		for tick := 0; ; tick++ {
			if tick%*hurry == 0 { // where there are many jobs, to count them takes long
				var err error
				if left, err = strconv.Atoi(w.query(t, w.left)[0]); err != nil {
					t.Fatal(err)
				}
			}
			if c.count("jobs", 0) >= *jobs && c.count("stops", 0) >= *stops && quiet.IsZero() {
				quiet = time.Now()
			}
			switch {
			case quiet.IsZero() && left < 20**hurry:
				if err := w.insert(w, 20**hurry); err != nil {
					t.Fatal(err)
				}
				left += 20 * *hurry
				c.count("jobs", 20**hurry)
			case !quiet.IsZero() && left == 0:
				for _, m := range c.all {
					m.worker.kill()
				}
				c.reading.Wait()
				w.judge(t, c.said)
				t.Logf("%s, seed %d: %v", w.name, *seed, c.counts)
				if c.counts["wrote"] == 0 || c.counts["refused"] == 0 && *stops >= 100 {
					t.Errorf("nothing was written, or nothing refused: %v", c.counts)
				}
				return
			case !quiet.IsZero() && time.Since(quiet) > 2*time.Minute:
				t.Fatalf("%d jobs are left: %v", left, c.counts)
			}
			if quiet.IsZero() {
				c.disturb(t)
			} else {
				for _, m := range c.all {
					m.signal(t, syscall.SIGCONT)
				}
			}
			time.Sleep(30 * time.Millisecond)
		}
	})
}
