package redis

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// reload returns the connection string anew; nil where it stays the same.
type reload func(ctx context.Context) (string, error)

func (r reload) parse(ctx context.Context) (*connection, error) {
	text, err := r(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the connection string again: %w", err)
	}
	if !strings.Contains(text, "://") {
		return nil, errNotURL
	}
	return parseConnection(text)
}

// credentials is what go-redis asks ahead of each connection to Redis, nil for nothing.
func (r reload) credentials() func(context.Context) (user, password string, err error) {
	if r == nil {
		return nil
	}
	return func(ctx context.Context) (user, password string, err error) {
		c, err := r.parse(ctx)
		if err != nil {
			return "", "", err
		}
		u, err := url.Parse("redis://" + c.user + "host")
		if err != nil {
			return "", "", errNotURL
		}
		password, _ = u.User.Password()
		return u.User.Username(), password, nil
	}
}

// takeSentinels removes the credentials of the Sentinels from the parameters.
func (c *connection) takeSentinels() (user, password string) {
	return c.takeParameter("sentinel_username"), c.takeParameter("sentinel_password")
}

// logInAtSentinel logs in at a Sentinel that wants it. go-redis asks for credentials ahead of
// connections to Redis alone, which are logged in here.
func (r reload) logInAtSentinel(ctx context.Context, cn *goredis.Conn) error {
	err := cn.Ping(ctx).Err()
	if err == nil {
		return nil
	}
	if !strings.HasPrefix(err.Error(), "NOAUTH") {
		if answer := goredis.Error(nil); errors.As(err, &answer) {
			return nil // a user of Redis that has no right to PING
		}
		return err
	}
	c, err := r.parse(ctx)
	if err != nil {
		return err
	}
	user, password := c.takeSentinels()
	if user == "" {
		return cn.Auth(ctx, password).Err()
	}
	return cn.AuthACL(ctx, user, password).Err()
}
