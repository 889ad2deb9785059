package sqltext

import (
	"strings"
	"testing"
)

// streamed are texts, and whether a stream finds a fence in a comment of them.
var streamed = map[string]bool{
	"select 1": false, "select 'wirefence.token=x' -- none": false, "/*wirefence.token='a=1'*/ select 1": true, "select 1 --WireFence.Token = 'a=1'": true,
	"select 1 /*x=1,wirefence%2etoken='a=1'*/": true, "/* /*wirefence.token='a=1'*/ */": true, "/* see wirefence.token */ select 1": false, "/*mywirefence.token='a'*/": false,
	"/*wirefence.tokens='a'*/": false, "-- x\nselect '/*wirefence.token=''a=1''*/'": false, `select "--wirefence.token='a=1'"`: false,
	"select $$/*wirefence.token='a=1'*/$$": false, "select $a$ $b$ /*wirefence.token='a=1'*/ $a$": false, "select $a$$a$ /*wirefence.token='a=1'*/": true,
	"select a$b$ /*wirefence.token='a=1'*/": true, "select $1 /*wirefence.token='a=1'*/": true, "select $aa$ $$aa$ /*wirefence.token='a=1'*/": true,
	`select E'\'/*wirefence.token=a*/'`: false, `select E'\\' /*wirefence.token='a=1'*/`: true, `select '\' /*wirefence.token='a=1'*/`: true, `select nameE'\' /*wirefence.token='a=1'*/ '`: true,
	"select E'a'\n'\\' /*wirefence.token=1*/ '": false, "select E'a' -- x\n '\\'/*wirefence.token=1*/'": false, "select 'a' - '/*wirefence.token=1*/'": false,
	"select 'a''/*wirefence.token=1*/'": false, `select "a""/*wirefence.token=1*/"`: false, "select 1 */*wirefence.token='a=1'*/ 2": true, "select 1 - -wirefence.token=1": false,
}

func read(text string, opt Options, parts ...int) (fence, named bool) {
	s := NewStream(opt)
	for _, n := range parts {
		n = min(n, len(text))
		fence = s.Read([]byte(text[:n])) || fence
		text = text[n:]
	}
	fence = s.Read([]byte(text)) || fence
	s.Read([]byte{0})
	return fence, s.Named()
}

func TestStreams(t *testing.T) {
	for sql, want := range streamed {
		for cut := range len(sql) {
			if got, _ := read(sql, Options{}, cut); got != want {
				t.Errorf("%q, cut at %d: %v", sql, cut, got)
			}
		}
		if r := new(Scanner).Scan([]byte(sql), Options{}); r.Fence != "" && !want {
			t.Errorf("%q: a scan finds %q", sql, r.Fence)
		}
	}
	for sql, opt := range map[string]Options{
		`select '\'/*wirefence.token=1*/'`:         {EscapeStrings: true},
		"select '\x83\\'/*wirefence.token='a=1'*/": {Encoding: SJIS, EscapeStrings: true}, // a trail byte
	} {
		want := new(Scanner).Scan([]byte(sql), opt)
		if got, _ := read(sql, opt); got != (want.Fence != "") {
			t.Errorf("%q: %v, a scan finds %q", sql, got, want.Fence)
		}
	}
}

func TestStreamsFindTheWord(t *testing.T) {
	for text, want := range map[string]bool{"set wirefence.token = 'a=1'": true, "select 'wirefence'": true, "WIREFENCE": true, "wirefence_jobs": false, "mywirefence": false, "wire fence": false} {
		for cut := range len(text) {
			if _, got := read(text, Options{}, cut); got != want {
				t.Errorf("%q, cut at %d: %v", text, cut, got)
			}
		}
	}
}

// A stream finds a fence that a scan does, wherever the text is cut.
func FuzzStream(f *testing.F) {
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
		whole, named := read(text, opt)
		if parts, again := read(text, opt, max(0, cut), 1); whole != parts || named != again {
			t.Fatalf("%v, %v, in parts %v, %v", whole, named, parts, again)
		}
		if strings.ContainsRune(text, 0) {
			return
		}
		if r := new(Scanner).Scan([]byte(text), opt); r.Fence != "" && r.FenceErr == nil && !whole {
			t.Fatalf("%q: a scan finds %q", text, r.Fence)
		}
	})
}
