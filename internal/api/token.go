package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/wirefence/wirefence/internal/watched"
)

// Token is what callers present as `Authorization: Bearer …`. It is kept in a
// file, which is read again when it changes. It is safe for concurrent use.
type Token struct {
	hashes *watched.Value[[][sha256.Size]byte]
}

// minTokenBytes is what can't be guessed, if it is random.
const minTokenBytes = 16

// maxTokenFile bounds what is read by mistake.
const maxTokenFile = 64 << 10

// ReadToken reads a file with one token on each line: with two of them, a new one
// can be handed out before the old one is taken away. A token has 16 or more
// letters, digits or any of -._~+/=. A later file that can't be used is logged,
// and the last good one counts on.
func ReadToken(file string, log *slog.Logger) (*Token, error) {
	hashes, err := watched.New(func() ([][sha256.Size]byte, error) { return readTokens(file) }, func(err error) {
		log.Error("the file of the admin token can't be used; the last good one counts on", "error", err)
	}, file)
	if err != nil {
		return nil, err
	}
	return &Token{hashes}, nil
}

// Reload reads the file now.
func (t *Token) Reload() error { return t.hashes.Reload() }

func readTokens(file string) (hashes [][sha256.Size]byte, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(text) > maxTokenFile {
		return nil, fmt.Errorf("%s is no file of tokens: it has %d bytes", file, len(text))
	}
	for number, line := range strings.Split(string(text), "\n") {
		token := strings.TrimSpace(line)
		if token == "" {
			continue
		}
		// The text of a line that is wrong may be a secret all the same.
		if len(token) < minTokenBytes {
			return nil, fmt.Errorf("%s, line %d: a token has fewer than %d bytes", file, number+1, minTokenBytes)
		}
		if strings.Trim(token, tokenBytes) != "" {
			return nil, fmt.Errorf("%s, line %d: a token may have letters, digits and -._~+/= only", file, number+1)
		}
		hashes = append(hashes, sha256.Sum256([]byte(token)))
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("%s has no token", file)
	}
	return hashes, nil
}

const tokenBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/="

// allows reports whether the request presents a token of the file. How long it
// takes tells nothing of the tokens.
func (t *Token) allows(r *http.Request) bool {
	scheme, presented, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return false
	}
	hash, equal := sha256.Sum256([]byte(strings.TrimSpace(presented))), 0
	for _, known := range t.hashes.Get() {
		equal |= subtle.ConstantTimeCompare(hash[:], known[:])
	}
	return equal == 1
}
