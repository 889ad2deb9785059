// Package apiserver reads Leases of coordination.k8s.io/v1, and Clusters of CloudNativePG, from the API server
// of Kubernetes.
//
// Of this module it imports internal/address.
package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/wirefence/wirefence/internal/address"
)

// The defaults are those of a pod.
const (
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"
	podServer      = "https://kubernetes.default.svc"
)

// Options say where the API server is, and how it and this client are known to each other.
type Options struct {
	Server    string // Default: that of the pod's cluster.
	CAFile    string // Default: that of the pod's service account.
	TokenFile string // likewise, read for each request, since Kubernetes replaces it
}

// ParseOptions reads https://host:port?ca=FILE&token=FILE.
func ParseOptions(text string) (o Options, err error) {
	if text == "" {
		return o, nil
	}
	u, err := address.Parse(text, "https", "443", "token")
	switch {
	case err != nil:
		return o, err
	case len(u.Hosts) != 1 || u.Path != "" || u.User != "":
		return o, errors.New("it is written https://host:port?ca=FILE&token=FILE")
	}
	return Options{Server: "https://" + u.Hosts[0], CAFile: u.Settings["ca"], TokenFile: u.Settings["token"]}, nil
}

// Client reads them. It is safe for concurrent use.
type Client struct {
	http   *http.Client
	server string
	token  string // the file
}

// New makes a client. It reads the authority's certificate, and doesn't connect yet.
func New(o Options) (*Client, error) {
	ca := cmp.Or(o.CAFile, serviceAccount+"ca.crt")
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca: %s holds no certificate", ca)
	}
	return &Client{
		// HTTP/1.1, where a request that ends takes a connection with it that may be dead.
		http:   &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}},
		server: strings.TrimSuffix(cmp.Or(o.Server, podServer), "/"), token: cmp.Or(o.TokenFile, serviceAccount+"token"),
	}, nil
}

// Close ends the connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Lease is what a Lease says of its holder. Leases can be compared by ==.
type Lease struct {
	Kind     string   `json:"kind"`
	Metadata Metadata `json:"metadata"`
	Spec     Spec     `json:"spec"`
}

// Metadata are those of one object: a Lease that was deleted and made anew has another UID.
type Metadata struct {
	UID               string    `json:"uid"`
	CreationTimestamp time.Time `json:"creationTimestamp"`
}

// Spec is what a holder writes. Each renewal changes RenewTime, which is by the holder's clock.
type Spec struct {
	HolderIdentity       string `json:"holderIdentity"`
	LeaseDurationSeconds int32  `json:"leaseDurationSeconds"`
	LeaseTransitions     int32  `json:"leaseTransitions"`
	AcquireTime          string `json:"acquireTime"`
	RenewTime            string `json:"renewTime"`
}

// StatusError is an answer of the API server that isn't the object.
type StatusError int

func (e StatusError) Error() string {
	return fmt.Sprintf("the API server answers with status %d", int(e))
}

// Forbidden reports whether the API server has refused a request for want of rights.
func Forbidden(err error) bool {
	return errors.Is(err, StatusError(http.StatusForbidden)) || errors.Is(err, StatusError(http.StatusUnauthorized))
}

// mostAnswer is more than any Lease has, in bytes.
const mostAnswer = 1 << 20

// Get reads a Lease.
func (c *Client) Get(ctx context.Context, namespace, name string) (l Lease, err error) {
	body, err := c.read(ctx, path(namespace)+"/"+url.PathEscape(name))
	if err != nil {
		return l, err
	}
	return readLease(body)
}

func readLease(body []byte) (l Lease, err error) {
	if err := json.Unmarshal(body, &l); err != nil || l.Kind != "Lease" {
		return l, errors.New("the API server's answer is no Lease")
	}
	return l, nil
}

// Seen is what the cluster has of a Lease at a version.
type Seen struct {
	Lease   Lease
	Exists  bool
	Version string // behind which a watch brings what comes next
}

// Look reads a Lease as the cluster has it now. A Lease that nobody changes keeps its own version, which
// the server forgets; the version of a list is the cluster's.
func (c *Client) Look(ctx context.Context, namespace, name string) (seen Seen, err error) {
	body, err := c.read(ctx, path(namespace)+"?"+selecting(name).Encode())
	if err != nil {
		return seen, err
	}
	var list struct {
		Kind     string `json:"kind"`
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []Lease `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil || list.Kind != "LeaseList" || len(list.Items) > 1 {
		return seen, errors.New("the API server's answer is no list of the Lease")
	}
	if seen.Version = list.Metadata.ResourceVersion; len(list.Items) == 1 {
		seen.Lease, seen.Exists = list.Items[0], true
		seen.Lease.Kind = "Lease" // which a list leaves out
	}
	return seen, nil
}

// selecting selects a Lease by its name, so that a role may be limited to that.
func selecting(name string) url.Values { return url.Values{"fieldSelector": {"metadata.name=" + name}} }

func path(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/leases"
}

// read returns the whole answer to a request.
func (c *Client) read(ctx context.Context, path string) ([]byte, error) {
	answer, err := c.ask(ctx, path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
}

// ask returns an answer with status 200, whose body the caller closes.
func (c *Client) ask(ctx context.Context, path string) (*http.Response, error) {
	token, err := os.ReadFile(c.token)
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+string(bytes.TrimSpace(token)))
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, StatusError(answer.StatusCode)
	}
	return answer, nil
}
