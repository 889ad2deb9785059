package lockclient

import "sync/atomic"

// workers are the goroutines that run acquires, so that a caller whose context ends need
// not wait for the store. Idle workers are kept: a goroutine whose stack has grown saves
// a sixth of the time of an acquire.
type workers struct {
	jobs chan func() // for idle ones
	idle atomic.Int32
}

// maxIdle is the number of idle workers that a client keeps until it is closed.
const maxIdle = 16

// do runs a job on an idle worker, otherwise on a new one. The caller has called begin;
// do takes over the goroutine that begin counted.
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
