package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"

	"github.com/wirefence/wirefence/internal/watched"
)

// encryption are the settings of encrypted connections, in libpq's terms (documentation,
// "SSL Support", Protection Provided in Different Modes).
type encryption struct {
	mode   string
	direct bool // TLS from the first byte, with ALPN
	roots  *watched.Value[*x509.CertPool]
	system bool // roots are the system's
	pair   *watched.Value[*tls.Certificate]
}

func newEncryption(params url.Values, failed func(error)) (encryption, error) {
	e := encryption{mode: params.Get("sslmode")}
	root := params.Get("sslrootcert")
	if e.mode == "" {
		e.mode = "prefer"
		if root == "system" {
			e.mode = "verify-full"
		}
	}
	switch e.mode {
	case "disable", "allow", "prefer", "require", "verify-ca", "verify-full":
	default:
		return e, fmt.Errorf("the upstream's sslmode %q is none of disable, allow, prefer, require, verify-ca, verify-full", e.mode)
	}
	switch n := params.Get("sslnegotiation"); n {
	case "", "postgres":
	case "direct":
		if !e.required() {
			return e, fmt.Errorf("the upstream's sslnegotiation=direct needs sslmode=require or stronger, not %s", e.mode)
		}
		e.direct = true
	default:
		return e, fmt.Errorf("the upstream's sslnegotiation %q is none of postgres, direct", n)
	}
	if err := e.loadRoots(root, failed); err != nil {
		return e, err
	}
	return e, e.loadCertificate(params.Get("sslcert"), params.Get("sslkey"), failed)
}

func (e *encryption) required() bool {
	return e.mode == "require" || e.verifies()
}

func (e *encryption) verifies() bool { return e.mode == "verify-ca" || e.mode == "verify-full" }

// loadRoots sets the authorities that are trusted.
func (e *encryption) loadRoots(root string, failed func(error)) (err error) {
	switch {
	case root == "system":
		e.system = true
		if e.mode != "verify-full" {
			return fmt.Errorf("the upstream's sslrootcert=system needs sslmode=verify-full, not %s: anybody can have a certificate of a public authority", e.mode)
		}
	case root != "":
		e.roots, err = watched.Authorities(root, failed)
		if err != nil {
			return fmt.Errorf("the upstream's sslrootcert: %w", err)
		}
		if e.mode == "require" {
			e.mode = "verify-ca" // as libpq does with a root file
		}
	case e.verifies():
		return fmt.Errorf("the upstream's sslmode=%s needs sslrootcert: the file of the authority's certificate, or system", e.mode)
	}
	return nil
}

// loadCertificate sets the certificate that the proxy presents to the server.
func (e *encryption) loadCertificate(cert, key string, failed func(error)) (err error) {
	if cert == "" && key == "" {
		return nil
	}
	if cert == "" || key == "" {
		return errors.New("the upstream's sslcert and sslkey need each other")
	}
	if e.mode == "disable" {
		return errors.New("the upstream's sslcert has no use with sslmode=disable")
	}
	e.pair, err = watched.KeyPair(cert, key, failed)
	if err != nil {
		return fmt.Errorf("the upstream's sslcert and sslkey: %w", err)
	}
	return nil
}

func (e *encryption) reload() error {
	var failures []error
	if e.roots != nil {
		failures = append(failures, e.roots.Reload())
	}
	if e.pair != nil {
		failures = append(failures, e.pair.Reload())
	}
	return errors.Join(failures...)
}

// config returns the TLS settings for a host.
func (e *encryption) config(h *Host) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: h.Name, NextProtos: []string{ALPN},
		// VerifyConnection below verifies what sslmode demands.
		InsecureSkipVerify: true,
	}
	if e.pair != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return e.pair.Get(), nil }
	}
	if e.verifies() {
		c.VerifyConnection = func(s tls.ConnectionState) error { return e.verify(s, h) }
	}
	return c
}

// ALPN is the name of the protocol in TLS (documentation, "SSL Session
// Encryption").
const ALPN = "postgresql"

func (e *encryption) verify(s tls.ConnectionState, h *Host) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the server presented no certificate")
	}
	o := x509.VerifyOptions{Intermediates: x509.NewCertPool()}
	if !e.system {
		o.Roots = e.roots.Get()
	}
	for _, cert := range s.PeerCertificates[1:] {
		o.Intermediates.AddCert(cert)
	}
	if e.mode == "verify-full" {
		o.DNSName = h.Name
	}
	_, err := s.PeerCertificates[0].Verify(o)
	return err
}
