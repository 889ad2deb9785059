package lockclient

import "sync/atomic"

// workers are the goroutines that acquires run on, so that a caller whose
// context ends need not wait for the store. They are kept while idle: a
// goroutine with its stack grown saves a sixth of the time of an acquire.
type workers struct {
	jobs chan func() // for idle ones
	idle atomic.Int32
}

// maxIdle is how many idle workers a client keeps until it is closed.
const maxIdle = 16

// do runs a job on an idle worker, else on a new one. The caller has called
// begin; do takes over what that counted.
func (c *Client) do(job func()) {
	select {
	case c.workers.jobs <- job:
		c.running.Done() // the worker itself is counted
	default:
		go c.work(job)
	}
}

func (c *Client) work(job func()) {
	defer c.running.Done()
	for {
		job()
		if c.workers.idle.Add(1) > maxIdle {
			c.workers.idle.Add(-1)
			return
		}
		select {
		case job = <-c.workers.jobs:
			c.workers.idle.Add(-1)
		case <-c.closing:
			return
		}
	}
}
