package lockclient

import "time"

// A machine that was suspended has stood still by the monotonic clock, which
// all timers go by. So while a client has leases, it compares that clock with
// the one that went on, and after a jump lets every lease look at both.
const (
	clockCheck = time.Second
	clockJump  = 10 * time.Millisecond // less is the time between two readings
)

// ahead is by how much the clock that goes on is ahead of the monotonic one,
// from some moment on.
func (m moment) ahead(of moment) time.Duration {
	return m.boot - of.boot - m.mono.Sub(of.mono)
}

// watch begins to compare the clocks unless that is done already. The caller
// holds mu.
func (c *Client) watch() {
	if !c.watching {
		c.watching = true
		c.compared = c.opts.now()
		time.AfterFunc(clockCheck, c.compareClocks)
	}
}

// compareClocks is called again and again, as long as there are leases.
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

// jump is closed when the clocks have jumped.
func (c *Client) jump() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.jumped
}
