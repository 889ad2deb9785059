package witness

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/wirefence/wirefence/internal/address"
)

// openEtcd reads the key that Patroni keeps there by a lease of etcd: it is gone when the lease
// has expired.
func openEtcd(text string, servers []string) (*Witness, error) {
	u, err := address.Parse(text, "etcd", "2379", "bound", "names")
	if err != nil {
		return nil, err
	}
	if u.Path == "" {
		return nil, errors.New("it names no key: give that of the leader, as in etcd://host/service/SCOPE/leader")
	}
	w := &Witness{}
	if w.Bound, err = bound(&u); err != nil {
		return nil, err
	}
	leaders, err := names(&u, servers)
	if err != nil {
		return nil, err
	}
	config := clientv3.Config{
		Endpoints: u.Hosts, Username: u.User, Password: u.Password, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		// With the defaults of gRPC a client notices up to two minutes late that a server is back.
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 3 * time.Second,
		})},
	}
	if config.TLS, err = u.TLS(); err != nil {
		return nil, err
	}
	e := &etcd{config: config}
	w.close = e.close
	w.leads = func(ctx context.Context, server int) (bool, error) {
		client, err := e.get(ctx)
		if err != nil {
			return false, err
		}
		// The read is linearizable: a member that is cut off from the others doesn't answer.
		got, err := client.Get(ctx, "/"+u.Path)
		if err != nil {
			return false, err
		}
		return len(got.Kvs) == 1 && string(got.Kvs[0].Value) == leaders[server], nil
	}
	return w, nil
}

// etcd is a client that the first question creates: with a password, that takes a round trip.
type etcd struct {
	config clientv3.Config

	mu     sync.Mutex
	client *clientv3.Client
	closed bool
}

func (e *etcd) get(ctx context.Context) (*clientv3.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errors.New("the witness is closed")
	}
	if e.client != nil {
		return e.client, nil
	}
	config := e.config
	config.DialTimeout = standardBound
	if deadline, ok := ctx.Deadline(); ok {
		config.DialTimeout = max(time.Millisecond, time.Until(deadline))
	}
	client, err := clientv3.New(config)
	e.client = client // nil after an error
	return client, err
}

func (e *etcd) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.client == nil {
		return nil
	}
	return e.client.Close()
}
