package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/wirefence/wirefence/internal/watched"
	"github.com/wirefence/wirefence/proxy/internal/scram"
	"github.com/wirefence/wirefence/proxy/internal/secure"
	"github.com/wirefence/wirefence/proxy/internal/upstream"
	"github.com/wirefence/wirefence/proxy/internal/users"
)

// TLSMode says whether clients must use TLS.
type TLSMode string

// The modes. Clients at Unix sockets never use TLS, as with PostgreSQL.
const (
	TLSAllow   TLSMode = "allow"   // clients may use TLS
	TLSRequire TLSMode = "require" // sessions without TLS are refused with 28000
)

// ClientCert says whether a client must present a certificate.
type ClientCert string

// The demands, in the terms of pg_hba.conf's clientcert.
const (
	CertOptional   ClientCert = "optional"    // a certificate that is presented must be valid
	CertVerifyCA   ClientCert = "verify-ca"   // a valid certificate is required
	CertVerifyFull ClientCert = "verify-full" // and its common name must be the user's name
)

// TLS configures the encryption of clients' connections. Without CertFile there is none.
// The files are read again when they change.
type TLS struct {
	// CertFile and KeyFile are the proxy's certificate, with its chain, and key,
	// in PEM form.
	CertFile, KeyFile string
	// Mode is TLSAllow by default, and TLSRequire if ClientCert demands certificates: a
	// client without TLS presents none.
	Mode TLSMode
	// MinVersion is 1.2 or 1.3. Default 1.2.
	MinVersion string
	// ClientCAFile holds the authorities of clients' certificates. By default the proxy
	// requests none.
	ClientCAFile string
	// ClientCert is CertVerifyCA by default where ClientCAFile is set.
	ClientCert ClientCert
}

func (t *TLS) validate() error {
	if t.CertFile == "" {
		if *t != (TLS{}) {
			return errors.New("TLS is configured without a certificate: set WIREFENCE_TLS_CERT_FILE and WIREFENCE_TLS_KEY_FILE")
		}
		return nil
	}
	if t.KeyFile == "" {
		return errors.New("the TLS certificate has no key: set WIREFENCE_TLS_KEY_FILE")
	}
	if t.ClientCAFile != "" {
		setDefault(&t.ClientCert, CertVerifyCA)
	}
	demanded := t.ClientCert == CertVerifyCA || t.ClientCert == CertVerifyFull
	if demanded {
		setDefault(&t.Mode, TLSRequire)
	}
	setDefault(&t.Mode, TLSAllow)
	setDefault(&t.MinVersion, "1.2")
	if t.Mode != TLSAllow && t.Mode != TLSRequire {
		return fmt.Errorf("TLS mode %q is none of allow, require", t.Mode)
	}
	if t.MinVersion != "1.2" && t.MinVersion != "1.3" {
		return fmt.Errorf("minimum TLS version %q is none of 1.2, 1.3", t.MinVersion)
	}
	if t.ClientCAFile == "" {
		if t.ClientCert != "" {
			return errors.New("client certificates are asked for without an authority: set WIREFENCE_TLS_CLIENT_CA_FILE")
		}
		return nil
	}
	if t.ClientCert != CertOptional && !demanded {
		return fmt.Errorf("client certificate %q is none of optional, verify-ca, verify-full", t.ClientCert)
	}
	if demanded && t.Mode != TLSRequire {
		return errors.New("client certificates are demanded, but clients may come without TLS and so without one: " +
			"set WIREFENCE_TLS_MODE=require, or WIREFENCE_TLS_CLIENT_CERT=optional")
	}
	return nil
}

// clientTLS holds the certificates for clients' TLS.
type clientTLS struct {
	TLS
	pair  *watched.Value[*tls.Certificate]
	roots *watched.Value[*x509.CertPool] // nil: no client certificates are requested
}

