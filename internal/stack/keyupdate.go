package stack

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"testing"
)

// KeyUpdater sends over a TLS 1.3 connection what crypto/tls never does by itself:
// KeyUpdates (RFC 8446, section 4.6.3). Nothing else may write to the connection; what
// comes is read by crypto/tls.
type KeyUpdater struct {
	conn   net.Conn
	secret []byte
	aead   cipher.AEAD
	iv     []byte
	number uint64
}

// NewKeyUpdater shakes hands over a connection, as the server if it has a certificate.
func NewKeyUpdater(t testing.TB, conn net.Conn, cfg *tls.Config) (*KeyUpdater, *tls.Conn) {
	t.Helper()
	var keys bytes.Buffer
	cfg = cfg.Clone()
	cfg.MinVersion, cfg.KeyLogWriter = tls.VersionTLS13, &keys
	encrypted, own := tls.Client(conn, cfg), "CLIENT_TRAFFIC_SECRET_0"
	if len(cfg.Certificates) > 0 {
		cfg.SessionTicketsDisabled = true // they would be records that are not counted here
		encrypted, own = tls.Server(conn, cfg), "SERVER_TRAFFIC_SECRET_0"
	}
	if err := encrypted.Handshake(); err != nil {
		t.Fatal(err)
	}
	if suite := encrypted.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
		t.Fatalf("the cipher suite is %s", tls.CipherSuiteName(suite))
	}
	k := &KeyUpdater{conn: conn}
	for line := range bytes.Lines(keys.Bytes()) {
		var label, random, secret string
		if _, err := fmt.Sscan(string(line), &label, &random, &secret); err == nil && label == own {
			k.secret, _ = hex.DecodeString(secret)
		}
	}
	k.derive(t)
	return k, encrypted
}

// derive makes the keys of the present secret (RFC 8446, section 7.3).
func (k *KeyUpdater) derive(t testing.TB) {
	t.Helper()
	block, err := aes.NewCipher(k.expand(t, "key", 16))
	if err != nil {
		t.Fatal(err)
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		t.Fatal(err)
	}
	k.iv, k.number = k.expand(t, "iv", 12), 0
}

// expand is HKDF-Expand-Label with an empty context.
func (k *KeyUpdater) expand(t testing.TB, label string, size int) []byte {
	t.Helper()
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(size))
	info = append(append(info, byte(len(label))), label...)
	key, err := hkdf.Expand(sha256.New, k.secret, string(append(info, 0)), size)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// The types of records.
const (
	handshakeRecord = 22
	dataRecord      = 23
)

// record appends a record.
func (k *KeyUpdater) record(dst, said []byte, kind byte) []byte {
	nonce := bytes.Clone(k.iv)
	for i := range 8 {
		nonce[4+i] ^= byte(k.number >> (56 - 8*i))
	}
	k.number++
	inner := append(bytes.Clone(said), kind)
	header := binary.BigEndian.AppendUint16([]byte{dataRecord, 3, 3}, uint16(len(inner)+k.aead.Overhead()))
	return k.aead.Seal(append(dst, header...), nonce, inner, header)
}

// Data appends a record of application data to dst.
func (k *KeyUpdater) Data(dst, said []byte) []byte { return k.record(dst, said, dataRecord) }

// Update appends a KeyUpdate that asks the peer for one, and changes keys.
func (k *KeyUpdater) Update(t testing.TB, dst []byte) []byte {
	t.Helper()
	dst = k.record(dst, []byte{24, 0, 0, 1, 1}, handshakeRecord)
	k.secret = k.expand(t, "traffic upd", 32)
	k.derive(t)
	return dst
}

// Write sends records.
func (k *KeyUpdater) Write(records []byte) (int, error) { return k.conn.Write(records) }
