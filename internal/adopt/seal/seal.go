// Package seal records the grant of an adopted lock in all databases.
//
// Of this module it imports fence and lockclient.
package seal

import (
	"context"
	"sync"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

// Rounds bounds the number of seals of a grant whose token is too low, as in lockclient.
const Rounds = 8

// Everywhere returns 0 if the grant was sealed in all databases, otherwise the token that the next
// one must exceed. The first database that fails ends the wait of the others.
func Everywhere(ctx context.Context, sealers []lockclient.Sealer, grant fence.Grant) (last fence.Token, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, sealer := range sealers {
		all.Go(func() {
			behind, failed := in(ctx, sealer, grant)
			mu.Lock()
			defer mu.Unlock()
			if last = max(last, behind); failed != nil && err == nil {
				err = failed
				cancel(failed)
			}
		})
	}
	all.Wait()
	return last, err
}

func in(ctx context.Context, sealer lockclient.Sealer, grant fence.Grant) (behind fence.Token, err error) {
	sealed, err := sealer.Seal(ctx, grant.Resource, grant.Token, grant.Holder)
	if err != nil || sealed {
		return 0, err
	}
	last, err := sealer.LastToken(ctx, grant.Resource)
	return max(last, grant.Token), err
}
