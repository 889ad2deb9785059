package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// keepAlive restarts the time of an etcd lease and returns how many seconds it lasts, 0
// if it has ended. KeepAliveOnce of the client would retry without a pause while no
// server is reachable.
func keepAlive(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return 0, clientv3.ContextError(ctx, err)
	}
	return max(0, resp.TTL), nil
}

func revoke(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) error {
	_, err := client.Revoke(ctx, id)
	return err
}

// isGone reports whether an etcd lease did not exist any more when it was revoked.
func isGone(err error) bool { return errors.Is(err, rpctypes.ErrLeaseNotFound) }

// cleanupTimeout bounds how long Close waits.
const cleanupTimeout = 5 * time.Second

// revokeUnused revokes an unused etcd lease in the background; if that fails, the lease ends
// after its ttl.
func (s *Store) revokeUnused(client *clientv3.Client, id clientv3.LeaseID, ttl time.Duration) {
	s.cleanups.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), min(ttl, cleanupTimeout))
		defer cancel()
		_ = revoke(ctx, client, id)
	})
}

// seconds rounds up: a lease must not end in etcd before its ttl.
func seconds(ttl time.Duration) int64 { return int64((ttl + time.Second - 1) / time.Second) }
