package zookeeper

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var _ lockclient.Looker = (*Store)(nil)

// Look implements lockclient.Looker. Only the holder's own store knows the remaining
// time; Look returns the whole ttl.
func (s *Store) Look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	path := s.Path(resource)
	seen, err := call(ctx, s, func() (lockclient.Attempt, error) {
		return repeat(ctx, func() (lockclient.Attempt, error) {
			x, err := s.anySession(ctx)
			if err != nil {
				return lockclient.Attempt{}, err
			}
			if err := x.catchUp(path); err != nil {
				return lockclient.Attempt{}, err
			}
			data, _, err := x.conn.Get(leaseOf(path))
			if errors.Is(err, zk.ErrNoNode) {
				return lockclient.Attempt{}, nil
			}
			holder, ttl := parseLease(data)
			return lockclient.Attempt{Holder: holder, Remaining: ttl}, x.explain(err)
		})
	})
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "looking at the lease of", resource, err)
	}
	return seen, nil
}
