package scram

import (
	"crypto"
	_ "crypto/sha256" // the hashes of certificates' signatures
	_ "crypto/sha512"
	"crypto/x509"
)

// EndPoint returns the channel binding of type tls-server-end-point (RFC 5929,
// section 4.1): the hash of the server's certificate by the hash function of its
// signature, with SHA-256 in the place of MD5 and SHA-1. It returns nil where
// the signature has no such function, as Ed25519's.
func EndPoint(cert *x509.Certificate) []byte {
	var hash crypto.Hash
	switch cert.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.DSAWithSHA1, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.DSAWithSHA256, x509.ECDSAWithSHA256:
		hash = crypto.SHA256
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		hash = crypto.SHA384
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		hash = crypto.SHA512
	default:
		return nil
	}
	h := hash.New()
	h.Write(cert.Raw)
	return h.Sum(nil)
}
