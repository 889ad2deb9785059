package scram

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Credentials are those of a login: a password, or the ClientKey that the user's login at
// the proxy has revealed, with its secret.
type Credentials struct {
	Password  string
	ClientKey Key
	Secret    *Secret // nil with Password
}

// The errors of a client, besides ErrMalformed.
var (
	// ErrOtherSecret says that the server's secret isn't the one of the ClientKey.
	ErrOtherSecret = errors.New("the server keeps another SCRAM secret of the user (its salt or iteration count differs)")
	// ErrSignature says that the server doesn't know the user's secret.
	ErrSignature = errors.New("the server's SCRAM signature is wrong")
)

// Client logs in to a server. Call First, Next and Verify, in this order.
type Client struct {
	credentials Credentials
	mechanism   string
	gs2         string
	binding     []byte
	bare        string
	nonce       string
	auth        string
	serverKey   Key
}

// NewClient returns a client for one of the mechanisms that the server offers, with channel
// binding if possible. binding is the hash of the server's certificate (see EndPoint), nil
// without TLS or such a hash. ok is false if the client supports none of the mechanisms.
func NewClient(c Credentials, offered []string, binding []byte) (client *Client, ok bool) {
	plus := slices.Contains(offered, MechanismPlus)
	switch {
	case plus && binding != nil:
		return &Client{credentials: c, mechanism: MechanismPlus, gs2: "p=" + bindingType + ",,", binding: binding}, true
	case !slices.Contains(offered, Mechanism):
		return nil, false
	case binding != nil:
		return &Client{credentials: c, mechanism: Mechanism, gs2: "y,,"}, true
	}
	return &Client{credentials: c, mechanism: Mechanism, gs2: "n,,"}, true
}

// Mechanism returns the chosen mechanism.
func (c *Client) Mechanism() string { return c.mechanism }

// First returns the client's first message.
func (c *Client) First() (string, error) {
	n, err := nonce()
	if err != nil {
		return "", err
	}
	c.nonce = n
	c.bare = "n=,r=" + n
	return c.gs2 + c.bare, nil
}

// Next takes the server's first message and returns the client's final one.
func (c *Client) Next(serverFirst string) (string, error) {
	rest := serverFirst
	full, err := attribute(&rest, 'r')
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(full, c.nonce) || len(full) == len(c.nonce) {
		return "", malformed("the server's nonce doesn't continue ours")
	}
	salt64, err := attribute(&rest, 's')
	if err != nil {
		return "", err
	}
	salt, err := base64.StdEncoding.DecodeString(salt64)
	if err != nil {
		return "", malformed("the salt is not in base64")
	}
	count, err := attribute(&rest, 'i')
	if err != nil {
		return "", err
	}
	iterations, err := strconv.Atoi(count)
	if err != nil || iterations < 1 || iterations > MaxIterations {
		return "", malformed("the iteration count is not a number from 1 to %d", MaxIterations)
	}
	clientKey, err := c.keys(salt, iterations)
	if err != nil {
		return "", err
	}
	withoutProof := "c=" + base64.StdEncoding.EncodeToString(append([]byte(c.gs2), c.binding...)) + ",r=" + full
	c.auth = c.bare + "," + serverFirst + "," + withoutProof
	stored := sha256.Sum256(clientKey[:])
	proof := xor(clientKey, mac(stored[:], c.auth))
	return withoutProof + ",p=" + base64.StdEncoding.EncodeToString(proof[:]), nil
}

func (c *Client) keys(salt []byte, iterations int) (client Key, err error) {
	s := c.credentials.Secret
	if s == nil {
		client, c.serverKey, err = keys(c.credentials.Password, salt, iterations)
		return client, err
	}
	if s.Iterations != iterations || !bytes.Equal(s.Salt, salt) {
		return client, ErrOtherSecret
	}
	c.serverKey = s.ServerKey
	return c.credentials.ClientKey, nil
}

// Verify verifies by the server's final message that the server knows the user's secret.
func (c *Client) Verify(serverFinal string) error {
	text, err := attribute(&serverFinal, 'v')
	if err != nil {
		return err
	}
	signature, err := decodeKey(text)
	if err != nil {
		return malformed("the signature is not %d bytes in base64", len(signature))
	}
	if want := mac(c.serverKey[:], c.auth); !hmac.Equal(want[:], signature[:]) {
		return ErrSignature
	}
	return nil
}
