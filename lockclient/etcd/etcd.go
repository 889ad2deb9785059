// Package etcd keeps leases in etcd, version 3.4 or later.
//
// A resource has the key wirefence/lease/NAME while it is held, with the name encoded as
// in a fence. Its value is the holder, and it is attached to an etcd lease of its own, so
// both expiry and release delete it.
//
// The token of a grant is the revision of the transaction that puts the key,
// plus the number in wirefence/offset/NAME, if there is one. Revisions grow with every
// write of the cluster, so a grant needs no counter, other writers never make it retry,
// and tokens continue to grow when somebody deletes all keys. The tokens of a resource
// are not consecutive. A revision cannot be raised, so Raise sets the offset. Compaction
// does not change revisions. A cluster that is restored from a snapshot continues from
// the snapshot's revision, and may count tokens twice. A client with a Sealer never
// returns such a token: it raises the offset above the last token in PostgreSQL.
//
// An etcd lease lasts for whole seconds, at least one and a half election
// timeouts (2 s by default), and restarts when another member is elected. So a lease of
// this store may last longer than its ttl, never shorter. Before etcd 3.4.29 and 3.5.11 a
// former leader could confirm a renewal that its successor does not know; clusters should
// be newer.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/address"
	"github.com/wirefence/wirefence/lockclient"
)

// DefaultPrefix is the prefix of the keys unless another is given.
const DefaultPrefix = "wirefence"

// Store is a lease store in etcd. It is safe for concurrent use.
type Store struct {
	prefix    string
	endpoints string
	client    *lazyClient
	notices   *lockclient.Notices
	cleanups  sync.WaitGroup // revocations of unused leases
}

var (
	_ lockclient.Store    = (*Store)(nil)
	_ lockclient.Notifier = (*Store)(nil)
)

// reconnect bounds the pauses between tries to reach a server. With the defaults of gRPC
// a client notices up to two minutes late that a server is back.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
	MinConnectTimeout: 3 * time.Second,
}

// New makes a store on a client. Its keys begin with the prefix and a slash; all clients
// that compete for a resource must use the same prefix. Without a DialKeepAliveTime the
// client notices a server that is cut off by the end of a request's context alone. Close
// closes the client, too.
func New(client *clientv3.Client, prefix string) *Store {
	return newStore(prefix, client.Endpoints(), &lazyClient{client: client, gate: make(chan struct{}, 1)})
}

// Open makes a store on a new client for a connection string such as
// etcd://user:password@host1:2379,host2:2379/prefix?tls=true. Path and settings
// may be left out; ca, cert and key name PEM files for TLS. It does not connect
// yet.
func Open(url string) (*Store, error) { return OpenWith(url, Options{}) }

// Options of a Store that is opened by a connection string.
type Options struct {
	// Reload returns the connection string anew for each login, which takes its user and
	// password; all else stays as it was at the start. Default: all logins have those of the
	// start.
	Reload func(ctx context.Context) (url string, err error)
}

// OpenWith is Open with options.
func OpenWith(url string, opts Options) (*Store, error) {
	u, err := address.Parse(url, "etcd", "2379")
	if err != nil {
		return nil, fmt.Errorf("etcd connection string: %w", err)
	}
	config := clientv3.Config{
		Username: u.User, Password: u.Password, Logger: zap.NewNop(),
		// Detects a server that is cut off while a request waits for it.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(reconnect)},
	}
	if config.TLS, err = u.TLS(); err != nil {
		return nil, fmt.Errorf("etcd connection string: %w", err)
	}
	for _, host := range u.Hosts {
		if config.TLS != nil {
			host = "https://" + host
		}
		config.Endpoints = append(config.Endpoints, host)
	}
	if u.Path == "" {
		u.Path = DefaultPrefix
	}
	return newStore(u.Path, u.Hosts, &lazyClient{config: config, reload: opts.Reload, gate: make(chan struct{}, 1)}), nil
}

// Source is what the tokens of this store come from.
const Source fence.Source = "etcd"

// URL is a connection string, as a setting.
type URL string

// Source returns what the tokens come from.
func (URL) Source() fence.Source { return Source }

func newStore(prefix string, endpoints []string, client *lazyClient) *Store {
	s := &Store{prefix: prefix, endpoints: strings.Join(endpoints, ","), client: client}
	s.notices = lockclient.NewNotices(lockclient.FollowNames(s.follow))
	return s
}

