package etcd

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lazy is a client that the first request creates: with a password, that takes a round
// trip.
type lazy struct {
	config clientv3.Config
	gate   chan struct{} // a lock of client and closed: the owner has put an element
	client *clientv3.Client
	closed bool
}

// loginPatience bounds the login if the caller sets no bound.
const loginPatience = 5 * time.Second

var errClosed = errors.New("the store is closed")

func (l *lazy) get(ctx context.Context) (*clientv3.Client, error) {
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
		config.DialTimeout = loginPatience
		if deadline, ok := ctx.Deadline(); ok {
			config.DialTimeout = max(time.Millisecond, min(loginPatience, time.Until(deadline)))
		}
		client, err := clientv3.New(config)
		if err != nil {
			return nil, err
		}
		l.client = client
	}
	return l.client, nil
}

func (l *lazy) close() error {
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
