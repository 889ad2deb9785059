package proxy

import (
	"sync"
	"time"
)

// floodPeriod is how long events alike are counted before their number is logged.
const floodPeriod = 10 * time.Second

// flood bounds the log lines of an event that may hit every client at once: the first
// is logged by itself, and those that follow as a number at the end of each period.
type flood struct {
	// report logs how many there were in a period, and what the last one was.
	report func(n int, last error)

	mu      sync.Mutex
	timer   *time.Timer // nil: nothing has happened for a period
	n       int
	last    error
	stopped bool
}

// note notes an event, and reports whether it is to be logged by itself.
func (f *flood) note(err error) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer == nil {
		if !f.stopped {
			f.timer = time.AfterFunc(floodPeriod, f.endPeriod)
		}
		return true
	}
	f.n, f.last = f.n+1, err
	return false
}

func (f *flood) endPeriod() {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.stopped:
	case f.n == 0:
		f.timer = nil
	default:
		f.flush()
		f.timer.Reset(floodPeriod)
	}
}

// flush is called with the lock held.
func (f *flood) flush() {
	if f.n > 0 {
		f.report(f.n, f.last)
		f.n, f.last = 0, nil
	}
}

// stop logs what has been counted. What is noted afterwards is logged by itself.
func (f *flood) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
	f.flush()
}
