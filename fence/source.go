package fence

import "fmt"

// MaxSourceBytes is the longest name of a source.
const MaxSourceBytes = 32

// Source names the counter that a token comes from: a lock service, or one of
// several of a kind. Tokens of two sources don't compare. It has 1 to 32 bytes of
// a-z 0-9 _ . - and starts with a letter; the zero value says nothing.
type Source string

// SourcePostgres is the source of the grants that wirefence.acquire makes. Each other lease
// store has its own in its package, as redis.Source.
const SourcePostgres Source = "postgres"

// ParseSource checks that name can be a source. Its error is a *SyntaxError.
func ParseSource(name string) (Source, error) {
	switch {
	case name == "":
		return "", &SyntaxError{Reason: "the name of a token's source is missing"}
	case len(name) > MaxSourceBytes:
		return "", &SyntaxError{Reason: fmt.Sprintf("the name of a token's source has %d bytes, at most %d are allowed", len(name), MaxSourceBytes)}
	case name[0] < 'a' || name[0] > 'z':
		return "", &SyntaxError{Reason: "the name of a token's source doesn't start with a letter of a-z"}
	}
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '.', c == '-':
		default:
			return "", &SyntaxError{Reason: fmt.Sprintf("byte 0x%02x can't stand in the name of a token's source", c)}
		}
	}
	return Source(name), nil
}
