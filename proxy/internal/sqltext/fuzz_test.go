package sqltext

import (
	"slices"
	"testing"
)

func FuzzScan(f *testing.F) {
	for sql := range classes {
		f.Add([]byte(sql), false, uint8(0))
	}
	for sql := range flagged {
		f.Add([]byte(sql), false, uint8(0))
	}
	for _, c := range splits {
		f.Add([]byte(c.sql), c.escapes, uint8(0))
		f.Add([]byte(c.sql), !c.escapes, uint8(SJIS))
	}
	f.Add([]byte("/*wirefence.token='a=1',b='\\'*/ select set_config(E'a\\"), true, uint8(GB18030))
	f.Fuzz(func(t *testing.T, text []byte, escapes bool, encoding uint8) {
		opt := Options{EscapeStrings: escapes, Encoding: Encoding(encoding % uint8(GB18030+1))}
		var s Scanner
		original := slices.Clone(text)
		statements := slices.Clone(s.Scan(text, opt).Statements)
		if !slices.Equal(original, text) {
			t.Fatal("the text was changed")
		}
		last := int32(0)
		for _, st := range statements {
			if st.Start < last || st.End <= st.Start || int(st.End) > len(text) {
				t.Fatalf("bounds %d to %d behind %d", st.Start, st.End, last)
			}
			last = st.End
		}
		for _, st := range statements {
			more := slices.Concat(text[:st.Start], []byte("SELECT 1;"), text[st.Start:])
			if got := len(s.Scan(more, opt).Statements); got != len(statements)+1 {
				t.Fatalf("%d statements, %d with one before offset %d", len(statements), got, st.Start)
			}
		}
		if n := CountChars(text, opt.Encoding); n > len(text) {
			t.Fatalf("%d characters in %d bytes", n, len(text))
		}
	})
}

// overlap is how much of a chunk a session keeps, at least, until it has searched the next.
const overlap = 64

// FuzzMentions checks that cutting a text in two, with the overlap, hides nothing.
func FuzzMentions(f *testing.F) {
	f.Add([]byte("set STANDARD_conforming_strings = off"), 10)
	f.Add([]byte(`select 1 /*WireFence.token='a=1'*/, U&"x"`), 15)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		if cut < 0 || cut > len(text) {
			return
		}
		whole := Mentions(text)
		parts := Mentions(text[:cut]) || Mentions(text[max(0, cut-overlap):])
		if whole != parts {
			t.Fatalf("whole %v, cut at %d %v", whole, cut, parts)
		}
		if naive := mentionsNaively(text); whole != naive {
			t.Fatalf("%v, naively %v", whole, naive)
		}
	})
}
