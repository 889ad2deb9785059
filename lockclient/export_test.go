package lockclient

import "time"

// WithBootClock replaces the clock that goes on during a suspend.
func (o Options) WithBootClock(boot func() time.Duration) Options {
	o.boot = boot
	return o
}
