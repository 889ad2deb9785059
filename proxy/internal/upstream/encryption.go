package upstream

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/wirefence/wirefence/internal/connstring"
	"github.com/wirefence/wirefence/internal/watched"
)

// encryption are the settings of encrypted connections, in libpq's terms (documentation,
// "SSL Support", Protection Provided in Different Modes).
type encryption struct {
	settings connstring.Settings
	mode     string
	direct   bool // TLS from the first byte, with ALPN
	roots    *watched.Value[*x509.CertPool]
	system   bool // roots are the system's
	pair     *watched.Value[*tls.Certificate]
}

func newEncryption(s connstring.Settings, failed func(error)) (encryption, error) {
	e := encryption{settings: s, mode: cmp.Or(s["sslmode"], "prefer"), direct: s["sslnegotiation"] == "direct"}
	if err := e.loadRoots(s["sslrootcert"], failed); err != nil {
		return e, err
	}
	return e, e.loadCertificate(s["sslcert"], s["sslkey"], failed)
}

func (e *encryption) verifies() bool { return e.mode == "verify-ca" || e.mode == "verify-full" }

// loadRoots sets the authorities that are trusted.
func (e *encryption) loadRoots(root string, failed func(error)) (err error) {
	switch {
	case root == "system":
		e.system = true
	case root != "":
		e.roots, err = watched.Authorities(root, failed)
		if err != nil {
			return fmt.Errorf("its sslrootcert: %w", err)
		}
		if e.mode == "require" {
			e.mode = "verify-ca" // as libpq does with a root file
		}
	case e.verifies():
		return fmt.Errorf("its sslmode=%s needs sslrootcert: the file of the authority's certificate, or system", e.mode)
	}
	return nil
}

// loadCertificate sets the certificate that the proxy presents to the server.
func (e *encryption) loadCertificate(cert, key string, failed func(error)) (err error) {
	if cert == "" && key == "" {
		return nil
	}
	if cert == "" || key == "" {
		return errors.New("its sslcert and sslkey need each other")
	}
	if e.mode == "disable" {
		return errors.New("its sslcert has no use with sslmode=disable")
	}
	e.pair, err = watched.KeyPair(cert, key, failed)
	if err != nil {
		return fmt.Errorf("its sslcert and sslkey: %w", err)
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
		ServerName: h.Name, NextProtos: []string{ALPN},
		// VerifyConnection below verifies what sslmode demands.
		InsecureSkipVerify: true,
	}
	e.settings.SetTLS(c)
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

func (e *encryption) verify(state tls.ConnectionState, h *Host) error {
	var roots *x509.CertPool
	if !e.system {
		roots = e.roots.Get()
	}
	name := ""
	if e.mode == "verify-full" {
		name = h.Name
	}
	return connstring.Verify(state.PeerCertificates, roots, name)
}
