// Package upstream is the way to the PostgreSQL servers: which they are, how a
// connection to one is encrypted, and which of them has the role that sessions
// want. What is said over a connection is its caller's business.
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

// Upstream is a list of servers with what connections to them need. Its methods
// are safe for concurrent use.
type Upstream struct {
	Hosts  []*Host
	Target Target
	// Pooling is what the URL says of a connection pooler there: auto, session or
	// transaction.
	Pooling string

	encryption encryption
	dialer     *net.Dialer
	timeout    time.Duration
	probe      *probe // nil: a role is learnt from logins alone
	seen       timelines.Seen
}

// Options are what an upstream's URL doesn't say.
type Options struct {
	// Dialer opens the sockets.
	Dialer *net.Dialer
	// Timeout bounds each attempt to connect to one host, TLS included.
	Timeout time.Duration
	// ProbeURL is a connection string whose user, password and database are used
	// to ask servers for their role and timeline; "" asks none.
	ProbeURL string
	// Failed is told when a file that has changed can't be used.
	Failed func(error)
}

// New reads postgres://host1:5432,host2:5432/?name=value… in the terms of libpq
// (documentation, "Connection URIs"). The clients' own credentials and databases
// are used, so it names none. Files that it names must be there.
func New(text string, o Options) (*Upstream, error) {
	hosts, params, err := parse(text)
	if err != nil {
		return nil, err
	}
	u := &Upstream{dialer: o.Dialer, timeout: o.Timeout}
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

// parameters are those that an upstream's URL may have.
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
