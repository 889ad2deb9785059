package lockclient

import "time"

// The monotonic clock, by which all timers run, stops while the machine is
// suspended. So while a client has leases, it compares that clock with the one
// that continues, and after a jump every lease reads both.
const (
	clockCheck = time.Second
	clockJump  = 10 * time.Millisecond // more than the time between two readings
)

// ahead returns by how much the continuing clock has gained on the monotonic one since
// another reading.
func (m moment) ahead(of moment) time.Duration {
	return m.boot - of.boot - m.mono.Sub(of.mono)
}

// watch starts comparing the clocks if nothing does yet. The caller holds mu.
func (c *Client) watch() {
	if !c.watching {
		c.watching = true
		c.compared = c.opts.now()
		time.AfterFunc(clockCheck, c.compareClocks)
	}
}

// compareClocks runs again after clockCheck, as long as there are leases.
func (c *Client) compareClocks() {
	now := c.opts.now()
	c.mu.Lock()
	if len(c.leases) == 0 {
		c.watching = false
		c.mu.Unlock()
		return
	}
	var held []*Lease
	if ahead := now.ahead(c.compared); ahead > clockJump || ahead < -clockJump {
		c.compared = now
		close(c.jumped)
		c.jumped = make(chan struct{})
		held = c.heldLocked()
	}
	time.AfterFunc(clockCheck, c.compareClocks)
	c.mu.Unlock()
	for _, lease := range held {
		lease.recheck()
	}
}

// jump returns a channel that is closed when the clocks have jumped.
func (c *Client) jump() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jumped
}
