package api

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

// length returns the number of takers of a name, waiting ones included.
func (q *queues) length(name string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if line := q.lines[name]; line != nil {
		return line.Len()
	}
	return 0
}

func TestQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueues()
		free, err := q.take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var turns []int
		ctx, leave := context.WithCancel(t.Context())
		for i := range 5 {
			own := t.Context()
			if i == 0 || i == 2 { // the next, and one amid the others
				own = ctx
			}
			go func() {
				if free, err := q.take(own, "a"); err == nil {
					turns = append(turns, i)
					free()
				}
			}()
			synctest.Wait()
		}
		other, err := q.take(t.Context(), "b")
		if err != nil || len(turns) > 0 || q.length("a") != 6 {
			t.Fatalf("%v, %v, %d", err, turns, q.length("a"))
		}
		other()
		leave()
		synctest.Wait()
		if len(turns) > 0 || q.length("a") != 4 {
			t.Errorf("before it is free: %v, %d", turns, q.length("a"))
		}
		free()
		synctest.Wait()
		if !slices.Equal(turns, []int{1, 3, 4}) || len(q.lines) != 0 {
			t.Errorf("turns %v, left %v", turns, q.lines)
		}
		// A taker that leaves at its turn passes the turn on.
		free, _ = q.take(t.Context(), "a")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.take(ended, "a"); err == nil {
			t.Error("two have it")
		}
		free()
		if len(q.lines) != 0 {
			t.Errorf("left %v", q.lines)
		}
	})
}
