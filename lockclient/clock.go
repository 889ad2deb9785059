package lockclient

import "time"

// moment is one reading of two clocks: that of Go, which on most systems stops while the
// machine is suspended, and one that continues.
type moment struct {
	mono time.Time
	boot time.Duration
}

func (o *Options) now() moment { return moment{time.Now(), o.boot()} }

// since returns the time that has passed, by the clock on which more has passed.
func (m moment) since(start moment) time.Duration {
	return max(m.mono.Sub(start.mono), m.boot-start.boot)
}
