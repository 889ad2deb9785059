package lockclient

import (
	"context"
	"sync"
	"time"
)

// longestPause bounds the pause before a lost name is followed again.
const longestPause = 5 * time.Second

// FollowNames returns a listener for NewNotices that follows each name in a goroutine of
// its own. follow reports to n what it hears of the name until ctx ends or it fails, and
// returns whether it has heard anything; FollowNames repeats a failed follow after a
// pause.
func FollowNames(follow func(ctx context.Context, n *Notices, name string) (heard bool)) func(ctx context.Context, n *Notices) {
	return func(ctx context.Context, n *Notices) {
		var running sync.WaitGroup
		defer running.Wait()
		cancels := map[string]context.CancelFunc{}
		defer func() {
			for _, cancel := range cancels {
				cancel()
			}
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case <-n.Changed():
			}
			begin, cease := n.Changes(ctx)
			for _, name := range cease {
				cancels[name]()
				delete(cancels, name)
			}
			for _, name := range begin {
				nameCtx, cancel := context.WithCancel(ctx)
				cancels[name] = cancel
				running.Go(func() { followOn(nameCtx, func() bool { return follow(nameCtx, n, name) }) })
			}
		}
	}
}

// followOn calls follow again and again until ctx ends.
func followOn(ctx context.Context, follow func() bool) {
	const shortest = 50 * time.Millisecond
	for pause := shortest; ; pause = min(2*pause, longestPause) {
		if follow() {
			pause = shortest
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
