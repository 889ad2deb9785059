package fence

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxClaims is how many rows one fence may name, and MaxKeyBytes how long the key of one may be
// as it stands in the fence.
const (
	MaxClaims   = 10_000
	MaxKeyBytes = 1024
)

// Claim is the pair of a row fence, class(key)=value: a row that judges, and the value by which
// the worker has it. The row's table, its key and what a claim is are declared for the class, by
// wirefence.declare_rows.
type Claim struct {
	Class string // a-z 0-9 _, not a digit first, at most 63 bytes
	Key   string // as Key returns it
	Value int64  // compared for equality; read it in SQL, in the statement that takes the row
}

// Key returns a row's key for a Claim, of one value for each of its columns: an integer, a text,
// a [16]byte (which is a uuid) or what has a String method, as a type of uuids has. A value of
// another type, or an empty one, makes a key that no fence takes.
func Key(columns ...any) string {
	parts := make([]string, len(columns))
	for i, column := range columns {
		parts[i] = encode(keyText(column), isKeyByte)
	}
	return strings.Join(parts, ":")
}

func keyText(column any) string {
	switch v := column.(type) {
	case string:
		return v
	case fmt.Stringer:
		return v.String()
	case [16]byte:
		return fmt.Sprintf("%x-%x-%x-%x-%x", v[:4], v[4:6], v[6:8], v[8:10], v[10:])
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v)
	}
	return ""
}

// isKeyByte reports whether a byte stands for itself in a part of a key. A colon parts them.
func isKeyByte(c byte) bool { return plain[c] && c != ':' }

// NewClaims makes a fence of 1 to MaxClaims claims. The same claim may come twice; two values for
// one row are an error. Merge adds resources, or claims of another class.
func NewClaims(claims ...Claim) (Fence, error) {
	for _, c := range claims {
		if err := c.validate(); err != nil {
			return Fence{}, err
		}
	}
	return normalise(nil, slices.Clone(claims))
}

// parseClaim reads class(key) and a claim's number.
func parseClaim(row, number string) (c Claim, err error) {
	class, key, _ := strings.Cut(row, "(")
	c.Class, c.Key = class, strings.TrimSuffix(key, ")")
	if len(c.Key) == len(key) {
		return Claim{}, &SyntaxError{Reason: "a row is not of the form class(key)"}
	}
	if err := c.validate(); err != nil {
		return Claim{}, err
	}
	digits := strings.TrimPrefix(number, "-")
	if digits == "" || digits[0] < '0' || digits[0] > '9' || digits[0] == '0' && number != "0" {
		return Claim{}, &SyntaxError{Reason: "a claim is not a decimal number without leading zeros"}
	}
	if c.Value, err = strconv.ParseInt(number, 10, 64); err != nil {
		return Claim{}, &SyntaxError{Reason: "a claim is not a decimal number of 64 bits"}
	}
	return c, nil
}

func (c Claim) validate() error {
	for i := 0; i < len(c.Class); i++ {
		if b := c.Class[i]; b != '_' && (b < 'a' || b > 'z') && (i == 0 || b < '0' || b > '9') {
			return &SyntaxError{Reason: fmt.Sprintf("byte 0x%02x can't stand there in the name of a class of rows", b)}
		}
	}
	if len(c.Class) < 1 || len(c.Class) > 63 {
		return &SyntaxError{Reason: fmt.Sprintf("the name of a class of rows has %d bytes, must have 1 to 63", len(c.Class))}
	}
	if len(c.Key) > MaxKeyBytes {
		return &SyntaxError{Reason: fmt.Sprintf("the key of a row has %d bytes, at most %d are allowed", len(c.Key), MaxKeyBytes)}
	}
	for part := range strings.SplitSeq(c.Key, ":") {
		if err := validatePart(part); err != nil {
			return err
		}
	}
	return nil
}

// validatePart checks that a part of a key stands there in its one spelling, which Key writes.
// So equal keys have equal texts.
func validatePart(part string) error {
	if part == "" {
		return &SyntaxError{Reason: "a part of a row's key is empty, or of a type that no key has"}
	}
	escaped := false
	for i := 0; i < len(part); i++ {
		if part[i] == '%' {
			if i+2 >= len(part) || unhex(part[i+1]) < 0 || unhex(part[i+2]) < 0 || part[i+1] >= 'a' || part[i+2] >= 'a' {
				return &SyntaxError{Reason: "a percent sign in a row's key is not followed by two upper-case hexadecimal digits"}
			}
			c := byte(unhex(part[i+1])<<4 | unhex(part[i+2]))
			if isKeyByte(c) || c == 0 {
				return &SyntaxError{Reason: fmt.Sprintf("byte 0x%02x can't be percent-encoded in a row's key", c)}
			}
			escaped = escaped || c >= utf8.RuneSelf
			i += 2
		} else if !isKeyByte(part[i]) {
			return &SyntaxError{Reason: fmt.Sprintf("byte 0x%02x must be percent-encoded in a row's key", part[i])}
		}
	}
	if escaped {
		if decoded, err := url.PathUnescape(part); err != nil || !utf8.ValidString(decoded) {
			return &SyntaxError{Reason: "the key of a row is not valid UTF-8"}
		}
	}
	return nil
}

// normaliseClaims sorts claims, which it takes over, and makes one of equal ones.
func normaliseClaims(claims []Claim) ([]Claim, error) {
	slices.SortFunc(claims, func(a, b Claim) int {
		return cmp.Or(strings.Compare(a.Class, b.Class), strings.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
	})
	claims = slices.Compact(claims)
	for i := range len(claims) - 1 {
		if a, b := claims[i], claims[i+1]; a.Class == b.Class && a.Key == b.Key {
			return nil, &SyntaxError{Reason: fmt.Sprintf("row %s(%s) has two claims, %d and %d", a.Class, a.Key, a.Value, b.Value)}
		}
	}
	if len(claims) > MaxClaims {
		return nil, &SyntaxError{Reason: fmt.Sprintf("it names %d rows, at most %d are allowed", len(claims), MaxClaims)}
	}
	return claims, nil
}

// HasClaims reports whether rows judge the fence, or a part of it.
func (f Fence) HasClaims() bool { return len(f.claims) > 0 }

// Claims returns a copy of the claims, sorted by class and key in byte order.
func (f Fence) Claims() []Claim { return slices.Clone(f.claims) }
