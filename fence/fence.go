// Package fence is the domain of Wirefence: resources, tokens, rows and their
// claims, the fence that carries them, the SQLSTATEs of a refusal, and the SQL calls that put the
// question to PostgreSQL. The grammar stands on the standard library alone, the
// calls on pgx; of this module the package imports internal/committed.
package fence

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// MaxPairs is how many resources one fence may name.
const MaxPairs = 32

// MaxTextBytes is the longest text of a fence. MaxPairs fully encoded names with
// their tokens and sources fit, and MaxClaims claims if each has 100 bytes.
const MaxTextBytes = 1 << 20

// Token is a fencing token: at least 1, strictly greater with each grant of a
// resource.
type Token int64

// ParseToken reads a decimal token from 1 to 9223372036854775807, without sign,
// blanks or leading zeros.
func ParseToken(text string) (Token, error) {
	if text == "" {
		return 0, &SyntaxError{Reason: "a token is missing"}
	}
	if text[0] == '0' {
		return 0, &SyntaxError{Reason: "a token starts with zero"}
	}
	var n int64
	for i := 0; i < len(text); i++ {
		d := int64(text[i]) - '0'
		if d < 0 || d > 9 {
			return 0, &SyntaxError{Reason: "a token is not a decimal number"}
		}
		if n > (math.MaxInt64-d)/10 {
			return 0, &SyntaxError{Reason: "a token exceeds 9223372036854775807"}
		}
		n = n*10 + d
	}
	return Token(n), nil
}

// String returns the decimal form.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// Pair is one resource with its token, and where the token comes from. A pair
// without a Source is taken to be of the resource's own.
type Pair struct {
	Resource Resource
	Token    Token
	Source   Source
}

// Fence is a set of pairs, at most one for a resource, and of claims, at most one
// for a row, both sorted in byte order. The zero value carries nothing. A Fence is
// immutable and safe for concurrent use.
type Fence struct {
	pairs  []Pair
	claims []Claim
}

// New makes a fence of 1 to MaxPairs valid pairs. The same pair may come twice,
// and one of the two may leave the source open; two tokens or two sources for one
// resource are an error.
func New(pairs ...Pair) (Fence, error) {
	for _, p := range pairs {
		if _, err := ParseResource(string(p.Resource)); err != nil {
			return Fence{}, err
		}
		if p.Token < 1 {
			return Fence{}, &SyntaxError{Reason: fmt.Sprintf("token %d is less than 1", p.Token)}
		}
		if p.Source != "" {
			if _, err := ParseSource(string(p.Source)); err != nil {
				return Fence{}, err
			}
		}
	}
	return normalise(slices.Clone(pairs), nil)
}

// Parse reads pairs `resource=token[@source]` and `class(key)=claim`, separated by
// commas. Every error it returns is a *SyntaxError.
func Parse(text string) (Fence, error) { return ParseWithDefault(text, "") }

// ParseWithDefault is Parse, with a bare token standing for the resource def.
// With an empty def a bare token is an error.
func ParseWithDefault(text string, def Resource) (Fence, error) {
	if text == "" {
		return Fence{}, &SyntaxError{Reason: "it is empty"}
	}
	if len(text) > MaxTextBytes {
		return Fence{}, tooLong(len(text))
	}
	items := strings.Count(text, ",") + 1
	pairs := make([]Pair, 0, min(items, MaxPairs))
	var claims []Claim
	for item := range strings.SplitSeq(text, ",") {
		name, grant, found := strings.Cut(item, "=")
		if found && strings.IndexByte(name, '(') >= 0 { // no resource's name has one
			claim, err := parseClaim(name, grant)
			if err != nil {
				return Fence{}, err
			}
			if claims == nil {
				claims = make([]Claim, 0, min(items, MaxClaims))
			}
			claims = append(claims, claim)
			continue
		}
		pair, err := parsePair(name, grant, found, def)
		if err != nil {
			return Fence{}, err
		}
		pairs = append(pairs, pair)
	}
	return normalise(pairs, claims)
}

func parsePair(name, grant string, found bool, def Resource) (pair Pair, err error) {
	switch {
	case found:
		if pair.Resource, err = decodeResource(name); err != nil {
			return Pair{}, err
		}
	case def == "":
		return Pair{}, &SyntaxError{Reason: "a pair is not of the form resource=token"}
	default:
		pair.Resource, grant = def, name
	}
	number, source, named := strings.Cut(grant, "@")
	if pair.Token, err = ParseToken(number); err != nil {
		return Pair{}, err
	}
	if named {
		if pair.Source, err = ParseSource(source); err != nil {
			return Pair{}, err
		}
	}
	return pair, nil
}

