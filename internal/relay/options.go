package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/internal/adopt"
	"github.com/wirefence/wirefence/lockclient"
)

// Source is the source of the tokens that relays count.
const Source fence.Source = "redis-relay"

// Options are those of a Relay.
type Options struct {
	// Listen is host:port, or the absolute path of a Unix socket. Required.
	Listen string
	// Upstream is the server: redis://user:password@host:port, rediss:// with TLS, or
	// unix:///path. The user and the password are those of the relay's own connections, by which
	// it gives locks back. Clients log in by themselves. Required.
	Upstream string
	// Reload returns Upstream anew ahead of each connection of the relay's own, which takes its
	// user and password. Default: they stay.
	Reload func(ctx context.Context) (url string, err error)
	// Locks are the keys that the application takes as locks, with the resources whose leases
	// follow them. A key is a lock in every database of the server. Required.
	Locks map[string]fence.Resource
	// Sealers record each grant, all of them before it counts. Required.
	Sealers []lockclient.Sealer
	// Book gets the leases. Required.
	Book *adopt.Book
	// ID is the sidecar's: another one for each that runs, and for each run best. Required.
	ID string
	// Holder is the name of the application in grants. Default: ID.
	Holder string
	// TLS is for clients that begin with TLS. Default: none may.
	TLS *tls.Config
	// RequireTLS refuses clients without TLS, but those of a Unix socket.
	RequireTLS bool
	// Logger is for connections that fail and locks that can't be followed. Default: none.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer

	// MaxConnections is how many clients are served at a time. Default 10000.
	MaxConnections int
}

const (
	dialTimeout = 5 * time.Second
	// sealTimeout limits a seal, and each try to give a lock back. A seal never takes longer than
	// the lock lasts.
	sealTimeout = 15 * time.Second
	// maxCommand is how many bytes of a command are held in memory until the relay knows whether
	// it names a lock. A larger one passes if no lock was among the keys until there, and is
	// refused otherwise. Commands without keys of locks are never held.
	maxCommand = 1 << 20
)

func (o Options) withDefaults() Options {
	if o.Holder == "" {
		o.Holder = o.ID
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 10_000
	}
	return o
}

// Validate returns what is missing in the options, or out of its range.
func (o Options) Validate() error {
	var errs []error
	if o.Listen == "" || o.Book == nil || o.ID == "" || len(o.Locks) == 0 || len(o.Sealers) == 0 {
		errs = append(errs, errors.New("options Listen, Book, ID, Locks and Sealers are required"))
	}
	if o.MaxConnections < 0 {
		errs = append(errs, errors.New("option MaxConnections is negative"))
	}
	if o.RequireTLS && o.TLS == nil {
		errs = append(errs, errors.New("option RequireTLS needs TLS"))
	}
	for key, resource := range o.Locks {
		if _, err := fence.ParseResource(string(resource)); err != nil || key == "" {
			errs = append(errs, fmt.Errorf("lock %q: no key, or no resource: %w", key, err))
		}
	}
	_, err := parseUpstream(o.Upstream)
	return errors.Join(append(errs, err)...)
}

func parseUpstream(text string) (*goredis.Options, error) {
	scheme, _, _ := strings.Cut(text, "://")
	switch {
	case strings.HasPrefix(scheme, "redis-cluster"), strings.HasPrefix(scheme, "rediss-cluster"):
		return nil, errCluster
	case strings.HasPrefix(scheme, "redis-sentinel"), strings.HasPrefix(scheme, "rediss-sentinel"):
		return nil, errSentinel
	}
	u, err := url.Parse(text)
	if err == nil {
		query := u.Query()
		name := query.Get("tls_server_name")
		query.Del("tls_server_name")
		u.RawQuery = query.Encode()
		var o *goredis.Options
		if o, err = goredis.ParseURL(u.String()); err == nil {
			switch {
			case name == "":
				return o, nil
			case o.TLSConfig != nil:
				o.TLSConfig.ServerName = name
				return o, nil
			}
		}
	}
	return nil, errors.New("the upstream is no redis://, rediss:// or unix:// URL") // it may have a password
}

// credentials is what go-redis asks ahead of each connection, nil for nothing.
func (o *Options) credentials() func(context.Context) (user, password string, err error) {
	if o.Reload == nil {
		return nil
	}
	return func(ctx context.Context) (user, password string, err error) {
		text, err := o.Reload(ctx)
		if err != nil {
			return "", "", fmt.Errorf("read the upstream's URL again: %w", err)
		}
		u, err := parseUpstream(text)
		if err != nil {
			return "", "", err
		}
		return u.Username, u.Password, nil
	}
}

var (
	errCluster  = errors.New("the relay doesn't follow locks in a Redis Cluster: a lock and its state would be on two servers, and clients would go past the relay")
	errSentinel = errors.New("the relay needs the address of one Redis server, not of Sentinels: clients would go past the relay to the servers that these name")
)

// listenOn opens a listener for host:port or a path.
func listenOn(address string) (net.Listener, error) {
	if strings.HasPrefix(address, "/") {
		return net.Listen("unix", address)
	}
	return net.Listen("tcp", address)
}
