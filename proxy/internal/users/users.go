// Package users knows by what the proxy authenticates clients: SCRAM secrets in
// a file, or those that a query returns.
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

// Entry is what is known of a user: the secret that a client is held against,
// and the password, if it is known in clear.
type Entry struct {
	Secret   *scram.Secret
	Password string

	deriveSecret sync.Once // Secret of Password
}

// iterations is the count that a client is shown.
func (e *Entry) iterations() int {
	if e.Secret == nil {
		return scram.Iterations // with which Secret is derived
	}
	return e.Secret.Iterations
}

// Credentials are those for a login upstream, after a client has proved that it
// has the ClientKey.
func (e *Entry) Credentials(key scram.Key) scram.Credentials {
	if e.Password != "" {
		return scram.Credentials{Password: e.Password}
	}
	return scram.Credentials{ClientKey: key, Secret: e.Secret}
}

// ErrUnknown says that there is no such user, or that it has no password.
var ErrUnknown = errors.New("the user is not known, or has no password")

// UnusableError says that a user's stored password can't be used, and what to do.
type UnusableError struct{ Why string }

func (e *UnusableError) Error() string { return e.Why }

// Directory looks users up. It is safe for concurrent use.
type Directory struct {
	file  *File  // or nil
	query *Query // or nil
	mock  [sha256.Size]byte
	// iterations are those of the last secret that the query has returned; 0 before.
	iterations atomic.Int64
}

// NewDirectory looks into the file first, then asks the database. Either may be
// nil.
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

// Mock returns an entry for a user that is not known, with the same salt each time
// and the iterations that known users have. So a client can't tell by either whether
// the user exists, unless users' iterations differ, or none that the query knows has
// logged in yet.
func (d *Directory) Mock(user string) *Entry {
	iterations := int(d.iterations.Load())
	if iterations == 0 && d.file != nil {
		iterations = d.file.entries.Get().iterations
	}
	return &Entry{Secret: &scram.Secret{Iterations: cmp.Or(iterations, scram.Iterations), Salt: d.salt(user)}}
}

// salt is a user's, where no salt is stored: for who isn't known and for who has
// a password in clear it is of one kind.
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

// newEntry makes an entry of a stored password in one of PostgreSQL's or
// PgBouncer's forms. One with a password in clear has no secret yet.
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
