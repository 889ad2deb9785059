package witness

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"github.com/wirefence/wirefence/internal/address"
)

// The defaults are those of a pod.
const (
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"
	apiServer      = "https://kubernetes.default.svc"
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
	k := &kubernetes{}
	w := &Witness{leads: k.leads}
	if w.Bound, err = bound(&u); err != nil {
		return nil, err
	}
	if k.names, err = names(&u, servers); err != nil {
		return nil, err
	}
	setting := func(name, otherwise string) string {
		if text := u.Settings[name]; text != "" {
			return text
		}
		return otherwise
	}
	k.tokenFile = setting("token", serviceAccount+"token")
	k.url = setting("server", apiServer) + "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(parsed.Hostname()) + "/leases/" + url.PathEscape(u.Path)
	ca := setting("ca", serviceAccount+"ca.crt")
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca: %s holds no certificate", ca)
	}
	k.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}}
	w.close = func() error { k.client.CloseIdleConnections(); return nil }
	return w, nil
}

type kubernetes struct {
	client    *http.Client
	url       string
	tokenFile string
	names     []string
}

// lease is a Lease as the API server writes it.
type lease struct {
	Kind string `json:"kind"`
	Spec struct {
		HolderIdentity string `json:"holderIdentity"`
	} `json:"spec"`
}

// leads reports whether the Lease names the server. It may have expired: whoever leads next
// writes its own name first, and then no later question confirms this one.
func (k *kubernetes) leads(ctx context.Context, server int) (bool, error) {
	token, err := os.ReadFile(k.tokenFile) // which Kubernetes replaces
	if err != nil {
		return false, fmt.Errorf("token: %w", err)
	}
	status, body, err := ask(ctx, k.client, k.url, "", "", string(bytes.TrimSpace(token)))
	if err != nil {
		return false, err
	}
	if status != http.StatusOK {
		return false, fmt.Errorf("the API server answers with status %d for the Lease", status)
	}
	var l lease
	if err := json.Unmarshal(body, &l); err != nil || l.Kind != "Lease" {
		return false, errors.New("the API server's answer is no Lease")
	}
	return l.Spec.HolderIdentity == k.names[server], nil
}
