// Package upstream connects to the PostgreSQL servers: it parses their list, encrypts
// connections, and finds the servers with the wanted role. The caller speaks the protocol
// over a connection.
package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/wirefence/wirefence/internal/timelines"
)

// Upstream is a list of servers and the settings of connections to them. Its methods are
// safe for concurrent use.
type Upstream struct {
	Hosts  []*Host
	Target Target
	// Pooling is the URL's parameter for a connection pooler: auto, session or
	// transaction.
	Pooling string

	encryption encryption
	dialer     *net.Dialer
	timeout    time.Duration
	probe      *probe // nil: roles are learned from logins alone
	seen       timelines.Seen
	bound      time.Duration // see Options.Bound
}

// Options are the settings that aren't in an upstream's URL.
type Options struct {
	// Dialer opens the sockets.
	Dialer *net.Dialer
	// Timeout bounds each attempt to connect to one host, TLS included.
	Timeout time.Duration
	// ProbeURL is a connection string whose user, password and database are used
	// to ask servers for their role and timeline; "" asks none.
	ProbeURL string
	// Bound is how long a witness's confirmation counts; 0 without a witness.
	Bound time.Duration
	// Failed gets the error if a changed file can't be used.
	Failed func(error)
}

// New parses postgres://host1:5432,host2:5432/?name=value… in the terms of libpq
// (documentation, "Connection URIs"). It must name no user or database: clients connect
// with their own. Its files must exist.
func New(text string, o Options) (*Upstream, error) {
	hosts, params, err := parse(text)
	if err != nil {
		return nil, err
	}
	u := &Upstream{dialer: o.Dialer, timeout: o.Timeout, bound: o.Bound}
	if u.Hosts, err = parseHosts(hosts, params.Get("port")); err != nil {
		return nil, err
	}
	if u.Target, err = parseTarget(params.Get("target_session_attrs")); err != nil {
		return nil, err
	}
	if u.Pooling = cmp.Or(params.Get("pooling"), "auto"); !slices.Contains([]string{"auto", "session", "transaction"}, u.Pooling) {
		return nil, fmt.Errorf("the upstream's pooling is %q, none of auto, session, transaction", u.Pooling)
	}
	if u.encryption, err = newEncryption(params, o.Failed); err != nil {
		return nil, err
	}
	if o.ProbeURL != "" && (u.Target != Any || len(u.Hosts) > 1) {
		u.probe, err = newProbe(o.ProbeURL)
	}
	return u, err
}

// parameters are the allowed parameters of an upstream's URL.
var parameters = []string{
	"host", "pooling", "port", "sslcert", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs",
}

func parse(text string) (hosts string, params url.Values, err error) {
	if text == "" {
		return "", nil, errors.New("the upstream is missing: name a server, as in postgres://db.internal:5432/")
	}
	rest, ok := strings.CutPrefix(text, "postgres://")
	if !ok {
		if rest, ok = strings.CutPrefix(text, "postgresql://"); !ok {
			return "", nil, errors.New("the upstream is not of the form postgres://host:port/")
		}
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, database, _ := strings.Cut(rest, "/")
	if params, err = url.ParseQuery(query); err != nil {
		return "", nil, fmt.Errorf("the upstream's parameters: %w", err)
	}
	if strings.HasPrefix(hosts, "@") && !strings.Contains(hosts[1:], "@") {
		return "", nil, errors.New("the upstream's abstract socket must be percent-encoded, as in postgres://%40name/")
	}
	if strings.Contains(hosts, "@") || database != "" {
		return "", nil, errors.New("the upstream names a user or a database: clients are passed through with their own, so name only hosts")
	}
	for name, values := range params {
		if !slices.Contains(parameters, name) {
			return "", nil, fmt.Errorf("the upstream's parameter %q is unknown: known are %s", name, strings.Join(parameters, ", "))
		}
		if len(values) > 1 {
			return "", nil, fmt.Errorf("the upstream's parameter %q is given twice", name)
		}
	}
	if hosts == "" {
		hosts = params.Get("host")
	} else if params.Has("host") {
		return "", nil, errors.New("the upstream names its hosts twice, before the path and as a parameter")
	}
	return hosts, params, nil
}

// Reload reads certificates and keys again.
func (u *Upstream) Reload() error { return u.encryption.reload() }

func (u *Upstream) String() string {
	var names []string
	for _, h := range u.Hosts {
		names = append(names, h.Addr)
	}
	return strings.Join(names, ",")
}
