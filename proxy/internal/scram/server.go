package scram

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
)

// The errors of a server, besides ErrMalformed.
var (
	// ErrWrongPassword says that the client doesn't know the password, or that
	// there is no such user.
	ErrWrongPassword = errors.New("the client's proof is wrong")
	// ErrDowngrade says that the client believes the server doesn't support channel
	// binding, though it does: a man in the middle may have removed the offer.
	ErrDowngrade = errors.New("the client supports SCRAM channel binding but thinks the server does not")
	// ErrBinding says that the client is bound to another certificate than the server's.
	ErrBinding = errors.New("SCRAM channel binding check failed")
	// ErrUnsupportedBinding says that the client demands channel binding without TLS, or
	// of another type than tls-server-end-point.
	ErrUnsupportedBinding = errors.New("the client asks for a channel binding that can't be had")
)

const bindingType = "tls-server-end-point"

// Server authenticates one client. Call First, then Final.
type Server struct {
	secret  *Secret
	unknown bool   // the secret is a mock: Final fails
	binding []byte // the hash of the server's certificate; nil without TLS
	plus    bool   // the client has chosen MechanismPlus

	gs2         string // the GS2 header as the client sent it
	clientBare  string
	serverFirst string
	nonce       string
}

// NewServer returns a server for one login. binding is the hash of the server's certificate
// (see EndPoint), nil without TLS or such a hash: then it doesn't offer MechanismPlus. For
// an unknown user the secret is a mock one: the exchange runs to its end and fails, so that
// the client can't tell.
func NewServer(secret *Secret, unknown bool, binding []byte) *Server {
	return &Server{secret: secret, unknown: unknown, binding: binding}
}

// Mechanisms returns the mechanisms that the server offers.
func (s *Server) Mechanisms() []string {
	if s.binding != nil {
		return []string{MechanismPlus, Mechanism}
	}
	return []string{Mechanism}
}

// First handles the client's mechanism and first message, and returns the server's first
// message.
func (s *Server) First(mechanism, message string) (string, error) {
	switch {
	case mechanism == MechanismPlus && s.binding != nil:
		s.plus = true
	case mechanism == Mechanism:
	default:
		return "", malformed("the client selected an invalid SASL authentication mechanism")
	}
	rest, err := s.header(message)
	if err != nil {
		return "", err
	}
	s.clientBare = rest
	if strings.HasPrefix(rest, "m=") {
		return "", malformed("an extension is required that is not known")
	}
	// PostgreSQL takes the user of the startup packet and ignores this one.
	if _, err := attribute(&rest, 'n'); err != nil {
		return "", err
	}
	theirs, err := attribute(&rest, 'r')
	if err != nil {
		return "", err
	}
	if !printable(theirs) {
		return "", malformed("the nonce has characters that are not printable")
	}
	ours, err := nonce()
	if err != nil {
		return "", err
	}
	s.nonce = theirs + ours
	s.serverFirst = "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(s.secret.Salt) + ",i=" + strconv.Itoa(s.secret.Iterations)
	return s.serverFirst, nil
}

// header reads the GS2 header, "n,," or "p=tls-server-end-point,,", and returns the rest of
// the message.
func (s *Server) header(message string) (string, error) {
	flag, rest, ok := strings.Cut(message, ",")
	authzid, rest, ok2 := strings.Cut(rest, ",")
	if !ok || !ok2 {
		return "", malformed("the header is not complete")
	}
	switch {
	case flag == "n" && !s.plus:
	case flag == "y" && !s.plus:
		if s.binding != nil {
			return "", ErrDowngrade
		}
	case strings.HasPrefix(flag, "p="):
		if !s.plus || flag != "p="+bindingType {
			return "", ErrUnsupportedBinding
		}
	default:
		return "", malformed("the channel binding flag and the mechanism don't fit together")
	}
	if authzid != "" {
		return "", malformed("the client uses an authorization identity, which is not supported")
	}
	s.gs2 = flag + ",,"
	return rest, nil
}

func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x21 || c > 0x7e {
			return false
		}
	}
	return s != ""
}

// Final handles the client's final message. It returns the server's final message and the
// ClientKey, which proves that the client knows the password.
func (s *Server) Final(message string) (string, Key, error) {
	end := strings.LastIndex(message, ",p=")
	if end < 0 {
		return "", Key{}, malformed("the proof is missing")
	}
	rest := message[:end]
	withoutProof := rest
	proof, err := decodeKey(message[end+len(",p="):])
	if err != nil {
		return "", Key{}, malformed("the proof is not %d bytes in base64", len(proof))
	}
	channel, err := attribute(&rest, 'c')
	if err != nil {
		return "", Key{}, err
	}
	if channel != base64.StdEncoding.EncodeToString(s.expectedBinding()) {
		return "", Key{}, ErrBinding
	}
	if r, err := attribute(&rest, 'r'); err != nil || r != s.nonce {
		return "", Key{}, malformed("the nonce is not the one that was agreed on")
	}
	auth := s.clientBare + "," + s.serverFirst + "," + withoutProof
	clientKey := xor(proof, mac(s.secret.StoredKey[:], auth))
	stored := sha256.Sum256(clientKey[:])
	if !hmac.Equal(stored[:], s.secret.StoredKey[:]) || s.unknown {
		return "", Key{}, ErrWrongPassword
	}
	signature := mac(s.secret.ServerKey[:], auth)
	return "v=" + base64.StdEncoding.EncodeToString(signature[:]), clientKey, nil
}

func (s *Server) expectedBinding() []byte {
	if s.plus {
		return append([]byte(s.gs2), s.binding...)
	}
	return []byte(s.gs2)
}
