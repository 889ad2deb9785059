package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-zookeeper/zk"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var _ lockclient.Counter = (*Store)(nil)

// Counted implements lockclient.Counter. Unlike an acquire it creates no node.
func (s *Store) Counted(ctx context.Context, resource fence.Resource) (fence.Token, error) {
	path := s.Path(resource)
	count, err := call(ctx, s, func() (fence.Token, error) {
		return repeat(ctx, func() (fence.Token, error) {
			x, err := s.anySession(ctx)
			if err != nil {
				return 0, err
			}
			data, _, err := x.conn.Get(path)
			if errors.Is(err, zk.ErrNoNode) {
				return 0, nil
			} else if err != nil {
				return 0, x.explain(err)
			}
			count, err := strconv.ParseInt(string(data), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%w: %s is not a number", lockclient.ErrCounter, path)
			}
			return fence.Token(count), nil
		})
	})
	if err != nil {
		return 0, s.fail(ctx, "reading the token counter of", resource, err)
	}
	return count, nil
}
