package servers

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// RedisSentinel is a Redis master with one replica, and three Sentinels that
// watch it under the name MasterName.
type RedisSentinel struct {
	Master, Replica *Redis // as they were started; a failover changes what they do
	Sentinels       []*Redis
}

// MasterName is what the Sentinels call the master.
const MasterName = "leases"

// quorum is how many Sentinels must agree that the master is down.
const quorum = 2

// A replica logs in as this user of the master's, so that it can be cut off.
const replicaRules = "on >replica +psync +replconf +ping"

// Sentinels talk as seldom as every 10 s by default, and take down for good what
// has been silent for 30 s. A test can't wait so long; but nor is a machine that
// stalls for a second to set off a failover.
const sentinelPace = "sentinel debug info-period 200 publish-period 200 ask-period 200 ping-period 200"

// StartRedisSentinel starts all servers and returns when the Sentinels know each
// other and the replica. A master that is silent for 3 s is replaced. Arguments
// are passed on to master and replica.
func StartRedisSentinel(ctx context.Context, args ...string) (*RedisSentinel, error) {
	s := &RedisSentinel{}
	return orClosed(s, s.start(ctx, args))
}

func (s *RedisSentinel) start(ctx context.Context, args []string) (err error) {
	data := append(append([]string{"--repl-diskless-sync-delay", "0", "--user", "replica"}, strings.Fields(replicaRules)...),
		"--masteruser", "replica", "--masterauth", "replica")
	data = append(data, args...)
	if s.Master, err = StartRedis(ctx, data...); err != nil {
		return err
	}
	s.Replica, err = StartRedis(ctx, append(data, "--replicaof", "127.0.0.1", strconv.Itoa(s.Master.Port))...)
	if err != nil {
		return err
	}
	if err := s.awaitReplica(ctx); err != nil {
		return err
	}
	for range 3 {
		sentinel, err := newRedis("--sentinel")
		if err != nil {
			return err
		}
		s.Sentinels = append(s.Sentinels, sentinel)
		if err := s.watch(ctx, sentinel); err != nil {
			return err
		}
	}
	return await(ctx, "Sentinels that know each other", func(ctx context.Context) bool {
		return !slices.ContainsFunc(s.Sentinels, func(sentinel *Redis) bool {
			return !sentinel.says(ctx, "sentinel ckquorum "+MasterName, "OK 3 usable") ||
				!sentinel.says(ctx, "sentinel replicas "+MasterName, s.Replica.Addr(), "master-link-status ok")
		})
	})
}

// watch starts a Sentinel. It keeps its state in its configuration file.
func (s *RedisSentinel) watch(ctx context.Context, sentinel *Redis) error {
	conf := sentinel.file("sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d %[3]d\nsentinel down-after-milliseconds %[1]s 3000\nsentinel failover-timeout %[1]s 10000\n",
		MasterName, s.Master.Port, quorum)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	sentinel.command = slices.Insert(sentinel.command, 1, conf)
	if err := sentinel.Start(ctx); err != nil {
		return err
	}
	_, err := sentinel.Do(ctx, words(sentinelPace)...)
	return err
}

func (s *RedisSentinel) awaitReplica(ctx context.Context) error {
	return await(ctx, "the replica", func(ctx context.Context) bool {
		return s.Master.says(ctx, "info replication", "state=online") && s.Replica.says(ctx, "info replication", "master_link_status:up")
	})
}

// CutReplication makes the replica lag: it gets nothing more from the master,
// which goes on. Sentinels and clients reach both.
func (s *RedisSentinel) CutReplication(ctx context.Context) error {
	if _, err := s.Master.Do(ctx, "acl", "deluser", "replica"); err != nil {
		return err
	}
	return await(ctx, "the end of the replication", func(ctx context.Context) bool {
		return s.Master.says(ctx, "info replication", "connected_slaves:0")
	})
}

// RestoreReplication lets the replica catch up, and returns when it has.
func (s *RedisSentinel) RestoreReplication(ctx context.Context) error {
	if _, err := s.Master.Do(ctx, words("acl setuser replica "+replicaRules)...); err != nil {
		return err
	}
	return s.awaitReplica(ctx)
}

// AwaitFailover returns when all Sentinels name the replica as the master.
func (s *RedisSentinel) AwaitFailover(ctx context.Context) error {
	return await(ctx, "a failover", func(ctx context.Context) bool {
		return !slices.ContainsFunc(s.Sentinels, func(sentinel *Redis) bool {
			return !sentinel.says(ctx, "sentinel get-master-addr-by-name "+MasterName, strconv.Itoa(s.Replica.Port))
		}) && s.Replica.says(ctx, "role", "master")
	})
}

// Addrs are the Sentinels' addresses, separated by commas.
func (s *RedisSentinel) Addrs() string { return addrs(s.Sentinels) }

// URL is the connection string of the store.
func (s *RedisSentinel) URL() string {
	return "redis-sentinel://" + s.Addrs() + "/0?master_name=" + MasterName
}

// Close ends all servers. It may be called twice.
func (s *RedisSentinel) Close() { closeAll(append([]*Redis{s.Master, s.Replica}, s.Sentinels...)) }