// newClientTLS returns nil without CertFile. failed gets errors of later reads.
func newClientTLS(t TLS, failed func(error)) (*clientTLS, error) {
	if t.CertFile == "" || t.KeyFile == "" { // validate refuses one without the other
		return nil, nil
	}
	c := &clientTLS{TLS: t}
	var err error
	c.pair, err = watched.KeyPair(t.CertFile, t.KeyFile, failed)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	if t.ClientCAFile == "" {
		return c, nil
	}
	c.roots, err = watched.Authorities(t.ClientCAFile, failed)
	if err != nil {
		return nil, fmt.Errorf("client CA: %w", err)
	}
	return c, nil
}

func (c *clientTLS) reload() error {
	if c.roots == nil {
		return c.pair.Reload()
	}
	return errors.Join(c.pair.Reload(), c.roots.Reload())
}

// config is what clients get with a certificate.
func (c *clientTLS) config(pair *tls.Certificate) *tls.Config {
	cfg := &tls.Config{Certificates: []tls.Certificate{*pair}, MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true}
	if c.MinVersion == "1.3" {
		cfg.MinVersion = tls.VersionTLS13
	}
	if c.roots != nil {
		cfg.ClientCAs = c.roots.Get()
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		if c.ClientCert == CertOptional {
			cfg.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return cfg
}

// Config is for a listener of another protocol, for the same clients: nil without CertFile. failed gets
// errors of later reads.
func (t TLS) Config(failed func(error)) (config *tls.Config, required bool, err error) {
	if err := t.validate(); err != nil {
		return nil, false, err
	}
	c, err := newClientTLS(t, failed)
	if c == nil || err != nil {
		return nil, false, err
	}
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.config(c.pair.Get()), nil }}, t.Mode == TLSRequire, nil
}

// handshake begins TLS on a connection; read are bytes that were read from it before.
// Direct TLS, without an SSLRequest, needs ALPN (documentation, "SSL Session Encryption").
func (c *clientTLS) handshake(raw net.Conn, read []byte, direct bool) (*client, error) {
	pair := c.pair.Get()
	cfg := c.config(pair)
	cfg.NextProtos = []string{upstream.ALPN}
	conn := secure.Server(raw, read, cfg)
	if err := conn.LimitedHandshake(context.Background()); err != nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	state := conn.ConnectionState()
	if direct && state.NegotiatedProtocol != upstream.ALPN {
		return nil, errors.New("TLS handshake: direct TLS without the protocol postgresql in ALPN")
	}
	encrypted := &client{Conn: conn, encrypted: true, binding: scram.EndPoint(pair.Leaf)}
	if len(state.PeerCertificates) > 0 {
		encrypted.name = state.PeerCertificates[0].Subject.CommonName
	}
	return encrypted, nil
}

// client is a connection from a client.
type client struct {
	net.Conn
	encrypted bool
	binding   []byte // the proxy's tls-server-end-point; nil without TLS
	name      string // the common name of the client's certificate, "" without one
}

// newDirectory returns nil if the proxy doesn't authenticate clients.
func (o *Options) newDirectory(failed func(error)) (*users.Directory, error) {
	asks := o.AuthQuery != "" && o.DatabaseURL != "" // validate refuses a query without a connection
	if o.AuthFile == "" && !asks {
		return nil, nil
	}
	var file *users.File
	var query *users.Query
	var err error
	if o.AuthFile != "" {
		if file, err = users.OpenFile(o.AuthFile, failed); err != nil {
			return nil, fmt.Errorf("user file: %w", err)
		}
	}
	if asks {
		if query, err = users.NewQuery(o.DatabaseURL, o.AuthQuery); err != nil {
			return nil, fmt.Errorf("the connection for the authentication query: %w", err)
		}
	}
	return users.NewDirectory(file, query)
}

// newUpstream returns the connections to the servers. failed gets errors of later reads
// of certificates.
func (o *Options) newUpstream(failed func(error)) (*upstream.Upstream, error) {
	return upstream.New(o.Upstream, upstream.Options{
		Dialer: o.dialer(), Timeout: o.ConnectTimeout, ProbeURL: o.DatabaseURL, Bound: o.WitnessBound, Failed: failed,
	})
}
