package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Etcd is a running etcd server, alone or a member of a cluster. Its data
// outlives Stop and Kill.
type Etcd struct {
	process
	peer, health int // ports for the other members, and without TLS
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
	var members []*Etcd
	var peers []string
	var failed error
	for i := range n {
		e := &Etcd{}
		failed = errors.Join(failed, e.prepare("etcd", &e.peer, &e.health))
		members = append(members, e)
		peers = append(peers, fmt.Sprintf("member%d=http://127.0.0.1:%d", i, e.peer))
	}
	scheme := "http://"
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--cert-file") }) {
		scheme = "https://"
	}
	for i, e := range members {
		url, peer, health := scheme+e.Addr(), fmt.Sprint("http://127.0.0.1:", e.peer), fmt.Sprint("http://127.0.0.1:", e.health)
		e.command = slices.Concat(e.command, []string{
			fmt.Sprint("--name=member", i), "--data-dir=" + e.data(), "--log-level=warn", "--logger=zap", "--listen-metrics-urls=" + health,
			"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=" + strings.Join(peers, ","),
		}, args)
		e.ready = func(ctx context.Context) error { return answersOK(ctx, health+"/health") }
	}
	return startTogether(ctx, members, failed)
}

// URL is the connection string of the server.
func (e *Etcd) URL() string { return "etcd://" + e.Addr() }
