package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/wirefence/wirefence/internal/watched"
)

// Token has the tokens that callers send as `Authorization: Bearer …`. They are kept in a
// file, which is read again when it changes. It is safe for concurrent use.
type Token struct {
	file *watched.Value[[]known]
}

// known is a line of the file.
type known struct {
	hash [sha256.Size]byte
	caller
}

// minTokenBytes is the length of a random token that can't be guessed.
const minTokenBytes = 16

// maxTokenFile refuses a file that is named by mistake.
const maxTokenFile = 64 << 10

// defaultCaller is the caller of a line that has nothing but a token.
var defaultCaller = caller{"default", scopeOperate}

// ReadToken reads a file that has on each line a caller's name, a scope and a token, or a
// token alone, which is that of defaultCaller. A name may come several times: with two
// tokens, a new one can be handed out before the old one is taken away. A token has 16 or
// more letters, digits or any of -._~+/=. A later file that can't be used is logged,
// and the last good one counts on.
func ReadToken(file string, log *slog.Logger) (*Token, error) {
	value, err := watched.New(func() ([]known, error) { return readTokens(file) }, func(err error) {
		log.Error("cannot use the file of admin tokens; the last good one stays in use", "error", err)
	}, file)
	if err != nil {
		return nil, err
	}
	return &Token{value}, nil
}

// Reload reads the file now.
func (t *Token) Reload() error { return t.file.Reload() }

func readTokens(file string) (all []known, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(text) > maxTokenFile {
		return nil, fmt.Errorf("%s is no file of tokens: it has %d bytes", file, len(text))
	}
	for number, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		k, err := readKnown(fields)
		for _, other := range all {
			if err == nil && k.hash == other.hash && k.caller != other.caller {
				err = fmt.Errorf("its token is that of %s (%s), too", other.name, other.scope)
			}
		}
		if err != nil { // which doesn't have the line's text: wrong or not, it may be a secret
			return nil, fmt.Errorf("%s, line %d: %w", file, number+1, err)
		}
		all = append(all, k)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no token", file)
	}
	return all, nil
}

// FirstToken returns the first token of a file, "" for no file.
func FirstToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	if _, err := readTokens(file); err != nil {
		return "", err
	}
	text, err := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			return fields[len(fields)-1], nil
		}
	}
	return "", err
}

func readKnown(fields []string) (k known, err error) {
	k.caller = defaultCaller
	switch len(fields) {
	case 1:
	case 3:
		k.name = fields[0]
		if len(k.name) > maxCaller || strings.Trim(k.name, callerBytes) != "" {
			return k, fmt.Errorf("a name may have up to %d letters, digits and ._@- only", maxCaller)
		}
		if k.scope, err = parseScope(fields[1]); err != nil {
			return k, err
		}
	default:
		return k, errors.New("it must be a name, a scope and a token, or a token alone")
	}
	token := fields[len(fields)-1]
	if len(token) < minTokenBytes {
		return k, fmt.Errorf("a token has fewer than %d bytes", minTokenBytes)
	}
	if strings.Trim(token, tokenBytes) != "" {
		return k, errors.New("a token may have letters, digits and -._~+/= only")
	}
	k.hash = sha256.Sum256([]byte(token))
	return k, nil
}

// maxCaller is the length of an application_name in PostgreSQL, less the prefix of the
// caller's name.
const maxCaller = 63 - len("wirefence-api/")

const callerBytes = letters + "._@-"

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

const tokenBytes = letters + "-._~+/="

// caller returns the caller whose token the request has, if any. The time that it takes
// reveals nothing about the tokens.
func (t *Token) caller(r *http.Request) (found caller, ok bool) {
	scheme, presented, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return caller{}, false
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(presented)))
	for _, k := range t.file.Get() {
		if subtle.ConstantTimeCompare(hash[:], k.hash[:]) == 1 {
			found, ok = k.caller, true
		}
	}
	return found, ok
}
