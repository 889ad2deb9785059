package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var _ lockclient.Looker = (*Store)(nil)

// Look implements lockclient.Looker. The remaining time is rounded up to seconds.
func (s *Store) Look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	seen, err := s.look(ctx, resource)
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "looking at the lease of", resource, err)
	}
	return seen, nil
}

func (s *Store) look(ctx context.Context, resource fence.Resource) (lockclient.Attempt, error) {
	client, err := s.client.get(ctx)
	if err != nil {
		return lockclient.Attempt{}, err
	}
	present, err := get(ctx, client, s.LeaseKey(resource))
	if err != nil || present == nil {
		return lockclient.Attempt{}, err
	}
	left, err := client.TimeToLive(ctx, clientv3.LeaseID(present.Lease))
	if err != nil || left.TTL < 0 { // it has ended since
		return lockclient.Attempt{}, err
	}
	seconds := min(left.TTL+1, left.GrantedTTL)
	return lockclient.Attempt{Holder: string(present.Value), Remaining: time.Duration(seconds) * time.Second}, nil
}
