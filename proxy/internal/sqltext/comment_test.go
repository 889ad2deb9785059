package sqltext

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
)

func TestFencesInComments(t *testing.T) {
	const bad = "!"
	cases := []struct{ sql, want string }{
		{"select 1", ""},
		{"/*wirefence.token='orders=34'*/ select 1", "orders=34"},
		{"select 1 /*wirefence.token='orders=34'*/", "orders=34"},
		{"select /* WireFence.Token = 'orders=34' */ 1", "orders=34"},
		{"select 1 -- wirefence.token='orders=34'", "orders=34"},
		{"select 1 --wirefence.token='orders=34'\n+ 1", "orders=34"},
		{"select 1 --wirefence.token='orders=34'\r+ 1", "orders=34"},
		{"/*wirefence.token='orders=34,stock=7'*/ select 1", "orders=34,stock=7"},
		{"/*wirefence.token='report:acme:17=3'*/", "report:acme:17=3"},
		{"/*wirefence.token='orders%3D34'*/", "orders=34"},
		{"/*wirefence%2Etoken='orders%3d34%2Cstock%3D7'*/", "orders=34,stock=7"},
		{"/*wirefence.token='a%2520b%3D34'*/", "a%20b=34"},
		{"/*wirefence.token='a%20b=34'*/", "a%20b=34"},
		{"/*wirefence.token='34'*/", "def=34"},
		{"/*+ SeqScan(t) wirefence.token='orders=34' */ select 1", "orders=34"},
		{"/*app='x',wirefence.token='orders=34',route='%2Fa'*/", "orders=34"},
		{"/*app='it\\'s' , wirefence.token='orders=34'*/", "orders=34"},
		{"/* don't mind: wirefence.token='orders=34' */", "orders=34"},
		{"/*app:x*//*wirefence.token='orders=34'*/", "orders=34"},
		{"/*wirefence.token='orders=34'*/ select 1; -- wirefence.token='stock=7'", "orders=34,stock=7"},
		{"/*wirefence.token='orders=34'*/ select 1; -- wirefence.token='orders=34'", "orders=34"},
		{"/*wirefence.token='orders=34'*/ select 1; -- wirefence.token='orders=35'", bad},
		{"/*wirefence.token='orders=34,orders=35'*/", bad},
		{"/*wirefence.token='orders=34@etcd'*/", "orders=34@etcd"},
		{"/*wirefence.token='orders%3D34%40etcd%2Cstock%3D7'*/", "orders=34@etcd,stock=7"},
		{"/*wirefence.token='34@etcd'*/", "def=34@etcd"},
		{"/*wirefence.token='34%40etcd'*/", "def=34@etcd"},
		{"/*wirefence.token='orders=34'*/ select 1 /*wirefence.token='orders=34@etcd'*/", "orders=34@etcd"},
		{"/*wirefence.token='orders=34@etcd'*/ select 1 /*wirefence.token='orders=34@zk'*/", bad},
		{"/*wirefence.token='orders=34%40etcd'*/", bad},
		{"/*wirefence.token='orders=34@'*/", bad},
		{"/*wirefence.token='orders=34@Etcd'*/", bad},
		{"select 'a' -- wirefence.token='orders=34'\n'b'", "orders=34"},
		{"select E'a' /*wirefence.token='orders=34'*/", "orders=34"},
		{"select 1+/*wirefence.token='orders=34'*/1", "orders=34"},
		{"/*wirefence.token='orders=34'*/ select $1", "orders=34"},
		// Not a comment.
		{"select '/*wirefence.token=''orders=34''*/'", ""},
		{"select '--wirefence.token=orders=34'", ""},
		{`select "/*wirefence.token='orders=34'*/"`, ""},
		{"select $$/*wirefence.token='orders=34'*/$$", ""},
		{`select E'\'/*wirefence.token=\'orders=34\'*/'`, ""},
		{`select U&"/*wirefence.token='orders=34'*/"`, ""},
		// A comment in a comment is not the comment's own text: a fence there is an error.
		{"/* /*wirefence.token='orders=34'*/ */ select 1", bad},
		{"/*wirefence.token='orders=34' /* wirefence.token='stock=7' */ */ select 1", bad},
		{"/* /* wirefence.token is prose */ */ select 1", ""},
		{"/* /* x */ wirefence.token='orders=34' */ select 1", "orders=34"},
		// No fence, but prose or another key.
		{"/* wirefence.token is set elsewhere */ select 1", ""},
		{"-- see wirefence.token: orders", ""},
		{"/* wirefence: see docs */ select 1", ""},
		{"/* wirefence */ select 1", ""},
		{"/* see wirefence, or ask */ select 1", ""},
		{"/* route:wirefence */", ""},
		{"-- wirefence: a proxy", ""},
		{"-- TODO(wirefence): orders", ""},
		{"/*app='wirefence'*/", ""},
		{"/*app='wirefence',route='x=1'*/", ""},
		{"/*url='https://wirefence.example/a?b=c'*/", ""},
		{"/*url='%2F%3Fwirefence.token%3D1'*/", ""},
		{"/* key=1, wirefence */", ""},
		{"/* wirefence: see docs?a=b */", ""},
		{"/* wirefence.token: see the docs, where a=b */", ""},
		// A misspelt one.
		{"/*wirefence.token:'orders=33'*/", bad},
		{"/*wirefence . token='orders=33'*/", bad},
		{"/*wirefence .token='orders=33'*/", bad},
		{"/*wirefence-token='orders=33'*/", bad},
		{"/*wirefence_token='orders=33'*/", bad},
		{"/*wirefence='orders=33'*/", bad},
		{"/*wirefence: orders=33*/", bad},
		{"/*wirefence.fence='orders=33'*/", bad},
		{"/*WIREFENCE_TOKEN=orders=33*/", bad},
		{"-- wirefence.token: 'orders=33'", bad},
		{"-- wirefencetoken=orders=33", bad},
		{"/*xwirefence.token='orders=34'*/", bad},
		{"/*my.wirefence.token='orders=34'*/", bad},
		{"/*wirefence.tokens='orders=34'*/", bad},
		// Malformed: never ignored.
		{"/* wirefence.token=orders=34 */ select 1", bad},
		{"/* wirefence.token='garbage' */ select 1", bad},
		{"/* wirefence.token='' */", bad},
		{"/* wirefence.token= */", bad},
		{"/* wirefence.token='orders=34 */", bad},
		{"-- wirefence.token='orders=34", bad},
		{`/* wirefence.token="orders=34" */`, bad},
		{"/*wirefence.token='orders=034'*/", bad},
		{"/*wirefence.token='orders =34'*/", bad},
		{"/*wirefence.token='orders=34''*/", bad},
		{"/*wirefence.token='orders=34'x*/", bad},
		{"/*wirefence.token=/*x*/'orders=34'*/", bad},
		{"/*wirefence.token='%zz'*/", bad},
		{"/*wirefence.token='orders%3'*/", bad},
		{"/*route='/x wirefence.token='orders=34'*/", bad},
		{"/*route=' wirefence.token=\\'orders=34\\''*/", bad},
	}
	var s Scanner
	for _, c := range cases {
		r := s.Scan([]byte(c.sql), Options{DefaultResource: "def"})
		var syntax *fence.SyntaxError
		switch {
		case c.want == bad && !errors.As(r.FenceErr, &syntax):
			t.Errorf("%s: %q, %v; want an error", c.sql, r.Fence, r.FenceErr)
		case c.want != bad && (r.FenceErr != nil || r.Fence != c.want):
			t.Errorf("%s: %q, %v; want %q", c.sql, r.Fence, r.FenceErr, c.want)
		case c.want != "" && !Mentions([]byte(c.sql)):
			t.Errorf("%s: Mentions says no", c.sql)
		}
	}
}

