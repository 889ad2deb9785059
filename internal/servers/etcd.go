package servers

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Etcd is a running etcd server, alone or a member of a cluster. Its data
// outlives Stop and Kill.
type Etcd struct {
	process

	name   string
	peer   string // URL for the other members
	peers  string // of all members
	health string // URL that tells whether it is ready, without TLS
	args   []string
}

// StartEtcd starts a server on free loopback ports. Arguments are passed on to
// etcd; with --cert-file among them, clients come by TLS. It returns when the
// server answers. Leases are given at least 1 s.
func StartEtcd(ctx context.Context, args ...string) (*Etcd, error) {
	members, err := StartEtcdCluster(ctx, 1, append([]string{"--heartbeat-interval=50", "--election-timeout=500"}, args...)...)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// StartEtcdCluster starts a cluster of n members and returns when all of them
// answer.
func StartEtcdCluster(ctx context.Context, n int, args ...string) ([]*Etcd, error) {
	if _, err := lookUp("etcd"); err != nil {
		return nil, err
	}
	var members []*Etcd
	var peers []string
	closeAll := func() {
		for _, member := range members {
			member.Close()
		}
	}
	for i := range n {
		member, err := newEtcd(fmt.Sprint("member", i), args)
		if err != nil {
			closeAll()
			return nil, err
		}
		members = append(members, member)
		peers = append(peers, member.name+"="+member.peer)
	}
	for _, member := range members {
		member.peers = strings.Join(peers, ",")
	}
	return members, startTogether(ctx, members)
}

func newEtcd(name string, args []string) (*Etcd, error) {
	p, err := newProcess("etcd")
	if err != nil {
		return nil, err
	}
	e := &Etcd{process: p, name: name, args: args}
	for _, url := range []*string{&e.peer, &e.health} {
		port, err := FreePort()
		if err != nil {
			e.Close()
			return nil, err
		}
		*url = fmt.Sprintf("http://127.0.0.1:%d", port)
	}
	return e, nil
}

// Start starts a server that was ended by Stop or Kill, with its data and on
// the same ports. A member of a cluster is ready when there is a majority.
func (e *Etcd) Start(ctx context.Context) error {
	url := "http://" + e.Addr()
	if slices.ContainsFunc(e.args, func(arg string) bool { return strings.HasPrefix(arg, "--cert-file") }) {
		url = "https://" + e.Addr()
	}
	args := append([]string{
		"--name=" + e.name, "--data-dir=" + e.data(), "--log-level=warn", "--logger=zap",
		"--listen-metrics-urls=" + e.health,
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=" + e.peer, "--initial-advertise-peer-urls=" + e.peer, "--initial-cluster=" + e.peers,
	}, e.args...)
	return e.run(ctx, exec.Command("etcd", args...), func(ctx context.Context) error { return answersOK(ctx, e.health+"/health") })
}

// URL is the connection string of the server.
func (e *Etcd) URL() string { return "etcd://" + e.Addr() }
