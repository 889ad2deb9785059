package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/secure"
)

// Route is a host with an encryption.
type Route struct {
	Host *Host
	// TLS says that the connection is encrypted, or, before Dial, that it should be.
	TLS bool
	// fallback allows a connection without TLS if the server has none.
	fallback bool
}

// Link is a new connection to a server, encrypted if its route says so.
type Link struct {
	net.Conn
	Route Route
	// Binding is the server's tls-server-end-point; nil without TLS.
	Binding []byte
}

// Routes returns the routes for a session with this key (see Host.Learn), in the order to
// try them: hosts that could not be reached lately come late, hosts that had another role
// at the last login come last. Of a host the encryption that sslmode prefers comes first.
func (u *Upstream) Routes(target Target, key string) []Route {
	var good, bad, unfit []Route
	hosts := u.Hosts
	if u.random {
		hosts = slices.Clone(hosts)
		rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	}
	for _, h := range hosts {
		to := &good
		switch {
		case u.probe == nil && h.mismatches(target, key):
			to = &unfit
		case h.avoided():
			to = &bad
		}
		*to = append(*to, u.routesTo(h)...)
	}
	return append(append(good, bad...), unfit...)
}

// routesTo returns the routes to a host, in the order to try them.
func (u *Upstream) routesTo(h *Host) []Route {
	switch {
	case h.Network == "unix" || u.encryption.mode == "disable":
		return []Route{{Host: h}}
	case u.encryption.mode == "allow":
		return []Route{{Host: h}, {Host: h, TLS: true}}
	case u.encryption.mode == "prefer":
		return []Route{{Host: h, TLS: true, fallback: true}, {Host: h}}
	}
	return []Route{{Host: h, TLS: true}}
}

// UnreachableError says that no connection to a host could be opened. Its other routes
// would fail, too.
type UnreachableError struct {
	Host *Host
	Err  error
}

func (e *UnreachableError) Error() string { return e.Err.Error() }
func (e *UnreachableError) Unwrap() error { return e.Err }

// Dial opens a connection by a route, and encrypts it. The returned link's route says
// whether it is encrypted.
func (u *Upstream) Dial(caller context.Context, r Route) (*Link, error) {
	ctx, cancel := context.WithTimeout(caller, u.timeout)
	defer cancel()
	conn, err := u.dialer.DialContext(ctx, r.Host.Network, r.Host.Addr)
	if err == nil || !expired(caller) {
		r.Host.recordDial(err == nil)
	}
	if err != nil {
		return nil, &UnreachableError{r.Host, err}
	}
	if !r.TLS {
		return &Link{Conn: conn, Route: r}, nil
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	link, err := u.encrypt(ctx, conn, r)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", r.Host.Addr, err)
	}
	_ = conn.SetDeadline(time.Time{})
	return link, nil
}

// sslRequest asks a server for TLS (documentation, "SSLRequest").
var sslRequest = []byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}

var errNoTLS = errors.New("the server does not support TLS, but sslmode requires it")

func (u *Upstream) encrypt(ctx context.Context, conn net.Conn, r Route) (*Link, error) {
	if !u.encryption.direct {
		if _, err := conn.Write(sslRequest); err != nil {
			return nil, err
		}
		// Read one byte only: bytes that a man in the middle has injected behind it must
		// not count as the server's (CVE-2021-23222).
		var answer [1]byte
		if _, err := io.ReadFull(conn, answer[:]); err != nil {
			return nil, fmt.Errorf("asking for TLS: %w", err)
		}
		switch {
		case answer[0] == 'S':
		case answer[0] == 'N' && r.fallback:
			r.TLS = false
			return &Link{Conn: conn, Route: r}, nil
		case answer[0] == 'N':
			return nil, errNoTLS
		default:
			return nil, fmt.Errorf("the answer to the request for TLS is %q, neither S nor N", answer[0])
		}
	}
	encrypted := secure.Client(conn, u.encryption.config(r.Host))
	if err := encrypted.LimitedHandshake(ctx); err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	state := encrypted.ConnectionState()
	if u.encryption.direct && state.NegotiatedProtocol != ALPN {
		return nil, errors.New("TLS: the server did not agree on the protocol postgresql: sslnegotiation=direct needs PostgreSQL 17")
	}
	return &Link{Conn: encrypted, Route: r, Binding: scram.EndPoint(state.PeerCertificates[0])}, nil
}

// Cancel sends a CancelRequest to a server, and returns when the server has closed the
// connection: PostgreSQL sends the signal before that.
func (u *Upstream) Cancel(ctx context.Context, r Route, packet []byte) error {
	r.fallback = false
	link, err := u.Dial(ctx, r)
	if err != nil {
		return err
	}
	defer link.Close()
	deadline := time.Now().Add(u.timeout)
	if sooner, ok := ctx.Deadline(); ok && sooner.Before(deadline) {
		deadline = sooner
	}
	_ = link.SetDeadline(deadline)
	defer context.AfterFunc(ctx, func() { _ = link.SetDeadline(time.Unix(1, 0)) })()
	if _, err := link.Write(packet); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, link)
	return err
}

// Reachable returns an error if no server answers. It asks for TLS, also where sessions have none: the
// system accepts connections for a server that is stopped.
func (u *Upstream) Reachable(ctx context.Context) error {
	var failures []error
	for _, h := range u.Hosts {
		link, err := u.Dial(ctx, Route{Host: h, TLS: true, fallback: true})
		if err == nil {
			return link.Close()
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
