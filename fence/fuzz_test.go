package fence_test

import (
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
