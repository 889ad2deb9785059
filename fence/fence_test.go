package fence_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wirefence/wirefence/fence"
)

func TestParse(t *testing.T) {
	full := strings.Repeat("%C3%A9", 127)
	for _, c := range []struct{ text, def, want string }{ // want "" is a refusal
		{"orders=34", "", "orders=34"},
		{"b=2,a=1", "", "a=1,b=2"},
		{"a=1,a=1", "", "a=1"},
		{"a=1,a=2", "", ""},
		{"report:acme:17=1", "", "report:acme:17=1"},
		{"a/b.c_d-e:F0=9223372036854775807", "", "a/b.c_d-e:F0=9223372036854775807"},
		{"a=9223372036854775808", "", ""},
		{"a=99999999999999999999", "", ""},
		{"a=0", "", ""}, {"a=01", "", ""}, {"a=-1", "", ""}, {"a=+1", "", ""}, {"a=1e3", "", ""}, {"a=", "", ""}, {"a= 1", "", ""},
		{"", "", ""}, {",", "", ""}, {"a=1,", "", ""}, {"=1", "", ""}, {"a", "", ""}, {"a==1", "", ""}, {" a=1", "", ""},
		{"%41=1", "", "A=1"}, {"%c3%a9=1", "", "%C3%A9=1"}, {"%41=1,A=2", "", ""},
		{"%=1", "", ""}, {"%4=1", "", ""}, {"%4g=1", "", ""}, {"%FF=1", "", ""}, {"%00=1", "", ""}, {"é=1", "", ""}, {"a'=1", "", ""},
		{full + "=1", "", full + "=1"}, {full + "%41=1", "", full + "A=1"}, {full + "%C3%A9=1", "", ""},
		{strings.Repeat("a", 255) + "=1", "", strings.Repeat("a", 255) + "=1"}, {strings.Repeat("a", 256) + "=1", "", ""},
		{strings.Repeat("a=1,", 6000) + "a=1", "", "a=1"},
		{strings.Repeat("a=1,", fence.MaxTextBytes/4) + "a=1", "", ""},
		{"34", "", ""}, {"34", "orders", "orders=34"}, {"34,a=1", "orders", "a=1,orders=34"}, {"34,orders=35", "orders", ""},
		{"34", "odd name", "odd%20name=34"}, {"034", "orders", ""},
		{"orders=34@etcd", "", "orders=34@etcd"}, {"34@etcd", "orders", "orders=34@etcd"}, {"34@etcd", "", ""},
		{"a=1@b,b=1@a", "", "a=1@b,b=1@a"}, {"a=1@z9_.-", "", "a=1@z9_.-"}, {"a%40b=1@c", "", "a%40b=1@c"},
		{"a=1,a=1@etcd", "", "a=1@etcd"}, {"a=1@etcd,a=1,a=1@etcd", "", "a=1@etcd"}, {"a=1@x,a=1@y", "", ""}, {"a=1@x,a=1,a=1@y", "", ""},
		{"a=1@x,a=2@x", "", ""}, {"a=1@", "", ""}, {"a=1@@x", "", ""}, {"a=1@x@y", "", ""}, {"a=@x", "", ""}, {"a@x=1", "", ""}, {"@x", "a", ""},
		{"a=1@X", "", ""}, {"a=1@9", "", ""}, {"a=1@-a", "", ""}, {"a=1@a b", "", ""}, {"a=1@a/b", "", ""}, {"a=1@%65tcd", "", ""}, {"a=1@\u00e9", "", ""},
		{"a=1@" + strings.Repeat("z", 32), "", "a=1@" + strings.Repeat("z", 32)}, {"a=1@" + strings.Repeat("z", 33), "", ""},
	} {
		f, err := fence.ParseWithDefault(c.text, fence.Resource(c.def))
		if got := f.String(); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%.60q with default %q: got %q, %v", c.text, c.def, got, err)
		}
		var syntax *fence.SyntaxError
		if err != nil && (!errors.As(err, &syntax) || !fence.IsMalformed(err) || !f.IsZero()) {
			t.Errorf("%.60q: %#v with %v", c.text, err, f)
		}
	}
}

