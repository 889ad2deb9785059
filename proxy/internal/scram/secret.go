// Package scram implements both sides of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802,
// RFC 7677) as PostgreSQL does (documentation, "SASL Authentication"). No general library
// serves the proxy's need: it knows a user's secret, but not the password, learns the
// ClientKey from a successful login, and logs in to the server with that. The package does
// no I/O.
package scram

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/xdg-go/stringprep"
	"golang.org/x/text/unicode/norm"
)

// Names of the mechanisms.
const (
	Mechanism     = "SCRAM-SHA-256"
	MechanismPlus = "SCRAM-SHA-256-PLUS"
)

// Key is a ClientKey, StoredKey or ServerKey.
type Key [sha256.Size]byte

// Secret is a user's secret at a server, as in pg_authid.rolpassword:
// SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>. Its formatted text hides the
// keys.
type Secret struct {
	Iterations int
	Salt       []byte
	StoredKey  Key
	ServerKey  Key
}

// MaxIterations bounds the iteration count that a server may demand, since iterations cost
// time.
const MaxIterations = 10_000_000

// ErrNotScram says that a stored password is not a SCRAM secret.
var ErrNotScram = errors.New("not a SCRAM-SHA-256 secret")

// ParseSecret parses the form of pg_authid.rolpassword. The error doesn't quote the text.
func ParseSecret(text string) (*Secret, error) {
	rest, ok := strings.CutPrefix(text, Mechanism+"$")
	if !ok {
		return nil, ErrNotScram
	}
	head, keys, ok := strings.Cut(rest, "$")
	if !ok {
		return nil, fmt.Errorf("%w: it has no keys", ErrNotScram)
	}
	count, salt, ok := strings.Cut(head, ":")
	stored, server, both := strings.Cut(keys, ":")
	if !ok || !both {
		return nil, fmt.Errorf("%w: a part is missing", ErrNotScram)
	}
	s := &Secret{}
	var err error
	if s.Iterations, err = strconv.Atoi(count); err != nil || s.Iterations < 1 || s.Iterations > MaxIterations {
		return nil, fmt.Errorf("%w: its iteration count is none", ErrNotScram)
	}
	if s.Salt, err = base64.StdEncoding.DecodeString(salt); err != nil || len(s.Salt) == 0 {
		return nil, fmt.Errorf("%w: its salt is not in base64", ErrNotScram)
	}
	if s.StoredKey, err = decodeKey(stored); err != nil {
		return nil, err
	}
	s.ServerKey, err = decodeKey(server)
	return s, err
}

func decodeKey(text string) (k Key, err error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != len(k) {
		return k, fmt.Errorf("%w: a key is not %d bytes in base64", ErrNotScram, len(k))
	}
	return Key(b), nil
}

// String hides the keys.
func (s *Secret) String() string { return Mechanism + "$…" }

// GoString hides the keys.
func (s *Secret) GoString() string { return s.String() }

// Iterations is the count of secrets by NewSecret, PostgreSQL's default of
// scram_iterations.
const Iterations = 4096

// NewSecret derives the secret of a password.
func NewSecret(password string, salt []byte) (*Secret, error) {
	client, server, err := keys(password, salt, Iterations)
	if err != nil {
		return nil, err
	}
	return &Secret{Iterations: Iterations, Salt: salt, StoredKey: sha256.Sum256(client[:]), ServerKey: server}, nil
}

// keys returns a password's ClientKey and ServerKey, cached or derived.
func keys(password string, salt []byte, iterations int) (client, server Key, err error) {
	of := sha256.Sum256(fmt.Appendf(nil, "%d %x %s", iterations, salt, password))
	if pair, ok := derivedKeys.get(of); ok {
		return pair[0], pair[1], nil
	}
	derivedKeys.deriving.Lock()
	defer derivedKeys.deriving.Unlock()
	if pair, ok := derivedKeys.get(of); ok { // another login has derived them meanwhile
		return pair[0], pair[1], nil
	}
	salted, err := pbkdf2.Key(sha256.New, normalise(password), salt, iterations, sha256.Size)
	if err != nil {
		return client, server, err
	}
	client, server = mac(salted, "Client Key"), mac(salted, "Server Key")
	derivedKeys.put(of, [2]Key{client, server})
	return client, server, nil
}

// derivedKeys caches derived keys. A derivation takes a core for a millisecond or more, and
// each login with a password in clear needs one, with the same salt each time. Only one
// runs at a time, so that a flood of logins leaves the other cores to sessions.
var derivedKeys keyCache

// keyCache maps a hash of password, salt and iterations to the derived keys.
type keyCache struct {
	deriving sync.Mutex // held during a derivation

	mu    sync.Mutex
	pairs map[[sha256.Size]byte][2]Key
}

// maxCachedKeys bounds the cache: two pairs for each user with a password in clear. A full
// cache is emptied.
const maxCachedKeys = 4096

func (m *keyCache) get(of [sha256.Size]byte) (pair [2]Key, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pair, ok = m.pairs[of]
	return pair, ok
}

func (m *keyCache) put(of [sha256.Size]byte, pair [2]Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pairs == nil || len(m.pairs) >= maxCachedKeys {
		m.pairs = map[[sha256.Size]byte][2]Key{}
	}
	m.pairs[of] = pair
}

// allowed are the characters that SASLprep allows (RFC 4013, sections 2.3 to 2.5).
var allowed = stringprep.Profile{Prohibits: stringprep.SASLprep.Prohibits, CheckBiDi: true}

// normalise prepares a password as PostgreSQL does (saslprep.c): what is allowed is decided before the normal form, a
// zero width space is a space, and a password that SASLprep doesn't allow stays unchanged.
func normalise(password string) string {
	mapped := strings.Map(func(r rune) rune {
		if stringprep.TableC1_2.Contains(r) {
			return ' '
		}
		if _, toNothing := stringprep.TableB1.Map(r); toNothing || r == '\u1806' { // which the library's table lacks
			return -1
		}
		return r
	}, password)
	if _, err := allowed.Prepare(mapped); err != nil || mapped == "" || !utf8.ValidString(password) {
		return password
	}
	return norm.NFKC.String(mapped)
}

func mac(key []byte, text string) Key {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return Key(m.Sum(nil))
}

func xor(a, b Key) (k Key) {
	subtle.XORBytes(k[:], a[:], b[:])
	return k
}

func nonce() (string, error) {
	var b [18]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(b[:]), nil
}

// attribute splits the next attribute, name=value, off a comma list.
func attribute(text *string, name byte) (string, error) {
	part, rest, _ := strings.Cut(*text, ",")
	if len(part) < 2 || part[0] != name || part[1] != '=' {
		return "", malformed("attribute %q was expected", name)
	}
	*text = rest
	return part[2:], nil
}

// ErrMalformed says that a message of the other side violates SCRAM's grammar.
var ErrMalformed = errors.New("malformed SCRAM message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}
