package etcd

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/finding"
)

var (
	_ lockclient.Counter  = (*Store)(nil)
	_ lockclient.Examiner = (*Store)(nil)
)

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

// Examinations look for members that do not take part.
func (s *Store) Examinations() []finding.Examination {
	return []finding.Examination{{Name: "members", Run: s.examineMembers}}
}

// examineMembers asks the servers of the connection string for their state.
func (s *Store) examineMembers(ctx context.Context) (found []finding.Finding, err error) {
	client, err := s.client.get(ctx)
	if err != nil {
		return nil, err
	}
	var version string
	endpoints := client.Endpoints()
	for _, endpoint := range endpoints {
		status, err := client.Status(ctx, endpoint)
		switch {
		case err != nil:
			found = append(found, finding.Finding{Grade: finding.Warning, Says: fmt.Sprintf("etcd at %s doesn't answer: %v", endpoint, err),
				Means: "Leases go on as long as a majority of the members does.", Remedy: []string{"bring it up, or take it out of WIREFENCE_ETCD_URL"}})
		case len(status.Errors) > 0:
			found = append(found, finding.Finding{Grade: finding.Problem, Says: fmt.Sprintf("etcd at %s: %s", endpoint, strings.Join(status.Errors, "; ")),
				Means: "With the alarm NOSPACE it takes no writes: no lease is granted.", Remedy: []string{"etcdctl compact and defrag, then etcdctl alarm disarm"}})
		case status.Leader == 0:
			found = append(found, finding.Finding{Grade: finding.Problem, Says: fmt.Sprintf("etcd at %s knows no leader", endpoint),
				Means: "Without a majority no lease is granted or renewed.", Remedy: []string{"bring up a majority of the members"}})
		default:
			version = status.Version
		}
	}
	return finding.OrFine(found, "etcd %s: all members that are named answer and know their leader: %d", version, len(endpoints)), nil
}
