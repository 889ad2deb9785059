package main

import (
	"errors"
	"sync"
)

// tasks are goroutines that somebody waits for. The zero value has none.
type tasks struct {
	running sync.WaitGroup
	mu      sync.Mutex
	failed  error
}

func (t *tasks) run(do func() error) {
	t.running.Go(func() {
		if err := do(); err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.failed = errors.Join(t.failed, err)
		}
	})
}

// wait returns when all have ended, with err and what they failed by.
func (t *tasks) wait(err error) error {
	t.running.Wait()
	return errors.Join(err, t.failed)
}
