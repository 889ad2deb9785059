package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// upstream is where the PostgreSQL servers are.
type upstream struct {
	addrs []address
}

type address struct{ network, addr string }

// parseUpstream reads postgres://host1:5432,host2:5432/?host=…&port=…. The
// clients' own credentials and databases are used, so it names none.
func parseUpstream(text string) (*upstream, error) {
	if text == "" {
		return nil, errors.New("the upstream is missing: name a server, as in postgres://db.internal:5432/")
	}
	rest, ok := strings.CutPrefix(text, "postgres://")
	if !ok {
		if rest, ok = strings.CutPrefix(text, "postgresql://"); !ok {
			return nil, errors.New("the upstream is not of the form postgres://host:port/")
		}
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, database, _ := strings.Cut(rest, "/")
	params, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("the upstream's parameters: %w", err)
	}
	if strings.Contains(hosts, "@") || database != "" {
		return nil, errors.New("the upstream names a user or a database: clients are passed through with their own, so name only hosts")
	}
	if err := checkParams(params); err != nil {
		return nil, err
	}
	if hosts == "" {
		hosts = params.Get("host")
	}
	u := &upstream{}
	for host := range strings.SplitSeq(hosts, ",") {
		a, err := parseHost(host, params.Get("port"))
		if err != nil {
			return nil, err
		}
		u.addrs = append(u.addrs, a)
	}
	return u, nil
}

func checkParams(params url.Values) error {
	for name, values := range params {
		value := values[len(values)-1]
		switch name {
		case "host", "port":
		case "sslmode":
			switch value {
			case "disable", "allow", "prefer":
			case "require", "verify-ca", "verify-full":
				return fmt.Errorf("the upstream wants sslmode=%s, but this version connects without TLS: use sslmode=disable on a network you trust", value)
			default:
				return fmt.Errorf("the upstream's sslmode %q is unknown", value)
			}
		case "target_session_attrs":
			if value != "any" {
				return fmt.Errorf("the upstream wants target_session_attrs=%s, but this version knows only any: name the primary first", value)
			}
		default:
			return fmt.Errorf("the upstream's parameter %q is unknown: host, port, sslmode and target_session_attrs are known", name)
		}
	}
	return nil
}

func parseHost(host, defaultPort string) (address, error) {
	port := defaultPort
	if port == "" {
		port = "5432"
	}
	host, err := url.PathUnescape(host)
	if err != nil {
		return address{}, fmt.Errorf("the upstream's host: %w", err)
	}
	if strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
		return address{"unix", filepath.Join(host, ".s.PGSQL."+port)}, nil
	}
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	} else if strings.Count(host, ":") == 1 {
		return address{}, fmt.Errorf("the upstream's host %q: %w", host, err)
	}
	host = strings.Trim(host, "[]")
	if host == "" {
		return address{}, errors.New("the upstream has an empty host")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return address{}, fmt.Errorf("the upstream's port %q is not a number from 1 to 65535", port)
	}
	return address{"tcp", net.JoinHostPort(host, port)}, nil
}

// dial connects to the first host that answers. timeout bounds each attempt.
func (u *upstream) dial(ctx context.Context, timeout time.Duration) (net.Conn, address, error) {
	var failures []error
	for _, a := range u.addrs {
		d := net.Dialer{Timeout: timeout}
		conn, err := d.DialContext(ctx, a.network, a.addr)
		if err == nil {
			return conn, a, nil
		}
		failures = append(failures, err)
	}
	return nil, address{}, errors.Join(failures...)
}

func (u *upstream) String() string {
	var names []string
	for _, a := range u.addrs {
		names = append(names, a.addr)
	}
	return strings.Join(names, ",")
}
