package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/wirefence/wirefence/internal/address"
)

// lazyClient is a client that the first request creates: with a password, that takes a round
// trip.
type lazyClient struct {
	config clientv3.Config
	reload reload
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
		if l.reload != nil && config.Username != "" {
			var err error
			if config.Username, config.Password, err = l.reload.credentials(ctx); err != nil {
				return nil, err
			}
		}
		client, err := clientv3.New(config)
		if err != nil {
			return nil, err
		}
		if l.reload != nil && config.Username != "" {
			client.Auth = l.login(client.Auth)
		}
		l.client = client
	}
	return l.client, nil
}

// reload returns the connection string anew; nil where it stays the same.
type reload func(ctx context.Context) (string, error)

func (r reload) credentials(ctx context.Context) (user, password string, err error) {
	text, err := r(ctx)
	if err != nil {
		return "", "", fmt.Errorf("read the connection string again: %w", err)
	}
	u, err := address.Parse(text, "etcd", "2379")
	if err == nil && (u.User == "" || u.Password == "") {
		err = errors.New("the connection string that was read again lacks a user or a password")
	}
	return u.User, u.Password, err
}

// login asks for user and password each time that the client logs in again. It does so by a client of its
// own: etcd 3.4 refuses a login that has the former token along, as the client's would.
type login struct {
	clientv3.Auth
	config clientv3.Config
	reload reload
}

func (l *lazyClient) login(of clientv3.Auth) login {
	config := l.config
	config.Username, config.Password, config.DialTimeout = "", "", loginTimeout
	return login{of, config, l.reload}
}

func (l login) Authenticate(ctx context.Context, _, _ string) (*clientv3.AuthenticateResponse, error) {
	user, password, err := l.reload.credentials(ctx)
	if err != nil {
		return nil, err
	}
	client, err := clientv3.New(l.config)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Authenticate(ctx, user, password)
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