// normalise makes a fence of pairs and claims, which it takes over: sorted, and one
// for those that say the same.
func normalise(pairs []Pair, claims []Claim) (Fence, error) {
	pairs, err := normalisePairs(pairs)
	if err != nil || len(claims) == 0 {
		return Fence{pairs: pairs}, err
	}
	if claims, err = normaliseClaims(claims); err != nil {
		return Fence{}, err
	}
	f := Fence{pairs, claims}
	if n := len(f.String()); n > MaxTextBytes {
		return Fence{}, tooLong(n)
	}
	return f, nil
}

func tooLong(n int) error {
	return &SyntaxError{Reason: fmt.Sprintf("it has %d bytes, at most %d are allowed", n, MaxTextBytes)}
}

func normalisePairs(pairs []Pair) ([]Pair, error) {
	slices.SortStableFunc(pairs, func(a, b Pair) int { return strings.Compare(string(a.Resource), string(b.Resource)) })
	kept := pairs[:0]
	for _, p := range pairs {
		if len(kept) == 0 || kept[len(kept)-1].Resource != p.Resource {
			kept = append(kept, p)
			continue
		}
		switch last := &kept[len(kept)-1]; {
		case last.Token != p.Token:
			return nil, &SyntaxError{Reason: fmt.Sprintf("resource %q has two tokens, %d and %d", p.Resource, last.Token, p.Token)}
		case last.Source == "":
			last.Source = p.Source
		case p.Source != "" && last.Source != p.Source:
			return nil, &SyntaxError{Reason: fmt.Sprintf("the token of resource %q has two sources, %s and %s", p.Resource, last.Source, p.Source)}
		}
	}
	if len(kept) > MaxPairs {
		return nil, &SyntaxError{Reason: fmt.Sprintf("it names %d resources, at most %d are allowed", len(kept), MaxPairs)}
	}
	return kept, nil
}

// IsZero reports whether the fence carries nothing.
func (f Fence) IsZero() bool { return len(f.pairs)+len(f.claims) == 0 }

// Pairs returns a copy of the pairs, sorted by resource.
func (f Fence) Pairs() []Pair { return slices.Clone(f.pairs) }

// Token returns the token for a resource, or 0 if the fence doesn't name it.
func (f Fence) Token(r Resource) Token {
	for _, p := range f.pairs {
		if p.Resource == r {
			return p.Token
		}
	}
	return 0
}

// Without returns the fence without a resource.
func (f Fence) Without(r Resource) Fence {
	f.pairs = slices.DeleteFunc(f.Pairs(), func(p Pair) bool { return p.Resource == r })
	return f
}

// Merge adds up fences. Two tokens or two sources for one resource are an error, and two
// claims for one row.
func (f Fence) Merge(others ...Fence) (Fence, error) {
	pairs, claims := f.Pairs(), f.Claims()
	for _, other := range others {
		pairs, claims = append(pairs, other.pairs...), append(claims, other.claims...)
	}
	return normalise(pairs, claims)
}

// String returns the text of the fence: plain ASCII that holds no quote, no
// backslash, no blank and no comment delimiter.
func (f Fence) String() string {
	var b []byte
	for _, p := range f.pairs {
		b = append(append(b, p.Resource.Encode()...), '=')
		b = strconv.AppendInt(b, int64(p.Token), 10)
		if p.Source != "" {
			b = append(append(b, '@'), p.Source...)
		}
		b = append(b, ',')
	}
	for _, c := range f.claims {
		b = append(append(b, c.Class...), '(')
		b = append(append(b, c.Key...), ")="...)
		b = append(strconv.AppendInt(b, c.Value, 10), ',')
	}
	return string(b[:max(len(b)-1, 0)])
}

// SyntaxError says why a text is not a fence. Reason is a clause without a
// full stop and without the rejected text.
type SyntaxError struct{ Reason string }

func (e *SyntaxError) Error() string { return "malformed fencing token: " + e.Reason }

// SQLState returns WF004.
func (e *SyntaxError) SQLState() string { return string(MalformedToken) }
