// Package upstream connects to the PostgreSQL servers: it parses their list, encrypts
// connections, and finds the servers with the wanted role. The caller speaks the protocol
// over a connection.
package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/wirefence/wirefence/internal/connstring"
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
	random     bool   // hosts are tried in random order
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
	u, err := parse(text, o)
	if err != nil {
		return nil, fmt.Errorf("the upstream: %w", err)
	}
	return u, nil
}

// parameters are those of libpq that concern the connection to a server, and not a client's session.
var parameters = []string{
	"connect_timeout", "gssdelegation", "gssencmode", "gsslib", "host", "hostaddr", "keepalives", "keepalives_count",
	"keepalives_idle", "keepalives_interval", "krbsrvname", "load_balance_hosts", "pooling", "port", "ssl_max_protocol_version",
	"ssl_min_protocol_version", "sslcert", "sslcompression", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "sslsni",
	"target_session_attrs", "tcp_user_timeout",
}

func parse(text string, o Options) (*Upstream, error) {
	if text == "" {
		return nil, errors.New("it is missing: name a server, as in postgres://db.internal:5432/")
	}
	s, err := connstring.Parse(text, "pooling")
	if err != nil {
		return nil, err
	}
	if s["user"] != "" || s["dbname"] != "" {
		return nil, errors.New("it names a user or a database: clients are passed through with their own, so name only hosts")
	}
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		if !slices.Contains(parameters, keyword) {
			return nil, fmt.Errorf("its parameter %s is a client's: it may have %s", keyword, strings.Join(parameters, ", "))
		}
	}
	if err = s.Check(); err != nil {
		return nil, err
	}
	dialer := *o.Dialer
	s.SetSockets(&dialer)
	u := &Upstream{
		dialer: &dialer, timeout: cmp.Or(s.ConnectTimeout(), o.Timeout), bound: o.Bound, random: s["load_balance_hosts"] == "random",
		Target: cmp.Or(Target(s["target_session_attrs"]), Any), Pooling: cmp.Or(s["pooling"], "auto"),
	}
	if !slices.Contains([]string{"auto", "session", "transaction"}, u.Pooling) {
		return nil, errors.New("its pooling is none of auto, session, transaction")
	}
	servers, err := s.Servers()
	for _, server := range servers {
		h, unusable := newHost(server)
		u.Hosts, err = append(u.Hosts, h), cmp.Or(err, unusable)
	}
	if err != nil {
		return nil, err
	}
	if u.encryption, err = newEncryption(s, o.Failed); err != nil {
		return nil, err
	}
	if o.ProbeURL != "" && (u.Target != Any || len(u.Hosts) > 1) {
		u.probe, err = newProbe(o.ProbeURL)
	}
	return u, err
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
