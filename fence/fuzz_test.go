package fence_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/wirefence/wirefence/fence"
)

// More seeds are under testdata/fuzz.

func FuzzParse(f *testing.F) {
	f.Add("orders=34", "")
	f.Add("34,a%20b=9223372036854775807", "orders")
	f.Add("34@etcd,a%40b=1@redis,a%40b=1", "orders")
	f.Add("job(acme%3A:17)=-123,a=1,job(18)=0", "")
	f.Fuzz(func(t *testing.T, text, def string) {
		if _, err := fence.ParseResource(def); err != nil {
			def = ""
		}
		parsed, err := fence.ParseWithDefault(text, fence.Resource(def))
		if err != nil {
			if !fence.IsMalformed(err) || !parsed.IsZero() {
				t.Fatalf("%q: %v with %v", text, err, parsed)
			}
			return
		}
		out := parsed.String()
		if parsed.IsZero() || len(out) > fence.MaxTextBytes || strings.ContainsAny(out, " '\"\\*;$\x00") {
			t.Fatalf("%q became %q", text, out)
		}
		for i := 0; i < len(out); i++ {
			if out[i] <= ' ' || out[i] > '~' {
				t.Fatalf("%q became %q", text, out)
			}
		}
		again, err := fence.Parse(out)
		if err != nil || again.String() != out {
			t.Fatalf("%q became %q, that %q, %v", text, out, again, err)
		}
		for _, p := range parsed.Pairs() {
			if p.Token < 1 || parsed.Token(p.Resource) != p.Token || again.Token(p.Resource) != p.Token {
				t.Fatalf("%q lost %v", text, p)
			}
		}
		// A batch of a fence's claims says the same, and another claim for a row of it is refused.
		batch, err := fence.NewClaims(parsed.Claims()...)
		if err != nil || !slices.Equal(batch.Claims(), again.Claims()) || batch.HasClaims() != (len(parsed.Claims()) > 0) {
			t.Fatalf("%q: %v, %v", text, batch, err)
		}
		for _, c := range parsed.Claims() {
			c.Value ^= 1
			if f, err := fence.NewClaims(c); err != nil {
				t.Fatalf("%q: %v", text, err)
			} else if _, err := parsed.Merge(f); !fence.IsMalformed(err) {
				t.Fatalf("%q took %v too: %v", text, c, err)
			}
		}
	})
}

// A key comes back from a fence, and two that differ have texts that differ.
func FuzzKey(f *testing.F) {
	f.Add("acme", "17")
	f.Add("a:b", "%41é\x01")
	f.Fuzz(func(t *testing.T, first, second string) {
		valid := func(s string) bool { return s != "" && utf8.ValidString(s) && !strings.Contains(s, "\x00") }
		key := fence.Key(first, second)
		made, err := fence.NewClaims(fence.Claim{Class: "job", Key: key, Value: 1})
		if want := valid(first) && valid(second) && len(key) <= fence.MaxKeyBytes; want != (err == nil) {
			t.Fatalf("%q, %q: %v", first, second, err)
		}
		if err != nil {
			return
		}
		parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(made.String(), "job("), ")=1"), ":")
		if len(parts) != 2 {
			t.Fatalf("%q, %q: %s", first, second, made)
		}
		for i, want := range []string{first, second} {
			if got, err := url.PathUnescape(parts[i]); err != nil || got != want {
				t.Fatalf("%q became %q, %v", want, got, err)
			}
		}
		if again, err := fence.Parse(made.String()); err != nil || again.String() != made.String() {
			t.Fatalf("%s became %s, %v", made, again, err)
		}
	})
}

func FuzzResource(f *testing.F) {
	f.Add("orders")
	f.Add("a b'é\x01%41")
	f.Fuzz(func(t *testing.T, name string) {
		r, err := fence.ParseResource(name)
		if valid := name != "" && len(name) <= fence.MaxResourceBytes && utf8.ValidString(name) && !strings.Contains(name, "\x00"); valid != (err == nil) {
			t.Fatalf("%q: %v", name, err)
		}
		if err != nil {
			return
		}
		back, err := fence.Parse(r.Encode() + "=1")
		if err != nil || back.Token(r) != 1 {
			t.Fatalf("%q encoded as %q: %v", name, r.Encode(), err)
		}
	})
}
