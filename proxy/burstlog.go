package proxy

import (
	"sync"
	"time"
)

// burstPeriod is how long equal events are counted before their number is logged.
const burstPeriod = 10 * time.Second

// burstLog bounds the log lines of an event that may hit every client at once: the caller
// logs the first one, and report logs the number of later ones after each period.
type burstLog struct {
	// report logs the number of events in a period and the last error.
	report func(n int, last error)

	mu      sync.Mutex
	timer   *time.Timer // nil: there was no event for a period
	n       int
	last    error
	stopped bool
}

// record counts an event. It reports whether the caller is to log it.
func (b *burstLog) record(err error) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer == nil {
		if !b.stopped {
			b.timer = time.AfterFunc(burstPeriod, b.endPeriod)
		}
		return true
	}
	b.n, b.last = b.n+1, err
	return false
}

func (b *burstLog) endPeriod() {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.stopped:
	case b.n == 0:
		b.timer = nil
	default:
		b.flush()
		b.timer.Reset(burstPeriod)
	}
}

// flush reports the counted events. The caller holds the lock.
func (b *burstLog) flush() {
	if b.n > 0 {
		b.report(b.n, b.last)
		b.n, b.last = 0, nil
	}
}

// stop reports the counted events. From then on the caller logs each event.
func (b *burstLog) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	b.flush()
}
