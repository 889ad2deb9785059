package watched

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// KeyPair watches a certificate with its chain, and its key, in PEM form.
func KeyPair(certFile, keyFile string, failed func(error)) (*Value[*tls.Certificate], error) {
	return New(func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &pair, err
	}, failed, certFile, keyFile)
}

// Authorities watches the certificates of authorities, in PEM form.
func Authorities(file string, failed func(error)) (*Value[*x509.CertPool], error) {
	return New(func() (*x509.CertPool, error) {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", file)
		}
		return pool, nil
	}, failed, file)
}
