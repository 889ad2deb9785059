package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// ErrNotReplicated says that a grant or a renewal did not reach Options.Replicas in time.
// A lockclient.Client gives such a grant back, and repeats such a renewal.
var ErrNotReplicated = errors.New("not received by enough replicas in time")

// redirectPause is the pause before a cluster is asked again for the node of a key.
const redirectPause = 20 * time.Millisecond

// renewReplicated restarts the ttl and waits for the replicas.
//
// WAIT counts the replicas that have received what its own connection wrote. On another
// connection it would count replicas that have received nothing, and after a failover it
// would count those of a master that does not know the lease. So renewReplicated sends
// the renewal and WAIT in one pipeline, which go-redis sends on one connection and
// repeats as a whole. A master sends its replicas a grant before the grant's renewal. A
// master that was elected in between either has the lease, and WAIT waits for its
// replicas, or answers that nobody has it.
func (s *Store) renewReplicated(ctx context.Context, key, holder string, ttl time.Duration) (bool, error) {
	for end := time.Now().Add(s.opts.ReplicaTimeout); ; {
		held, err := s.renewAtMaster(ctx, key, holder, ttl)
		switch {
		case err == nil, errors.Is(err, ErrNotReplicated):
			return held, err
		case !s.mayRetryElsewhere(err) || ctx.Err() != nil || time.Now().After(end):
			return false, fmt.Errorf("%w: %w", ErrNotReplicated, err)
		}
		select {
		case <-time.After(redirectPause):
		case <-ctx.Done():
		}
	}
}

// renewAtMaster asks the master of the key. A master that is migrating the key may
// redirect to another by ASK, and the other accepts the request only after ASKING.
func (s *Store) renewAtMaster(ctx context.Context, key, holder string, ttl time.Duration) (bool, error) {
	cluster, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		return s.renewAndWait(ctx, s.client, false, key, holder, ttl)
	}
	master, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return false, err
	}
	held, err := s.renewAndWait(ctx, master, false, key, holder, ttl)
	if addr, ok := goredis.IsAskError(err); ok {
		if other := masterAt(ctx, cluster, addr); other != nil {
			held, err = s.renewAndWait(ctx, other, true, key, holder, ttl)
		}
	}
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		cluster.ReloadState(ctx)
	}
	return held, err
}

func masterAt(ctx context.Context, cluster *goredis.ClusterClient, addr string) *goredis.Client {
	found := make(chan *goredis.Client, 1)
	_ = cluster.ForEachMaster(ctx, func(_ context.Context, master *goredis.Client) error {
		if master.Options().Addr == addr {
			found <- master
		}
		return nil
	})
	select {
	case master := <-found:
		return master
	default:
		return nil
	}
}

// mayRetryElsewhere reports whether another node may soon answer what one could not.
func (s *Store) mayRetryElsewhere(err error) bool {
	if _, ok := s.client.(*goredis.ClusterClient); !ok {
		return false // go-redis has tried again itself
	}
	if reply := goredis.Error(nil); !errors.As(err, &reply) {
		return true
	}
	_, moved := goredis.IsMovedError(err)
	_, ask := goredis.IsAskError(err)
	return moved || ask || goredis.IsTryAgainError(err) || goredis.IsReadOnlyError(err) || goredis.IsClusterDownError(err)
}

// pipeliner is one server, or a client whose pipelines go to one server as a whole.
type pipeliner interface{ Pipeline() goredis.Pipeliner }

// renewAndWait sends the renewal and WAIT together. A server that does not know the
// script gets its text in a second attempt.
func (s *Store) renewAndWait(ctx context.Context, server pipeliner, asking bool, key, holder string, ttl time.Duration) (bool, error) {
	var renewed *goredis.Cmd
	timeout := s.waitTimeout(ctx)
	waited := goredis.NewIntCmd(ctx, "wait", s.opts.Replicas, timeout.Milliseconds())
	for _, run := range []func(context.Context, goredis.Scripter, []string, ...any) *goredis.Cmd{renewScript.EvalSha, renewScript.Eval} {
		pipe := server.Pipeline()
		if asking {
			pipe.Do(ctx, "asking")
		}
		renewed = run(ctx, pipe, []string{key}, holder, milliseconds(ttl))
		_ = pipe.Process(ctx, waited)
		_, _ = pipe.Exec(ctx) // each command has its error
		if !goredis.HasErrorPrefix(renewed.Err(), "NOSCRIPT") {
			break
		}
	}
	held, err := renewed.Bool()
	if err != nil || !held {
		return false, err
	}
	replicas, err := waited.Result()
	if err != nil {
		return false, err
	}
	if replicas < int64(s.opts.Replicas) {
		return false, fmt.Errorf("%w: %d of %d have it after %v", ErrNotReplicated, replicas, s.opts.Replicas, timeout)
	}
	return true, nil
}

// waitTimeout leaves WAIT a part of what ctx has left, so that its answer comes
// before the end. At 0 it would wait for ever.
func (s *Store) waitTimeout(ctx context.Context) time.Duration {
	timeout := s.opts.ReplicaTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end)*3/4)
	}
	return max(timeout, time.Millisecond).Truncate(time.Millisecond)
}
