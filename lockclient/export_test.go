package lockclient

import "time"

// WithBootClock replaces the clock that continues during a suspend.
func (o Options) WithBootClock(boot func() time.Duration) Options {
	o.boot = boot
	return o
}
