// Package authority issues TLS certificates for tests: a certificate authority
// of their own, with what servers and clients show of it.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// Authority issues certificates. Its own is in CAFile.
type Authority struct {
	CAFile string

	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial atomic.Int64
}

// New makes an authority whose files are removed with the test.
func New(t testing.TB) *Authority {
	t.Helper()
	a, err := In(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// In makes an authority whose files are in a folder.
func In(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a.key = key
	template := a.template("an authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.CAFile = filepath.Join(a.dir, "ca.crt")
	return a, write(a.CAFile, "CERTIFICATE", der)
}

func (a *Authority) template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial.Add(1)), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

// Pair is a certificate and its key, in files.
type Pair struct{ CertFile, KeyFile string }

// Issue issues a certificate with a common name, which is also the host's name
// that it is for, besides addresses. Each gets files of its own.
func (a *Authority) Issue(t testing.TB, name string, addresses ...string) Pair {
	t.Helper()
	p, err := a.Pair(name, addresses...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Pair is Issue for code that has no test.
func (a *Authority) Pair(name string, addresses ...string) (p Pair, err error) {
	template := a.template(name)
	template.DNSNames = []string{name}
	for _, ip := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	return a.sign(template)
}

// IssueNamed issues a certificate with a common name and exactly these alternative names.
func (a *Authority) IssueNamed(t testing.TB, commonName string, names []string, addresses ...net.IP) Pair {
	t.Helper()
	template := a.template(commonName)
	template.DNSNames, template.IPAddresses = names, addresses
	p, err := a.sign(template)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (a *Authority) sign(template *x509.Certificate) (p Pair, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return p, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return p, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return p, err
	}
	stem := filepath.Join(a.dir, template.SerialNumber.String())
	p = Pair{stem + ".crt", stem + ".key"}
	return p, errors.Join(write(p.CertFile, "CERTIFICATE", der), write(p.KeyFile, "PRIVATE KEY", private))
}

func write(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// Pool holds the authority's certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Load reads the pair.
func (p Pair) Load(t testing.TB) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
