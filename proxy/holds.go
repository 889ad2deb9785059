package proxy

import (
	"sync"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// holdReleaser has sessions give their holds back that they needn't keep. One goroutine
// serves all sessions: each is looked at once in Config.Hold, so the one that is due next is
// at the head of a queue.
type holdReleaser struct {
	mu    sync.Mutex
	queue []holdDeadline
	wake  chan struct{} // the queue has a new head
}

// holdDeadline is when to look at a session's hold.
type holdDeadline struct {
	c  *conn
	at time.Time
}

// releaseSlack is how long run sleeps beyond the first deadline, so that it wakes once
// for several sessions.
const releaseSlack = 5 * time.Millisecond

func newHoldReleaser() *holdReleaser { return &holdReleaser{wake: make(chan struct{}, 1)} }

// schedule has run release the session's hold at a time. The caller holds the session's
// lock.
func (r *holdReleaser) schedule(c *conn, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := len(r.queue)
	for i > 0 && r.queue[i-1].at.After(at) {
		i--
	}
	r.queue = append(r.queue, holdDeadline{})
	copy(r.queue[i+1:], r.queue[i:])
	r.queue[i] = holdDeadline{c, at}
	if i == 0 {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// hurry has run look at all sessions at once: a takeover waits for one of them at least.
func (r *holdReleaser) hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for i := range r.queue {
		if r.queue[i].at.After(now) {
			r.queue[i].at = now
		}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// popExpired takes out a session that is due. If there is none, it returns the time until
// the next one is, -1 for an empty queue.
func (r *holdReleaser) popExpired(now time.Time) (c *conn, left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		r.queue = nil
		return nil, -1
	}
	if left := r.queue[0].at.Sub(now); left > 0 {
		return nil, left
	}
	c = r.queue[0].c
	r.queue[0] = holdDeadline{}
	r.queue = r.queue[1:]
	return c, 0
}

// run looks at the sessions until stop is closed.
func (r *holdReleaser) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c, left := r.popExpired(time.Now())
		if c != nil {
			c.guard(func() { c.releaseHold(r) })
			continue
		}
		if left < 0 {
			left = time.Hour
		}
		timer.Reset(left + releaseSlack)
		select {
		case <-timer.C:
		case <-r.wake:
		case <-stop:
			return
		}
	}
}

// releaseHold has the core give its hold back, or schedules the session again.
func (c *conn) releaseHold(r *holdReleaser) {
	c.withCore(func(core *session.Session) {
		send, next := core.ReleaseHold()
		c.holdScheduled = !next.IsZero()
		if c.holdScheduled {
			r.schedule(c, next)
		}
		if send {
			c.driver.wakeClientSide()
		}
	})
}

// startHoldReleaser starts the holdReleaser, and returns the function that stops it.
func (s *Server) startHoldReleaser() (stop func()) {
	if s.config.Hold <= 0 {
		return func() {}
	}
	over := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { s.holdReleaser.run(over) })
	return func() {
		close(over)
		running.Wait()
	}
}
