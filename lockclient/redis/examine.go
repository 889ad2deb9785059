package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var _ lockclient.Counter = (*Store)(nil)

// Counted implements lockclient.Counter.
func (s *Store) Counted(ctx context.Context, resource fence.Resource) (fence.Token, error) {
	text, err := s.client.Get(ctx, TokenKey(resource)).Result()
	if errors.Is(err, goredis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, s.fail(ctx, "reading the token counter of", resource, err)
	}
	count, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, s.fail(ctx, "reading the token counter of", resource, fmt.Errorf("%w: %s is not a number", lockclient.ErrCounter, TokenKey(resource)))
	}
	return fence.Token(count), nil
}

// Node is what one Redis server reports about itself.
type Node struct {
	Address string
	// Info are the fields of INFO, such as redis_version, role and
	// connected_slaves.
	Info map[string]string
	// Config are maxmemory, maxmemory-policy, appendonly, appendfsync and save.
	Config map[string]string
	// Clock is the time of the server, read between Asked and Answered.
	Clock, Asked, Answered time.Time
	// Err is why some of this is missing; IsForbidden recognises a missing right.
	Err error
}

// IsForbidden reports whether err says that the user of a connection may not run a
// command.
func IsForbidden(err error) bool {
	var reply goredis.Error
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "NOPERM")
}

// Nodes reads the settings of the server, or of every master of a cluster. It returns an
// error if it cannot find them; each node has an error of its own. It changes nothing.
func (s *Store) Nodes(ctx context.Context) ([]Node, error) {
	switch c := s.client.(type) {
	case *goredis.Client:
		return []Node{examine(ctx, c)}, nil
	case *goredis.ClusterClient:
		var mu sync.Mutex
		var all []Node
		err := c.ForEachMaster(ctx, func(ctx context.Context, master *goredis.Client) error {
			node := examine(ctx, master)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, node)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("redis at %s: finding the masters: %w", s.address, err)
		}
		return all, nil
	}
	return nil, fmt.Errorf("redis at %s: cannot examine a %T", s.address, s.client)
}

func examine(ctx context.Context, c *goredis.Client) Node {
	n := Node{Address: address(c), Info: map[string]string{}, Config: map[string]string{}}
	info, infoErr := c.Info(ctx).Result()
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			n.Info[name] = value
		}
	}
	n.Asked = time.Now()
	clock, clockErr := c.Time(ctx).Result()
	n.Clock, n.Answered = clock, time.Now()
	errs := []error{infoErr, clockErr}
	for _, name := range []string{"maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save"} {
		got, err := c.ConfigGet(ctx, name).Result()
		if err != nil {
			errs = append(errs, err)
			break
		}
		n.Config[name] = got[name]
	}
	n.Err = errors.Join(errs...)
	return n
}
