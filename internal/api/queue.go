package api

import (
	"container/list"
	"context"
	"sync"
)

// queues give each name to one taker at a time, in the order of arrival.
type queues struct {
	mu    sync.Mutex
	lines map[string]*list.List // of chan struct{}, closed when it is the first
}

func newQueues() *queues { return &queues{lines: map[string]*list.List{}} }

// take waits for its turn at a name, which lasts until free is called.
func (q *queues) take(ctx context.Context, name string) (free func(), err error) {
	q.mu.Lock()
	line := q.lines[name]
	if line == nil {
		line = list.New()
		q.lines[name] = line
	}
	turn := make(chan struct{})
	place := line.PushBack(turn)
	if line.Len() == 1 {
		close(turn)
	}
	q.mu.Unlock()
	leave := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		first := line.Front() == place
		line.Remove(place)
		switch {
		case line.Len() == 0:
			delete(q.lines, name)
		case first:
			close(line.Front().Value.(chan struct{}))
		}
	}
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
