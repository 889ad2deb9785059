package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/lockclient"
	"github.com/wirefence/wirefence/lockclient/finding"
)

var (
	_ lockclient.Counter  = (*Store)(nil)
	_ lockclient.Examiner = (*Store)(nil)
)

// Counted implements lockclient.Counter.
func (s *Store) Counted(ctx context.Context, resource fence.Resource) (fence.Token, error) {
	text, err := s.client.Get(ctx, TokenKey(resource)).Result()
	if errors.Is(err, goredis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, s.fail(ctx, "reading the token counter of", resource, err)
	}
	count, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, s.fail(ctx, "reading the token counter of", resource, fmt.Errorf("%w: %s is not a number", lockclient.ErrCounter, TokenKey(resource)))
	}
	return fence.Token(count), nil
}

// Examinations look for settings that cost leases.
func (s *Store) Examinations() []finding.Examination {
	return []finding.Examination{{Name: "settings", Run: s.examineSettings}, {Name: "clock", Run: s.examineClocks}}
}

func (s *Store) examineSettings(ctx context.Context) (found []finding.Finding, err error) {
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	var version string
	for _, n := range nodes {
		version = n.info["redis_version"]
		found = append(found, n.judge(s.opts.Replicas)...)
		if n.err != nil {
			err = n.missing()
		}
	}
	if err != nil {
		return found, err
	}
	return finding.OrFine(found, "Redis %s evicts nothing and writes what it is told to disk; masters: %d", version, len(nodes)), nil
}

func (s *Store) examineClocks(ctx context.Context) (found []finding.Finding, err error) {
	nodes, err := s.nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.clock.IsZero() {
			return found, n.missing()
		}
		found = append(found, finding.Clock("the clock of Redis at "+n.address, n.clock, n.asked, n.answered))
	}
	return found, nil
}

// node is what one Redis server reports about itself.
type node struct {
	address                string
	info                   map[string]string // the fields of INFO
	config                 map[string]string // maxmemory, maxmemory-policy and appendonly
	clock, asked, answered time.Time         // the server's time, read between the two others
	err                    error             // why some of this is missing
}

// missing says why something is missing, and the right that the user of the connection
// lacks.
func (n *node) missing() error {
	err := fmt.Errorf("look at Redis at %s: %w", n.address, n.err)
	if reply := goredis.Error(nil); errors.As(n.err, &reply) && strings.HasPrefix(reply.Error(), "NOPERM") {
		return &finding.MissingRight{What: err.Error(), Remedy: []string{"ACL SETUSER the user of WIREFENCE_REDIS_URL +info +time +config|get"}}
	}
	return err
}

// judge says what of the settings costs leases, where grants wait for replicas.
func (n *node) judge(replicas int) (found []finding.Finding) {
	if n.info["role"] == "slave" {
		found = append(found, finding.Finding{Grade: finding.Problem, Says: "Redis at " + n.address + " is a replica",
			Means: "It takes no writes: no lease is granted.", Remedy: []string{"name the master, or the Sentinels by redis-sentinel://, in WIREFENCE_REDIS_URL"}})
	}
	if connected, err := strconv.Atoi(n.info["connected_slaves"]); err == nil && connected < replicas {
		found = append(found, finding.Finding{Grade: finding.Problem, Says: fmt.Sprintf("Redis at %s has %d replicas, grants wait for %d", n.address, connected, replicas),
			Means: "No lease is granted or renewed until there are enough.", Remedy: []string{"bring replicas up, or set WIREFENCE_REDIS_WAIT_REPLICAS lower"}})
	}
	if policy := n.config["maxmemory-policy"]; policy != "" && policy != "noeviction" {
		f := finding.Finding{Grade: finding.Warning, Says: fmt.Sprintf("Redis at %s has maxmemory-policy %s", n.address, policy),
			Means:  "When its memory is full it forgets leases that are held, and counters. Tokens stay unique; two may believe that they hold one lease.",
			Remedy: []string{"redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf"}}
		if n.config["maxmemory"] == "0" {
			f.Grade, f.Means = finding.Note, "There is no maxmemory now. With one, it would forget leases that are held."
		}
		found = append(found, f)
	}
	if n.config["appendonly"] == "no" {
		found = append(found, finding.Finding{Grade: finding.Note, Says: fmt.Sprintf("Redis at %s has appendonly no", n.address),
			Means:  "A restart frees leases that are held. The tokens of the former holders are refused as soon as others are granted.",
			Remedy: []string{"redis-cli CONFIG SET appendonly yes, and in redis.conf, if that matters"}})
	}
	return found
}

// nodes reads the settings of the server, or of every master of a cluster. It returns an
// error if it cannot find them; each node has an error of its own.
func (s *Store) nodes(ctx context.Context) ([]*node, error) {
	switch c := s.client.(type) {
	case *goredis.Client:
		return []*node{examine(ctx, c)}, nil
	case *goredis.ClusterClient:
		var mu sync.Mutex
		var all []*node
		err := c.ForEachMaster(ctx, func(ctx context.Context, master *goredis.Client) error {
			n := examine(ctx, master)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, n)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("redis at %s: finding the masters: %w", s.address, err)
		}
		return all, nil
	}
	return nil, fmt.Errorf("redis at %s: cannot examine a %T", s.address, s.client)
}

func examine(ctx context.Context, c *goredis.Client) *node {
	n := &node{address: address(c), info: map[string]string{}, config: map[string]string{}}
	info, infoErr := c.Info(ctx).Result()
	for line := range strings.Lines(info) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			n.info[name] = value
		}
	}
	n.asked = time.Now()
	clock, clockErr := c.Time(ctx).Result()
	n.clock, n.answered = clock, time.Now()
	errs := []error{infoErr, clockErr}
	for _, name := range []string{"maxmemory", "maxmemory-policy", "appendonly"} {
		got, err := c.ConfigGet(ctx, name).Result()
		if err != nil {
			errs = append(errs, err)
			break
		}
		n.config[name] = got[name]
	}
	n.err = errors.Join(errs...)
	return n
}
