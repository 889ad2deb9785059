package witness

import (
	"context"
	"errors"
	"net/url"

	"github.com/wirefence/wirefence/internal/address"
	"github.com/wirefence/wirefence/internal/apiserver"
)

// openKubernetes reads a Lease of coordination.k8s.io/v1 from the API server.
func openKubernetes(text string, servers []string) (*Witness, error) {
	u, err := address.Parse(text, "kubernetes", "443", "bound", "names", "server", "token")
	if err != nil {
		return nil, err
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" || u.Path == "" || len(u.Hosts) != 1 {
		return nil, errors.New("it names no lease: give it as in kubernetes://NAMESPACE/LEASE")
	}
	w := &Witness{}
	if w.Bound, err = bound(&u); err != nil {
		return nil, err
	}
	leaders, err := names(&u, servers)
	if err != nil {
		return nil, err
	}
	client, err := apiserver.New(apiserver.Options{Server: u.Settings["server"], CAFile: u.Settings["ca"], TokenFile: u.Settings["token"]})
	if err != nil {
		return nil, err
	}
	w.close = func() error { client.Close(); return nil }
	// The Lease may have expired: whoever leads next writes its own name first, and then no later
	// question confirms this one.
	w.leads = func(ctx context.Context, server int) (bool, error) {
		l, err := client.Get(ctx, parsed.Hostname(), u.Path)
		return err == nil && l.Spec.HolderIdentity == leaders[server], err
	}
	return w, nil
}
