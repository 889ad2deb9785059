// Package redis keeps leases and token counters in Redis: one server, Sentinel or a
// cluster, and in other servers that speak its protocol and run Lua.
//
// A resource has two keys of one hash slot, wirefence:{resource}:lease, which
// expires, and wirefence:{resource}:token, which never does, with the name
// encoded as in a fence. Every change is an atomic Lua script.
//
// Redis may lose writes: by a restart without persistence, a failover to a replica
// that lagged, an eviction. Then two clients may hold one lease for a while, and a
// token may be counted twice. A client with a Sealer never returns such a token, and
// PostgreSQL refuses the older holder's writes.
package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
)

var (
	//go:embed acquire.lua
	acquireLua string
	//go:embed renew.lua
	renewLua string
	//go:embed release.lua
	releaseLua string
	//go:embed raise.lua
	raiseLua string

	acquireScript = goredis.NewScript(acquireLua)
	renewScript   = goredis.NewScript(renewLua)
	releaseScript = goredis.NewScript(releaseLua)
	raiseScript   = goredis.NewScript(raiseLua)
)

// Store is a lease store in Redis. It is safe for concurrent use.
type Store struct {
	client  goredis.UniversalClient
	opts    Options
	address string
	notices *lockclient.Notices
}

var (
	_ lockclient.Store    = (*Store)(nil)
	_ lockclient.Notifier = (*Store)(nil)
)

// New makes a store on a client. Close closes the client, too; a caller that shares the
// client with other code closes the client instead of the store.
//
// The client should have ContextTimeoutEnabled set, as Open sets it. Without it go-redis
// ignores deadlines while it waits for an answer, and a renewal without an answer is
// repeated only after the client's ReadTimeout. The lease ends in time in both cases.
func New(client goredis.UniversalClient) *Store { return newStore(client, Options{}, address(client)) }

// NewWith is New with options. It fails if they are out of their ranges, or if the client
// cannot support them.
func NewWith(client goredis.UniversalClient, opts Options) (*Store, error) {
	if opts.Reload != nil {
		return nil, fmt.Errorf("%w: Reload is for connection strings, a client has its own", ErrOptions)
	}
	return newWith(client, opts, address(client))
}

func newWith(client goredis.UniversalClient, opts Options, address string) (*Store, error) {
	err := opts.Validate()
	if opts = opts.withDefaults(); err == nil {
		err = opts.checkClient(client)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return newStore(client, opts, address), nil
}

func newStore(client goredis.UniversalClient, opts Options, address string) *Store {
	s := &Store{client: client, opts: opts, address: address}
	s.notices = lockclient.NewNotices(s.listen)
	return s
}

// Open makes a store on a new client for a connection string, of which
// docs/reference/stores.md describes all parts:
//
//	redis://user:password@host:6379/0
//	unix://user:password@/path/to/socket?db=0
//	redis-sentinel://user:password@host:26379,host:26379/0?master_name=name
//	redis-cluster://user:password@host:6379,host:6379
//
// With rediss in place of redis it uses TLS. It does not connect yet.
func Open(url string) (*Store, error) { return OpenWith(url, Options{}) }

// Source is what the tokens of this store come from.
const Source fence.Source = "redis"

// URL is a connection string, as a setting.
type URL string

// Source returns what the tokens come from.
func (URL) Source() fence.Source { return Source }

// OpenWith is Open with options.
func OpenWith(url string, opts Options) (*Store, error) {
	client, address, err := openClient(url, opts.Reload)
	if err != nil {
		return nil, fmt.Errorf("redis connection string: %w", err)
	}
	s, err := newWith(client, opts, address)
	if err != nil {
		_ = client.Close()
	}
	return s, err
}

// Close closes the go-redis client and returns when no goroutine of the store runs any
// more. The lockclient.Client on the store must be closed before.
func (s *Store) Close() error {
	err := s.client.Close()
	s.notices.Wait()
	return err
}

// LeaseKey and TokenKey are the names of a resource's keys.
func LeaseKey(resource fence.Resource) string { return "wirefence:{" + resource.Encode() + "}:lease" }
func TokenKey(resource fence.Resource) string { return "wirefence:{" + resource.Encode() + "}:token" }

// channel returns the channel on which a release is published.
func channel(resource fence.Resource) string { return "wirefence:{" + resource.Encode() + "}:released" }

// Acquire implements lockclient.Store.
func (s *Store) Acquire(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (lockclient.Attempt, error) {
	keys, holder := []string{LeaseKey(resource), TokenKey(resource)}, lockclient.HolderOf(grant)
	reply, err := acquireScript.Run(ctx, s.client, keys, holder, milliseconds(ttl)).Slice()
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "acquiring the lease of", resource, err)
	}
	attempt, err := parseAttempt(reply)
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "acquiring the lease of", resource, err)
	}
	if attempt.Won() && s.opts.Replicas > 0 {
		held, err := s.renewReplicated(ctx, keys[0], holder, ttl)
		if err == nil && !held {
			err = fmt.Errorf("%w: the lease had ended before", ErrNotReplicated)
		}
		if err != nil {
			return lockclient.Attempt{}, s.fail(ctx, "acquiring the lease of", resource, err)
		}
	}
	return attempt, nil
}