func TestAFenceNamesAtMost32Resources(t *testing.T) {
	var pairs []fence.Pair
	for i := range fence.MaxPairs {
		name := fmt.Sprintf("%02d", i) + strings.Repeat("\x01", fence.MaxResourceBytes-2)
		pairs = append(pairs, fence.Pair{Resource: fence.Resource(name), Token: 9223372036854775807, Source: fence.Source(strings.Repeat("z", fence.MaxSourceBytes))})
	}
	f, err := fence.New(append(pairs, pairs...)...)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.String()); n > fence.MaxTextBytes {
		t.Errorf("a full fence has %d bytes", n)
	}
	if again, err := fence.Parse(f.String()); err != nil || again.String() != f.String() {
		t.Errorf("a full fence doesn't come back: %v", err)
	}
	one, _ := fence.New(fence.Pair{Resource: "more", Token: 1})
	if _, err := f.Merge(one); !fence.IsMalformed(err) {
		t.Errorf("33 resources: %v", err)
	}
	if _, err := f.Merge(f); err != nil {
		t.Errorf("merged with itself: %v", err)
	}
}

func TestNewRefusesWhatIsNoPair(t *testing.T) {
	for _, p := range []fence.Pair{
		{"", 1, ""}, {"a", 0, ""}, {"a", -1, ""}, {"\xff", 1, ""}, {"a\x00", 1, ""}, {fence.Resource(strings.Repeat("a", 256)), 1, ""},
		{"a", 1, "Etcd"}, {"a", 1, "1st"}, {"a", 1, "a@b"}, {"a", 1, fence.Source(strings.Repeat("a", 33))},
	} {
		if f, err := fence.New(p); !fence.IsMalformed(err) || !f.IsZero() {
			t.Errorf("%v: %v", p, err)
		}
	}
}

func TestAFenceIsImmutable(t *testing.T) {
	given := []fence.Pair{{"b", 2, ""}, {"a", 1, ""}}
	f, err := fence.New(given...)
	if err != nil {
		t.Fatal(err)
	}
	given[0].Token, f.Pairs()[0].Token = 9, 9
	if f.String() != "a=1,b=2" || f.Token("b") != 2 || f.Token("c") != 0 {
		t.Errorf("changed to %s", f)
	}
}

func TestStatesAreUniqueWellFormedAndDocumented(t *testing.T) {
	source, err := os.ReadFile("sqlstate.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]fence.SQLState{}
	for state, name := range fence.States() {
		if !regexp.MustCompile(`^WF\d{3}$`).MatchString(string(state)) || !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(name) {
			t.Errorf("%s %s is not well-formed", state, name)
		}
		if other, twice := names[name]; twice {
			t.Errorf("%s and %s are both %s", state, other, name)
		}
		names[name] = state
		if state.Condition() != name {
			t.Errorf("%s: condition %q", state, state.Condition())
		}
		if !regexp.MustCompile(`SQLState = "` + string(state) + `" +// \w`).Match(source) {
			t.Errorf("%s has no comment", state)
		}
	}
	if len(names) != 8 {
		t.Errorf("%d states", len(names))
	}
}

func TestErrorsAreAskedByPredicate(t *testing.T) {
	for state, is := range map[fence.SQLState]func(error) bool{
		fence.StaleToken: fence.IsStale, fence.TokenRequired: fence.IsRequired, fence.UnknownToken: fence.IsUnknown,
		fence.MalformedToken: fence.IsMalformed, fence.TokenReused: fence.IsReused, fence.CannotBeFenced: fence.IsUnfenceable,
		fence.ResourceUnknown: fence.IsUndeclared,
	} {
		err := fmt.Errorf("write: %w", &pgconn.PgError{Code: string(state)})
		if !is(err) || !fence.IsRefusal(err) || fence.StateOf(err) != state {
			t.Errorf("%s isn't recognised", state)
		}
		for _, other := range []error{nil, errors.New("x"), &pgconn.PgError{Code: "40001"}, &pgconn.PgError{Code: "WF999"}} {
			if is(other) || fence.IsRefusal(other) {
				t.Errorf("%v is taken for %s", other, state)
			}
		}
	}
}
