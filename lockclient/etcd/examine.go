package etcd

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var _ lockclient.Counter = (*Store)(nil)

// Counted implements lockclient.Counter. It returns the present revision plus the offset.
func (s *Store) Counted(ctx context.Context, resource fence.Resource) (fence.Token, error) {
	counted, err := s.counted(ctx, resource)
	if err != nil {
		return 0, s.fail(ctx, "reading the token counter of", resource, err)
	}
	return counted, nil
}

func (s *Store) counted(ctx context.Context, resource fence.Resource) (fence.Token, error) {
	client, err := s.client.get(ctx)
	if err != nil {
		return 0, err
	}
	read, err := client.Get(ctx, s.OffsetKey(resource))
	if err != nil {
		return 0, err
	}
	var kv *mvccpb.KeyValue
	if len(read.Kvs) > 0 {
		kv = read.Kvs[0]
	}
	return s.token(resource, &put{revision: read.Header.Revision, offset: kv})
}

// Member is what one server reports about itself.
type Member struct {
	Endpoint string
	Version  string
	// Leader reports whether the server knows a leader.
	Leader bool
	// Alarms are the alarms of the server, such as NOSPACE.
	Alarms []string
	// Err is why the server did not answer.
	Err error
}

// Members asks the servers of the connection string for their state. It changes nothing.
func (s *Store) Members(ctx context.Context) ([]Member, error) {
	client, err := s.client.get(ctx)
	if err != nil {
		return nil, err
	}
	var all []Member
	for _, endpoint := range client.Endpoints() {
		all = append(all, examine(ctx, client, endpoint))
	}
	return all, nil
}

func examine(ctx context.Context, client *clientv3.Client, endpoint string) Member {
	status, err := client.Status(ctx, endpoint)
	if err != nil {
		return Member{Endpoint: endpoint, Err: err}
	}
	return Member{Endpoint: endpoint, Version: status.Version, Leader: status.Leader != 0, Alarms: status.Errors}
}