func parseAttempt(reply []any) (lockclient.Attempt, error) {
	switch {
	case len(reply) == 1:
		text, _ := reply[0].(string)
		token, err := fence.ParseToken(text)
		return lockclient.Attempt{Token: token}, err
	case len(reply) == 3 && reply[0] == nil:
		other, isText := reply[1].(string)
		left, isNumber := reply[2].(int64) // below 0 for a key without expiry
		if isText && isNumber {
			return lockclient.Attempt{Holder: other, Remaining: max(0, time.Duration(left)*time.Millisecond)}, nil
		}
	}
	return lockclient.Attempt{}, fmt.Errorf("unexpected answer %v", reply)
}

// Renew implements lockclient.Store.
func (s *Store) Renew(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (held bool, err error) {
	holder := lockclient.HolderOf(grant)
	if s.opts.Replicas > 0 {
		held, err = s.renewReplicated(ctx, LeaseKey(resource), holder, ttl)
	} else {
		held, err = renewScript.Run(ctx, s.client, []string{LeaseKey(resource)}, holder, milliseconds(ttl)).Bool()
	}
	if err != nil {
		return false, s.fail(ctx, "renewing the lease of", resource, err)
	}
	return held, nil
}

// Release implements lockclient.Store.
func (s *Store) Release(ctx context.Context, resource fence.Resource, grant string) (bool, error) {
	return s.Free(ctx, resource, lockclient.HolderOf(grant))
}

// Free implements lockclient.Looker.
func (s *Store) Free(ctx context.Context, resource fence.Resource, holder string) (bool, error) {
	held, err := releaseScript.Run(ctx, s.client, []string{LeaseKey(resource)}, holder, channel(resource)).Bool()
	if err != nil {
		return false, s.fail(ctx, "releasing the lease of", resource, err)
	}
	return held, nil
}

// Raise implements lockclient.Store.
func (s *Store) Raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	if err := raiseScript.Run(ctx, s.client, []string{TokenKey(resource)}, token.String()).Err(); err != nil {
		return s.fail(ctx, "raising the token counter of", resource, err)
	}
	return nil
}

// fail adds to an error what failed and where. If the context has ended, its error is in
// the chain: go-redis may report that as a timeout of the socket.
func (s *Store) fail(ctx context.Context, doing string, resource fence.Resource, err error) error {
	if reply := goredis.Error(nil); errors.As(err, &reply) {
		if reason, ok := strings.CutPrefix(reply.Error(), "WFCOUNTER "); ok {
			err = fmt.Errorf("%w: %s: %s", lockclient.ErrCounter, TokenKey(resource), strings.TrimPrefix(reason, "ERR "))
		} else if isPermanent(reply) {
			err = &lockclient.PermanentError{Err: err}
		}
	}
	if _, ok := goredis.IsMovedError(err); ok {
		if _, single := s.client.(*goredis.Client); single {
			err = fmt.Errorf("the server is part of a Redis Cluster: use redis-cluster://: %w", err)
		}
	}
	s.reloadSlots(err)
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w (%w)", ctxErr, err)
	}
	return fmt.Errorf("redis at %s: %s %q: %w", s.address, doing, resource, err)
}

// isPermanent reports whether a server refuses a command until somebody changes the set-up.
func isPermanent(reply goredis.Error) bool {
	return slices.ContainsFunc([]string{"NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "ERR unknown command", "ERR AUTH", "ERR DB index", "ERR SELECT"}, func(prefix string) bool {
		return strings.HasPrefix(reply.Error(), prefix)
	})
}

// reloadSlots makes a cluster's client reload its map of slots if a node was unreachable.
// By itself go-redis does so once a minute, and when a node redirects to another, which a
// dead node cannot.
func (s *Store) reloadSlots(err error) {
	cluster, ok := s.client.(*goredis.ClusterClient)
	if reply := goredis.Error(nil); ok && !errors.As(err, &reply) {
		cluster.ReloadState(context.Background()) // in the background
	}
}

// milliseconds rounds up: a lease must not end in Redis before its ttl.
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10)
}
