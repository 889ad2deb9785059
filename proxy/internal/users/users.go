// Package users looks up the secrets by which the proxy authenticates clients: SCRAM
// secrets in a file, or from a query.
package users

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/wirefence/wirefence/proxy/internal/scram"
)

// Entry is a user: the secret that a client must match, and the password, if it is stored
// in clear.
type Entry struct {
	Secret   *scram.Secret
	Password string

	deriveSecret sync.Once // Secret of Password
}

// iterations returns the iteration count that a client gets.
func (e *Entry) iterations() int {
	if e.Secret == nil {
		return scram.Iterations // with which Secret is derived
	}
	return e.Secret.Iterations
}

// Credentials returns the credentials for the login upstream; key is the ClientKey that
// the client has proved to have.
func (e *Entry) Credentials(key scram.Key) scram.Credentials {
	if e.Password != "" {
		return scram.Credentials{Password: e.Password}
	}
	return scram.Credentials{ClientKey: key, Secret: e.Secret}
}

// ErrUnknown says that there is no such user, or that it has no password.
var ErrUnknown = errors.New("the user is not known, or has no password")

// UnusableError says why a user's stored password can't be used, and what to do.
type UnusableError struct{ Why string }

func (e *UnusableError) Error() string { return e.Why }

// Directory looks users up. It is safe for concurrent use.
type Directory struct {
	file  *File  // or nil
	query *Query // or nil
	mock  [sha256.Size]byte
	// iterations is the count of the last secret that the query has returned; 0 before.
	iterations atomic.Int64
}

// NewDirectory returns a directory that looks into the file first, then asks the query.
// Either may be nil.
func NewDirectory(file *File, query *Query) (*Directory, error) {
	d := &Directory{file: file, query: query}
	_, err := rand.Read(d.mock[:])
	return d, err
}

// Lookup returns a user's entry, or ErrUnknown.
func (d *Directory) Lookup(ctx context.Context, user string) (*Entry, error) {
	e, err := d.find(ctx, user)
	if err != nil || e.Password == "" {
		return e, err
	}
	e.deriveSecret.Do(func() { e.Secret, err = scram.NewSecret(e.Password, d.salt(user)) })
	if e.Secret == nil {
		return nil, fmt.Errorf("no SCRAM secret can be made of a password: %w", err)
	}
	return e, nil
}

func (d *Directory) find(ctx context.Context, user string) (*Entry, error) {
	if d.file != nil {
		if e, err := d.file.lookup(user); !errors.Is(err, ErrUnknown) || d.query == nil {
			return e, err
		}
	}
	e, err := d.query.lookup(ctx, user)
	if err == nil {
		d.iterations.Store(int64(e.iterations()))
	}
	return e, err
}

// Mock returns an entry for an unknown user, with the same salt each time and the
// iterations of known users. So a client can't tell from them whether the user exists,
// unless users' iterations differ, or the query has returned no user yet.
func (d *Directory) Mock(user string) *Entry {
	iterations := int(d.iterations.Load())
	if iterations == 0 && d.file != nil {
		iterations = d.file.entries.Get().iterations
	}
	return &Entry{Secret: &scram.Secret{Iterations: cmp.Or(iterations, scram.Iterations), Salt: d.salt(user)}}
}

// salt returns the salt of a user without a stored one. It is the same kind for unknown
// users and for those with a password in clear, so that a client can't tell them apart.
func (d *Directory) salt(user string) []byte {
	m := hmac.New(sha256.New, d.mock[:])
	m.Write([]byte(user))
	return m.Sum(nil)[:16]
}

// Reload reads the file again.
func (d *Directory) Reload() error {
	if d.file == nil {
		return nil
	}
	return d.file.entries.Reload()
}

// Close ends the connections of the query.
func (d *Directory) Close() {
	if d.query != nil {
		d.query.pool.Close()
	}
}

// newEntry returns the entry of a stored password in one of PostgreSQL's or PgBouncer's
// forms. With a password in clear Lookup derives the secret.
func newEntry(stored string) (*Entry, error) {
	secret, err := scram.ParseSecret(stored)
	switch {
	case err == nil:
		return &Entry{Secret: secret}, nil
	case strings.HasPrefix(stored, scram.Mechanism+"$"):
		return nil, &UnusableError{err.Error()}
	case isMD5(stored):
		return nil, &UnusableError{"the stored password is an MD5 hash, from which no SCRAM login can be made: set the password again with password_encryption = 'scram-sha-256'"}
	}
	return &Entry{Password: stored}, nil
}

func isMD5(stored string) bool {
	hash, ok := strings.CutPrefix(stored, "md5")
	return ok && len(hash) == 32 && strings.Trim(hash, "0123456789abcdef") == ""
}