// Close closes the client and returns when no goroutine of the store runs any more. The
// lockclient.Client on the store must be closed before.
func (s *Store) Close() error {
	s.notices.Wait()
	s.cleanups.Wait()
	return s.client.close()
}

// LeaseKey and OffsetKey are the names of a resource's keys.
func (s *Store) LeaseKey(resource fence.Resource) string {
	return s.prefix + "/lease/" + resource.Encode()
}

// OffsetKey is the key of the offset, which is added to revisions to form tokens.
func (s *Store) OffsetKey(resource fence.Resource) string {
	return s.prefix + "/offset/" + resource.Encode()
}

// Acquire implements lockclient.Store. It takes three requests for a free resource, of
// which two write, and one reading request for a held one.
func (s *Store) Acquire(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (lockclient.Attempt, error) {
	attempt, err := s.acquire(ctx, resource, lockclient.HolderOf(grant), ttl)
	if err != nil {
		return lockclient.Attempt{}, s.fail(ctx, "acquiring the lease of", resource, err)
	}
	return attempt, nil
}

func (s *Store) acquire(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (lockclient.Attempt, error) {
	client, err := s.client.get(ctx)
	if err != nil {
		return lockclient.Attempt{}, err
	}
	for {
		present, err := get(ctx, client, s.LeaseKey(resource))
		if err != nil {
			return lockclient.Attempt{}, err
		}
		if present != nil && string(present.Value) != holder {
			return lockclient.Attempt{Holder: string(present.Value)}, nil
		}
		put, err := s.put(ctx, client, resource, holder, ttl, present)
		if err != nil {
			return lockclient.Attempt{}, err
		}
		if put == nil {
			continue // another client was faster: read the key again
		}
		token, err := s.token(resource, put)
		if err != nil {
			return lockclient.Attempt{}, errors.Join(err, revoke(ctx, client, put.lease))
		}
		return lockclient.Attempt{Token: token}, nil
	}
}

// put is the result of a transaction that put a lease key.
type put struct {
	lease    clientv3.LeaseID
	revision int64
	offset   *mvccpb.KeyValue
}

// put makes the holder the owner of the lease for ttl from now, unless the lease key has
// changed since it was read. Then it returns nil, and leaves nothing behind.
func (s *Store) put(ctx context.Context, client *clientv3.Client, resource fence.Resource, holder string, ttl time.Duration, read *mvccpb.KeyValue) (*put, error) {
	granted, err := client.Grant(ctx, seconds(ttl))
	if err != nil {
		return nil, err
	}
	key, seen := s.LeaseKey(resource), int64(0)
	if read != nil {
		seen = read.ModRevision
	}
	done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", seen)).
		Then(clientv3.OpPut(key, holder, clientv3.WithLease(granted.ID)), clientv3.OpGet(s.OffsetKey(resource))).
		Commit()
	if err != nil || !done.Succeeded {
		s.revokeUnused(client, granted.ID, ttl)
		return nil, err
	}
	if read != nil {
		s.revokeUnused(client, clientv3.LeaseID(read.Lease), ttl) // no key is attached to it any more
	}
	p := &put{lease: granted.ID, revision: done.Header.Revision}
	if offset := done.Responses[1].GetResponseRange().GetKvs(); len(offset) > 0 {
		p.offset = offset[0]
	}
	return p, nil
}

// token returns the revision of a grant plus the offset of the resource.
func (s *Store) token(resource fence.Resource, p *put) (fence.Token, error) {
	offset, err := s.offset(resource, p.offset)
	switch {
	case err != nil:
		return 0, err
	case offset > math.MaxInt64-p.revision:
		return 0, fmt.Errorf("%w: %s is %d, so no token is left", lockclient.ErrCounter, s.OffsetKey(resource), offset)
	}
	return fence.Token(offset + p.revision), nil
}

func (s *Store) offset(resource fence.Resource, kv *mvccpb.KeyValue) (int64, error) {
	if kv == nil {
		return 0, nil
	}
	offset, err := strconv.ParseInt(string(kv.Value), 10, 64)
	if err != nil || offset < 0 {
		return 0, fmt.Errorf("%w: %s is not a number from 0 to 9223372036854775807", lockclient.ErrCounter, s.OffsetKey(resource))
	}
	return offset, nil
}

// Renew implements lockclient.Store.
func (s *Store) Renew(ctx context.Context, resource fence.Resource, grant string, ttl time.Duration) (bool, error) {
	held, err := s.renew(ctx, resource, lockclient.HolderOf(grant), ttl)
	if err != nil {
		return false, s.fail(ctx, "renewing the lease of", resource, err)
	}
	return held, nil
}

func (s *Store) renew(ctx context.Context, resource fence.Resource, holder string, ttl time.Duration) (bool, error) {
	client, err := s.client.get(ctx)
	if err != nil {
		return false, err
	}
	for {
		present, err := get(ctx, client, s.LeaseKey(resource))
		if err != nil || present == nil || string(present.Value) != holder {
			return false, err
		}
		lasts, err := keepAlive(ctx, client, clientv3.LeaseID(present.Lease))
		if err != nil || lasts == 0 {
			return false, err
		}
		if lasts >= seconds(ttl) {
			return true, nil
		}
		// An etcd lease cannot be extended, so the key moves to a new one.
		if put, err := s.put(ctx, client, resource, holder, ttl, present); err != nil || put != nil {
			return put != nil, err
		}
	}
}

// Release implements lockclient.Store.
func (s *Store) Release(ctx context.Context, resource fence.Resource, grant string) (bool, error) {
	return s.Free(ctx, resource, lockclient.HolderOf(grant))
}

// Free implements lockclient.Looker.
func (s *Store) Free(ctx context.Context, resource fence.Resource, holder string) (bool, error) {
	held, err := s.release(ctx, resource, holder)
	if err != nil {
		return false, s.fail(ctx, "releasing the lease of", resource, err)
	}
	return held, nil
}

func (s *Store) release(ctx context.Context, resource fence.Resource, holder string) (bool, error) {
	client, err := s.client.get(ctx)
	if err != nil {
		return false, err
	}
	present, err := get(ctx, client, s.LeaseKey(resource))
	if err != nil || present == nil || string(present.Value) != holder {
		return false, err
	}
	// The etcd lease exists for this key alone, and its end deletes the key.
	err = revoke(ctx, client, clientv3.LeaseID(present.Lease))
	if isGone(err) {
		return false, nil
	}
	return err == nil, err
}

// Raise implements lockclient.Store.
func (s *Store) Raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	if err := s.raise(ctx, resource, token); err != nil {
		return s.fail(ctx, "raising the token of", resource, err)
	}
	return nil
}

func (s *Store) raise(ctx context.Context, resource fence.Resource, token fence.Token) error {
	client, err := s.client.get(ctx)
	if err != nil {
		return err
	}
	key := s.OffsetKey(resource)
	for {
		read, err := client.Get(ctx, key)
		if err != nil {
			return err
		}
		var present *mvccpb.KeyValue
		seen := int64(0)
		if len(read.Kvs) > 0 {
			present, seen = read.Kvs[0], read.Kvs[0].ModRevision
		}
		offset, err := s.offset(resource, present)
		if err != nil {
			return err
		}
		// The next grant has a greater revision than this one.
		wanted := int64(token) - read.Header.Revision
		if offset >= wanted {
			return nil
		}
		done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", seen)).
			Then(clientv3.OpPut(key, strconv.FormatInt(wanted, 10))).Commit()
		if err != nil || done.Succeeded {
			return err
		}
	}
}

// get reads a key from a majority of the members; nil if there is none.
func get(ctx context.Context, client *clientv3.Client, key string) (*mvccpb.KeyValue, error) {
	read, err := client.Get(ctx, key)
	if err != nil || len(read.Kvs) == 0 {
		return nil, err
	}
	return read.Kvs[0], nil
}

// fail adds to an error what failed and where. If the context has ended, its error is in
// the chain, whatever the client reported.
func (s *Store) fail(ctx context.Context, doing string, resource fence.Resource, err error) error {
	if isPermanent(err) {
		err = &lockclient.PermanentError{Err: err}
	}
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
		err = fmt.Errorf("%w (%w)", ctxErr, err)
	}
	return fmt.Errorf("etcd at %s: %s %q: %w", s.endpoints, doing, resource, err)
}

// isPermanent reports whether a server refuses a request until somebody changes the set-up.
func isPermanent(err error) bool {
	var reply interface {
		error
		Code() codes.Code
	}
	return errors.As(err, &reply) &&
		slices.Contains([]codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument}, reply.Code())
}
