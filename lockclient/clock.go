package lockclient

import "time"

// moment is one reading of two clocks: Go's monotonic one, which on most
// systems stands still while the machine is suspended, and one that doesn't.
type moment struct {
	mono time.Time
	boot time.Duration
}

func (o *Options) now() moment { return moment{time.Now(), o.boot()} }

// since returns how much time has passed, by the clock that saw more of it.
func (m moment) since(start moment) time.Duration {
	return max(m.mono.Sub(start.mono), m.boot-start.boot)
}