func TestFenceCacheHeedsTheDefaultResource(t *testing.T) {
	var s Scanner
	text := []byte("select 1 /*wirefence.token='34'*/")
	for _, resource := range []fence.Resource{"a", "b", "a"} {
		if r := s.Scan(text, Options{DefaultResource: resource}); r.Fence != string(resource)+"=34" {
			t.Errorf("%s: %q", resource, r.Fence)
		}
	}
	if r := s.Scan(text, Options{}); r.FenceErr == nil {
		t.Error("a bare token passes without a default resource")
	}
}

func TestTrailBytesAreNotSyntax(t *testing.T) {
	// 0x83 0x5c is a katakana in Shift JIS; its second byte is a backslash.
	sql := []byte("select '\x83\\'; insert into t values (1) /*wirefence.token='orders=34'*/ --'")
	for _, c := range []struct {
		opt        Options
		statements int
	}{
		{Options{Encoding: SJIS, EscapeStrings: true}, 2},
		{Options{Encoding: SingleByte, EscapeStrings: true}, 1},
		{Options{Encoding: SJIS}, 2},
	} {
		var s Scanner
		if r := s.Scan(sql, c.opt); len(r.Statements) != c.statements {
			t.Errorf("%+v: %d statements", c.opt, len(r.Statements))
		}
	}
}

func TestCountChars(t *testing.T) {
	for _, c := range []struct {
		encoding, text string
		want           int
	}{
		{"UTF8", "aé€😀", 4}, {"LATIN1", "a\xe9", 2}, {"EUC_JP", "a\x8f\xa1\xa1\x8e\xb1\xa4\xa2", 4},
		{"SJIS", "\x83\\\xb1a", 3}, {"GB18030", "\x81\x30\x81\x30\xb0\xa1a", 3}, {"GBK", "\xb0\xa1", 1},
		{"BIG5", "\xa5\\", 1}, {"UTF8", "\xf0\x9f", 1}, {"SQL_ASCII", "\xff\xff", 2},
		{"JOHAB", "\x8f\xa1\xa1", 1}, {"", "\xff", 1},
	} {
		if got := CountChars([]byte(c.text), ParseEncoding(c.encoding)); got != c.want {
			t.Errorf("%s %q: %d characters, want %d", c.encoding, c.text, got, c.want)
		}
	}
}

// A long comment takes no longer for each of its keys.
func TestLongComments(t *testing.T) {
	const trace = " traceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'"
	for _, key := range []string{"wirefence ", "wirefence:", "wirefence.", "wirefence.token ", "a='b' ", "wirefence.token:a ", "/* wirefence */ ", trace} {
		text := []byte("select 1 /* " + strings.Repeat(key, 4<<20/len(key)) + "*/")
		started := time.Now()
		var s Scanner
		s.Scan(text, Options{})
		TraceParent(text)
		TraceParent(text[len("select 1 /* "):])
		if took := time.Since(started); took > time.Minute { // it would be ten
			t.Errorf("%q, repeated: %v", key, took)
		}
	}
}

// The fences of many comments are added up at once.
func TestManyComments(t *testing.T) {
	const comments = 40_000
	var text []byte
	for i := range comments {
		text = fmt.Appendf(text, "/*wirefence.token='job(%d)=1'*/", i%9_000)
	}
	var s Scanner
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	result := s.Scan(text, Options{})
	runtime.ReadMemStats(&after)
	if result.FenceErr != nil || strings.Count(result.Fence, ",") != 8_999 {
		t.Fatalf("%v, %d bytes", result.FenceErr, len(result.Fence))
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 100*uint64(len(text)) {
		t.Errorf("%d bytes of memory for a text of %d", took, len(text))
	}
}
