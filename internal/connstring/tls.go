package connstring

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
)

// SetTLS sets the versions of TLS, and whether the server is told its name.
func (s Settings) SetTLS(c *tls.Config) {
	c.MinVersion, c.MaxVersion = s.tlsVersion("ssl_min_protocol_version"), s.tlsVersion("ssl_max_protocol_version")
	if c.MinVersion == 0 {
		c.MinVersion = tls.VersionTLS12 // libpq's default
	}
	if strings.HasPrefix(s["sslsni"], "0") {
		c.ServerName = ""
	}
}

// Verify verifies a server's certificates by libpq's rules (documentation, "Client Verification of Server Certificates"):
// the chain must lead to one of the roots, nil for the system's, and the certificate must bear the host's name. An empty
// host omits the second part.
func Verify(chain []*x509.Certificate, roots *x509.CertPool, host string) error {
	if len(chain) == 0 {
		return errors.New("the server presented no certificate")
	}
	o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range chain[1:] {
		o.Intermediates.AddCert(cert)
	}
	if _, err := chain[0].Verify(o); err != nil {
		return err
	}
	if host != "" && !bears(chain[0], host) {
		return fmt.Errorf("the server's certificate is for another host than %q", host)
	}
	return nil
}

// bears reports whether a certificate has a host's name. Unlike crypto/x509, libpq compares an address with the DNS names,
// too, and either with the common name if there is no alternative name of its kind.
func bears(cert *x509.Certificate, host string) bool {
	names, ofItsKind := cert.DNSNames, len(cert.DNSNames) > 0
	if ip := net.ParseIP(host); ip != nil {
		ofItsKind = len(cert.IPAddresses) > 0
		for _, address := range cert.IPAddresses {
			if address.Equal(ip) {
				return true
			}
		}
	}
	for _, part := range cert.Subject.Names {
		if name, isText := part.Value.(string); isText && part.Type.String() == "2.5.4.3" && !ofItsKind {
			names = append(names[:len(names):len(names)], name)
			break // libpq takes the first one
		}
	}
	for _, name := range names {
		if matches(name, host) {
			return true
		}
	}
	return false
}

// matches compares a name with the host's. A wildcard stands for the first label.
func matches(name, host string) bool {
	if suffix, isWildcard := strings.CutPrefix(name, "*."); isWildcard && suffix != "" {
		label, rest, _ := strings.Cut(host, ".")
		return label != "" && equal(rest, suffix)
	}
	return equal(name, host)
}

// equal ignores the case of ASCII: a letter that folds to one of those has more bytes.
func equal(a, b string) bool { return len(a) == len(b) && strings.EqualFold(a, b) }
