package lockclient_test

import (
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/servers"
	"github.com/wirefence/wirefence/internal/stack"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/redis"
)

// A replica that did not receive the last grants replaces its master. A client that does
// not seal shows that the tokens are counted again.
func TestALaggingReplicaThatIsPromotedIssuesNoTokenTwice(t *testing.T) {
	ctx := t.Context()
	s := stack.Started(servers.StartRedisSentinel(ctx)).EndWith(t)
	store, err := redis.Open(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	_, conn := startPostgres(t)
	sealed := newClient(t, store, lockclient.Options{Sealers: []lockclient.Sealer{lockclient.PostgresSealer{Querier: conn}}})
	plain := newClient(t, store, lockclient.Options{})

	grants := func(client *lockclient.Client, resource fence.Resource) (tokens []fence.Token) {
		t.Helper()
		for range 3 {
			lease, err := client.Acquire(ctx, resource)
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, lease.Token())
			release(t, lease)
		}
		return tokens
	}
	grants(sealed, "sealed")
	grants(plain, "plain")
	if err := s.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.CutReplication(ctx); err != nil {
		t.Fatal(err)
	}
	sealedBefore, plainBefore := grants(sealed, "sealed"), grants(plain, "plain")
	s.Master.Kill()
	if err := s.AwaitFailover(ctx); err != nil {
		t.Fatal(err)
	}
	sealedAfter, plainAfter := grants(sealed, "sealed"), grants(plain, "plain")
	if plainAfter[0] != plainBefore[0] {
		t.Errorf("the new master went on with %d after %v: it didn't lag", plainAfter[0], plainBefore)
	}
	if last := sealedBefore[len(sealedBefore)-1]; sealedAfter[0] <= last {
		t.Errorf("token %d after %d", sealedAfter[0], last)
	}
}
