package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// ErrOptions says that options are out of their ranges, or that the client cannot support
// them.
var ErrOptions = errors.New("redis store options")

// Options of a Store. The zero value is ready to use.
type Options struct {
	// Replicas is the number of replicas that must have received a grant before Acquire
	// returns it, and a renewal before it is valid; default 0. If they do not receive it
	// in time, the call fails with ErrNotReplicated. Replicas needs a client for one
	// server, for Sentinel or for a cluster.
	Replicas int
	// ReplicaTimeout is how long a grant or renewal waits for the replicas: at least 1ms
	// and less than the client's ReadTimeout, which is 5s by default. Default 1s. The
	// wait ends earlier if the call's context does.
	ReplicaTimeout time.Duration
	// Reload, of stores that are opened by a connection string, returns it anew ahead of each new
	// connection, which takes its users and passwords; all else stays as it was at the start.
	// Default: all connections have those of the start.
	Reload func(ctx context.Context) (url string, err error)
}

// withDefaults replaces zero values by their defaults.
func (o Options) withDefaults() Options {
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = time.Second
	}
	return o
}

// Validate reports every value that is out of its range; zero means the default.
func (o Options) Validate() error {
	o = o.withDefaults()
	var errs []error
	if o.Replicas < 0 {
		errs = append(errs, fmt.Errorf("option Replicas %d is negative", o.Replicas))
	}
	if o.ReplicaTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("ReplicaTimeout %v is less than 1ms", o.ReplicaTimeout))
	}
	return errors.Join(errs...)
}

// checkClient returns an error if a client cannot support the options.
func (o Options) checkClient(client goredis.UniversalClient) error {
	if o.Replicas == 0 {
		return nil
	}
	var limit time.Duration
	switch c := client.(type) {
	case *goredis.Client:
		limit = c.Options().ReadTimeout
	case *goredis.ClusterClient:
		limit = c.Options().ReadTimeout
	default:
		return fmt.Errorf("a %T cannot wait for replicas", client)
	}
	if limit > 0 && o.ReplicaTimeout >= limit {
		return fmt.Errorf("ReplicaTimeout %v is not less than the client's ReadTimeout %v", o.ReplicaTimeout, limit)
	}
	return nil
}
