package servers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// RedisCluster is a Redis Cluster of three masters with one replica each.
type RedisCluster struct {
	Masters, Replicas []*Redis // as they were started; Replicas[i] follows Masters[i]
}

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

// StartRedisCluster starts all nodes and returns when each of them sees the
// whole cluster in order. A master that is silent for 15 s is replaced; tests of
// failover set cluster-node-timeout themselves. Arguments are passed on to all
// nodes.
func StartRedisCluster(ctx context.Context, args ...string) (*RedisCluster, error) {
	c := &RedisCluster{}
	return orClosed(c, c.start(ctx, args))
}

func (c *RedisCluster) start(ctx context.Context, args []string) error {
	args = append([]string{"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1", "--cluster-replica-validity-factor", "0",
		"--cluster-allow-replica-migration", "no", "--repl-diskless-sync-delay", "0"}, args...)
	for range clusterMasters {
		for _, role := range []*[]*Redis{&c.Masters, &c.Replicas} {
			node, err := newRedis(args...)
			if err != nil {
				return err
			}
			*role = append(*role, node)
			node.command = append(node.command, "--cluster-port", strconv.Itoa(node.bus))
			if err := node.Start(ctx); err != nil {
				return err
			}
			if _, err := node.Do(ctx, "cluster", "set-config-epoch", len(c.Nodes())); err != nil {
				return err
			}
			if _, err := node.Do(ctx, "cluster", "meet", "127.0.0.1", c.Masters[0].Port, c.Masters[0].bus); err != nil {
				return err
			}
		}
	}
	if err := atOnce(c.Masters, func(i int, master *Redis) error {
		from, to := i*clusterSlots/clusterMasters, (i+1)*clusterSlots/clusterMasters-1
		if _, err := master.Do(ctx, "cluster", "addslotsrange", from, to); err != nil {
			return err
		}
		id, err := master.Do(ctx, "cluster", "myid")
		if err != nil {
			return err
		}
		return await(ctx, "nodes that know each other", func(ctx context.Context) bool {
			_, err := c.Replicas[i].Do(ctx, "cluster", "replicate", id)
			return err == nil
		})
	}); err != nil {
		return err
	}
	return await(ctx, "a Redis Cluster in order", c.inOrder)
}

func (c *RedisCluster) inOrder(ctx context.Context) bool {
	for _, node := range c.Nodes() {
		seen, err := node.Do(ctx, "cluster", "nodes")
		if err != nil || strings.Count(fmt.Sprint(seen), "slave ") != clusterMasters || strings.Contains(fmt.Sprint(seen), "handshake") ||
			!node.says(ctx, "cluster info", "cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", 2*clusterMasters)) {
			return false
		}
	}
	for i := range c.Replicas {
		if !c.Replicas[i].says(ctx, "info replication", "master_link_status:up") || !c.Masters[i].says(ctx, "info replication", "state=online") {
			return false
		}
	}
	return true
}

// Nodes are all servers of the cluster.
func (c *RedisCluster) Nodes() []*Redis { return append(slices.Clone(c.Masters), c.Replicas...) }

// MasterOf is the index of the master to which a key was given at the start.
func (c *RedisCluster) MasterOf(ctx context.Context, key string) (int, error) {
	slot, err := c.Masters[0].Do(ctx, "cluster", "keyslot", key)
	if err != nil {
		return 0, err
	}
	for i := range c.Masters {
		if slot.(int64) < int64((i+1)*clusterSlots/clusterMasters) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("slot %v is beyond the last", slot)
}

// Addrs are the masters' addresses, separated by commas.
func (c *RedisCluster) Addrs() string { return addrs(c.Masters) }

// URL is the connection string of the store.
func (c *RedisCluster) URL() string { return "redis-cluster://" + c.Addrs() }

// Close ends all servers. It may be called twice.
func (c *RedisCluster) Close() { closeAll(c.Nodes()) }
