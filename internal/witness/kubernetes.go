package witness

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/wirefence/wirefence/internal/address"
	"github.com/wirefence/wirefence/internal/apiserver"
)

// openKubernetes reads a Lease of coordination.k8s.io/v1 from the API server.
func openKubernetes(text string, servers []string) (*Witness, error) {
	o, err := parseObject(text, "kubernetes", "LEASE", "names")
	if err != nil {
		return nil, err
	}
	leaders, err := names(&o.url, servers)
	if err != nil {
		return nil, err
	}
	w, client, err := o.open()
	if err != nil {
		return nil, err
	}
	// The Lease may have expired: whoever leads next writes its own name first, and then no later
	// question confirms this one.
	w.leads = func(ctx context.Context, server int) (bool, error) {
		l, err := client.Get(ctx, o.namespace, o.url.Path)
		return err == nil && l.Spec.HolderIdentity == leaders[server], err
	}
	return w, nil
}

// openCloudNativePG reads a Cluster from the API server. The Services of a Cluster lead to any of its
// servers, so its leader is told by the address that the server itself has.
func openCloudNativePG(text string, servers []string) (*Witness, error) {
	o, err := parseObject(text, "cloudnativepg", "CLUSTER")
	if err != nil {
		return nil, err
	}
	if len(servers) != 1 {
		return nil, errors.New("the upstream has several hosts: name the Service CLUSTER-rw alone")
	}
	w, client, err := o.open()
	if err != nil {
		return nil, err
	}
	w.leader = func(ctx context.Context) (netip.Addr, error) {
		c, err := client.GetCluster(ctx, o.namespace, o.url.Path)
		if err != nil {
			return netip.Addr{}, err
		}
		return c.Primary()
	}
	return w, nil
}

// object is one of Kubernetes' that a connection string names.
type object struct {
	url       address.URL // whose path is the name
	namespace string
}

func parseObject(text, scheme, what string, settings ...string) (o object, err error) {
	if o.url, err = address.Parse(text, scheme, "443", append(settings, "bound", "server", "token")...); err != nil {
		return o, err
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" || o.url.Path == "" || len(o.url.Hosts) != 1 {
		return o, fmt.Errorf("it names no %s: give it as in %s://NAMESPACE/%s", strings.ToLower(what), scheme, what)
	}
	o.namespace = parsed.Hostname()
	return o, nil
}

// open makes a witness without its question, and the client for that.
func (o *object) open() (w *Witness, client *apiserver.Client, err error) {
	w = &Witness{}
	if w.Bound, err = bound(&o.url); err != nil {
		return nil, nil, err
	}
	client, err = apiserver.New(apiserver.Options{Server: o.url.Settings["server"], CAFile: o.url.Settings["ca"], TokenFile: o.url.Settings["token"]})
	if err != nil {
		return nil, nil, err
	}
	w.close = func() error { client.Close(); return nil }
	return w, client, nil
}
