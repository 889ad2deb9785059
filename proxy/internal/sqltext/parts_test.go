package sqltext

import (
	"strings"
	"testing"
)

// streamed are texts, and whether a comment of them has a fence, in parts or not.
var streamed = map[string]bool{
	"select 1": false, "select 'wirefence.token=x' -- none": false, "/*wirefence.token='a=1'*/ select 1": true, "select 1 --WireFence.Token = 'a=1'": true,
	"select 1 /*x=1,wirefence%2etoken='a=1'*/": true, "/* /*wirefence.token='a=1'*/ */": true, "/* see wirefence.token */ select 1": false, "/*mywirefence.token='a'*/": true,
	"/*wirefence.tokens='a'*/": true, "-- x\nselect '/*wirefence.token=''a=1''*/'": false, `select "--wirefence.token='a=1'"`: false,
	"select $$/*wirefence.token='a=1'*/$$": false, "select $a$ $b$ /*wirefence.token='a=1'*/ $a$": false, "select $a$$a$ /*wirefence.token='a=1'*/": true,
	"select a$b$ /*wirefence.token='a=1'*/": true, "select $1 /*wirefence.token='a=1'*/": true, "select $aa$ $$aa$ /*wirefence.token='a=1'*/": true,
	`select E'\'/*wirefence.token=a*/'`: false, `select E'\\' /*wirefence.token='a=1'*/`: true, `select '\' /*wirefence.token='a=1'*/`: true, `select nameE'\' /*wirefence.token='a=1'*/ '`: true,
	"select E'a'\n'\\';/*wirefence.token=1*/ '": false, "select E'a' -- x\n '\\'/*wirefence.token=1*/'": false, "select 'a' - '/*wirefence.token=1*/'": false,
	"select 'a''/*wirefence.token=1*/'": false, `select "a""/*wirefence.token=1*/"`: false, "select 1 */*wirefence.token='a=1'*/ 2": true, "select 1 - -wirefence.token=1": false,
	"select E'a' /**/\n'\\' /*wirefence.token='a=1'*/": true, "select '" + strings.Repeat("x", 2000) + "' /*wirefence.token='a=1'*/": true,
	"select " + strings.Repeat("x", 200) + "e'\\' /*wirefence.token='a=1'*/ '": true, "/*" + strings.Repeat("x=1,", 500) + "wirefence.token='a=1'*/ select 1": true,
	"/* /* */ " + strings.Repeat("x=1,", 500) + "wirefence.token='a=1'*/ select 1": true, "--" + strings.Repeat("x=1,", 500) + "wirefence.token='a=1'": true,
}

// inParts reads a text in parts of this size, a first one aside.
func inParts(text string, opt Options, first, size int) (fence bool) {
	var s Scanner
	s.Begin(opt)
	first = min(first, len(text))
	fence = s.ReadPart([]byte(text[:first]))
	for text = text[first:] + "\x00"; text != ""; text = text[min(size, len(text)):] {
		fence = s.ReadPart([]byte(text[:min(size, len(text))])) || fence
	}
	return fence
}

func inOne(text string, opt Options) (fence bool) {
	r := new(Scanner).Scan([]byte(text), opt)
	return r.Fence != "" || r.FenceErr != nil
}

func TestTextsInParts(t *testing.T) {
	for sql, want := range streamed {
		if got := inOne(sql, Options{}); got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
		for cut := range len(sql) {
			if got := inParts(sql, Options{}, cut, len(sql)+1); got != want {
				t.Errorf("%q, cut at %d: %v", sql, cut, got)
			}
		}
		if got := inParts(sql, Options{}, 0, 1); got != want {
			t.Errorf("%q, byte by byte: %v", sql, got)
		}
	}
	for sql, opt := range map[string]Options{
		`select '\'/*wirefence.token=1*/'`:         {EscapeStrings: true},
		"select '\x83\\'/*wirefence.token='a=1'*/": {Encoding: SJIS, EscapeStrings: true}, // a trail byte
	} {
		want := inOne(sql, opt)
		for size := 1; size <= len(sql); size++ {
			if got := inParts(sql, opt, 0, size); got != want {
				t.Errorf("%q, in parts of %d: %v, want %v", sql, size, got, want)
			}
		}
	}
}

// What a text's parts keep for the next one is bounded, whatever goes on.
func TestPartsKeepLittle(t *testing.T) {
	for _, begin := range []string{"x", "1", "'", "E'\\", "\"", "$a$", "$", "--", "/*", "/*/*", "-", "' ", "\n", "/* wirefence.token", "\x83"} {
		var s Scanner
		s.Begin(Options{Encoding: SJIS})
		s.ReadPart([]byte(begin))
		for range 100 {
			s.ReadPart([]byte(strings.Repeat(begin[len(begin)-1:], 1000)))
		}
		if n := len(s.kept); n > 2*maxOverlap {
			t.Errorf("%q: %d bytes", begin, n)
		}
	}
}

// A text in parts has a fence that it has as a whole, wherever it is cut.
func FuzzParts(f *testing.F) {
	for sql := range streamed {
		f.Add(sql, false, uint8(0), 7)
	}
	for sql := range classes {
		f.Add(sql+" /*wirefence.token='a=1'*/", false, uint8(0), 7)
	}
	for _, c := range splits {
		f.Add(c.sql+"/*wirefence.token='a=1'*/", c.escapes, uint8(0), 3)
	}
	f.Fuzz(func(t *testing.T, text string, escapes bool, encoding uint8, cut int) {
		opt := Options{EscapeStrings: escapes, Encoding: Encoding(encoding % uint8(GB18030+1))}
		refused := escapes && strings.Contains(text, "&'")
		if refused || strings.ContainsRune(text, 0) || len(text) > 4*maxOverlap {
			return
		}
		if inOne(text, opt) && !inParts(text, opt, max(0, cut), 1) {
			t.Fatalf("%q has a fence, in parts none", text)
		}
	})
}
