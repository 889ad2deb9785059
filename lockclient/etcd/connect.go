package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lazyClient is a client that the first request creates: with a password, that takes a round
// trip.
type lazyClient struct {
	config clientv3.Config
	gate   chan struct{} // a lock of client and closed: the owner has put an element
	client *clientv3.Client
	closed bool
}

// loginTimeout bounds the login if the caller sets no bound.
const loginTimeout = 5 * time.Second

var errClosed = errors.New("the store is closed")

func (l *lazyClient) get(ctx context.Context) (*clientv3.Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case l.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-l.gate }()
	if l.closed {
		return nil, errClosed
	}
	if l.client == nil {
		config := l.config
		config.DialTimeout = loginTimeout
		if deadline, ok := ctx.Deadline(); ok {
			config.DialTimeout = max(time.Millisecond, min(loginTimeout, time.Until(deadline)))
		}
		client, err := clientv3.New(config)
		if err != nil {
			return nil, err
		}
		l.client = client
	}
	return l.client, nil
}

func (l *lazyClient) close() error {
	l.gate <- struct{}{}
	defer func() { <-l.gate }()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.client == nil {
		return nil
	}
	return l.client.Close()
}
