// Package witness asks the service that elects the primary of a PostgreSQL cluster which server leads:
// Patroni, the etcd in which Patroni elects, a Lease of Kubernetes, or CloudNativePG.
package witness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/wirefence/wirefence/internal/address"
)

// Witness tells which of some servers leads. It is safe for concurrent use.
type Witness struct {
	// Bound is how long a confirmation counts, from when its question was sent.
	Bound time.Duration

	leads  func(ctx context.Context, server int) (bool, error)
	leader func(ctx context.Context) (netip.Addr, error) // instead of leads: zero while none leads
	close  func() error
}

// The bounds of the setting bound.
const (
	standardBound = 10 * time.Second
	leastBound    = 200 * time.Millisecond
)

// Open makes the witness of a connection string for servers, which are host:port. It doesn't
// connect yet. The string is one of these, with TLS by tls, ca, cert and key as for etcd:
//
//   - patroni://host:8008,host:8008 has the REST interface of each server's Patroni, in the
//     servers' order
//   - etcd://user:password@host:2379,host:2379/service/SCOPE/leader has the key that names the leader
//   - kubernetes://namespace/lease names a Lease
//   - cloudnativepg://namespace/cluster names a Cluster of CloudNativePG, whose servers may be reached by
//     one address
//
// Each takes bound, a duration. etcd and kubernetes take names, the leader's name for each server in
// the servers' order; by default that is the host's name up to its first dot.
func Open(text string, servers []string) (*Witness, error) {
	scheme, _, _ := strings.Cut(text, "://")
	open, known := map[string]func(string, []string) (*Witness, error){
		"patroni": openPatroni, "etcd": openEtcd, "kubernetes": openKubernetes, "cloudnativepg": openCloudNativePG,
	}[scheme]
	if !known {
		return nil, errors.New("it is none of patroni://, etcd://, kubernetes:// and cloudnativepg://")
	}
	return open(text, servers)
}

// Leads asks whether the server at an index leads. An error says that it isn't known. Where several servers
// share an address, it tells the leader's own.
func (w *Witness) Leads(ctx context.Context, server int) (leads bool, address netip.Addr, err error) {
	if w.leader != nil {
		address, err = w.leader(ctx)
		return address.IsValid(), address, err
	}
	leads, err = w.leads(ctx, server)
	return leads, address, err
}

// Close ends the witness's connections.
func (w *Witness) Close() error { return w.close() }

// bound reads the setting of that name.
func bound(u *address.URL) (time.Duration, error) {
	text := u.Settings["bound"]
	if text == "" {
		return standardBound, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < leastBound {
		return 0, fmt.Errorf("bound is %q, expected a duration of at least %v, as in 10s", text, leastBound)
	}
	return d, nil
}

// names reads the setting of that name: the leader's name for each server.
func names(u *address.URL, servers []string) ([]string, error) {
	var all []string
	if text := u.Settings["names"]; text != "" {
		if all = strings.Split(text, ","); len(all) != len(servers) {
			return nil, fmt.Errorf("names has %d names for the %d servers of the upstream", len(all), len(servers))
		}
		return all, nil
	}
	for _, server := range servers {
		host, _, err := net.SplitHostPort(server)
		if err != nil || net.ParseIP(host) != nil {
			return nil, fmt.Errorf("the server %s has no name by which its leader could be known: give names=NAME,… in the order of the upstream's servers", server)
		}
		name, _, _ := strings.Cut(host, ".")
		all = append(all, name)
	}
	return all, nil
}
