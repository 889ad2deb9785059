//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/servers"
)

// durable is a server that writes its data to disk before it answers.
type durable interface {
	Start(ctx context.Context) error
	Stop()
	Kill()
	Pause() error
	Resume() error
	SaveData() (string, error)
	RestoreData(saved string) error
	Addr() string
}

// durables is one such server, or a cluster of them.
type durables struct {
	members []durable
	scheme  string
	query   string // of the connection string
	empty   string // a folder with nothing in it
}

// addr is of a single server. The members of a cluster are all needed, and name
// each other.
func (d durables) addr(int) string {
	if len(d.members) > 1 {
		return ""
	}
	return d.members[0].Addr()
}

func (d durables) url(addr string) string {
	if addr != "" {
		return d.scheme + "://" + addr + d.query
	}
	var all []string
	for _, member := range d.members {
		all = append(all, member.Addr())
	}
	return d.scheme + "://" + strings.Join(all, ",") + d.query
}

// startEtcd starts a cluster of n members.
func startEtcd(n int) func(*testing.T, *world) store {
	return func(t *testing.T, _ *world) store {
		members, err := servers.StartEtcdCluster(t.Context(), n, "--heartbeat-interval=50", "--election-timeout=500")
		return endWith(t, members, err, durables{scheme: "etcd", empty: t.TempDir()})
	}
}

func startZooKeeper(n int) func(*testing.T, *world) store {
	return func(t *testing.T, _ *world) store {
		members, err := servers.StartZooKeeperEnsemble(t.Context(), n)
		return endWith(t, members, err, durables{scheme: "zookeeper", query: fmt.Sprint("?tick=", servers.ZooKeeperTick), empty: t.TempDir()})
	}
}

// endWith puts the members of a cluster into d, and closes them with the test.
func endWith[S interface {
	durable
	Close()
}](t *testing.T, members []S, err error, d durables) durables {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range members {
		t.Cleanup(member.Close)
		d.members = append(d.members, member)
	}
	return d
}

func (d durables) start() error { return d.members[0].Start(context.Background()) }

var durableFaults = []fault{
	nothing,
	{name: "killed", keepsMemory: true, strike: on(func(d durables, _ *world, _ *rand.Rand) (func() error, error) {
		d.members[0].Kill()
		return d.start, nil
	})},
	{name: "killed, comes back empty", strike: on(func(d durables, _ *world, _ *rand.Rand) (func() error, error) {
		d.members[0].Kill()
		return d.start, d.members[0].RestoreData(d.empty)
	})},
	{name: "restored from an old snapshot", strike: on(func(d durables, _ *world, _ *rand.Rand) (func() error, error) {
		server := d.members[0]
		server.Stop()
		saved, err := server.SaveData()
		return func() error {
			server.Kill()
			return errors.Join(server.RestoreData(saved), d.start())
		}, errors.Join(err, d.start())
	})},
	{name: "stopped, goes on", keepsMemory: true, strike: on(func(d durables, _ *world, _ *rand.Rand) (func() error, error) {
		return d.members[0].Resume, d.members[0].Pause()
	})},
	cutOff,
}

// memberKilled kills one member of a cluster, perhaps its leader.
var memberKilled = fault{name: "a member killed", keepsMemory: true, strike: on(func(d durables, _ *world, r *rand.Rand) (func() error, error) {
	member := d.members[r.IntN(len(d.members))]
	member.Kill()
	return func() error { return member.Start(context.Background()) }, nil
})}
