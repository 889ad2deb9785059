package redis

import (
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// ErrOptions says that options are out of their ranges, or not for the client.
var ErrOptions = errors.New("redis store options")

// Options of a Store. The zero value is ready to use.
type Options struct {
	// Replicas is how many replicas must have received a grant before it is
	// handed out, and a renewal before it counts; default 0. What is not
	// received in time fails with ErrNotReplicated. It needs a client for one
	// server, for Sentinel or for a cluster.
	Replicas int
	// ReplicaTimeout is how long a grant or renewal waits for the replicas: at
	// least 1ms and less than the client's ReadTimeout, which is 5s unless set.
	// Default 1s. It is cut short where the lease itself is.
	ReplicaTimeout time.Duration
}

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = time.Second
	}
	return o
}

// Validate reports every value that is out of its range, zero standing for the
// default.
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

// suits reports whether what the options want can be had of a client.
func (o Options) suits(client goredis.UniversalClient) error {
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
		return fmt.Errorf("a %T can't wait for Replicas", client)
	}
	if limit > 0 && o.ReplicaTimeout >= limit {
		return fmt.Errorf("ReplicaTimeout %v is not less than the client's ReadTimeout %v", o.ReplicaTimeout, limit)
	}
	return nil
}
