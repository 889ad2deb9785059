package fence_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
)

// testdata/claims.json holds texts, and what a fence of each is as String returns it. A text
// without one is malformed.
func TestParseClaims(t *testing.T) {
	text, err := os.ReadFile("testdata/claims.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Text, Want string }
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		f, err := fence.Parse(c.Text)
		if got := f.String(); got != c.Want || (err != nil) != (c.Want == "") {
			t.Errorf("%q: got %q, %v, want %q", c.Text, got, err, c.Want)
		}
		if err != nil && (!fence.IsMalformed(err) || !f.IsZero()) {
			t.Errorf("%q: %#v with %v", c.Text, err, f)
		}
		if rows := strings.Contains(c.Want, "("); f.HasClaims() != rows || len(f.Claims()) > 0 != rows {
			t.Errorf("%q: claims %v", c.Text, f.Claims())
		}
	}
}

func TestKeys(t *testing.T) {
	type text string
	for _, c := range []struct {
		columns []any
		want    string // "" is a refusal
	}{
		{[]any{17}, "17"}, {[]any{int64(math.MinInt64)}, "-9223372036854775808"}, {[]any{uint8(200)}, "200"}, {[]any{"acme", int32(17)}, "acme:17"},
		{[]any{"a:b", "c"}, "a%3Ab:c"}, {[]any{"a", "b:c"}, "a:b%3Ac"}, {[]any{"é(1)=%,'"}, "%C3%A9%281%29%3D%25%2C%27"},
		{[]any{[16]byte{0x01, 0x90, 0xa5, 0xb2, 0x6d, 0x4e, 0x7c, 0x31, 0x8f, 15: 0xcc}}, "0190a5b2-6d4e-7c31-8f00-0000000000cc"},
		{[]any{netip.MustParseAddr("::1")}, "%3A%3A1"},
		{[]any{strings.Repeat("é", fence.MaxKeyBytes/6)}, strings.Repeat("%C3%A9", fence.MaxKeyBytes/6)}, {[]any{strings.Repeat("a", fence.MaxKeyBytes+1)}, ""},
		{nil, ""}, {[]any{""}, ""}, {[]any{"a", ""}, ""}, {[]any{nil}, ""}, {[]any{1.5}, ""}, {[]any{true}, ""}, {[]any{text("a")}, ""}, {[]any{"\xff"}, ""}, {[]any{"a\x00"}, ""},
	} {
		f, err := fence.NewClaims(fence.Claim{"job", fence.Key(c.columns...), -1})
		if c.want == "" {
			if !fence.IsMalformed(err) || !f.IsZero() {
				t.Errorf("%#v: %v, %v", c.columns, f, err)
			}
			continue
		}
		if got, want := f.String(), "job("+c.want+")=-1"; err != nil || got != want {
			t.Errorf("%#v: %s, %v, want %s", c.columns, got, err, want)
		}
		if again, err := fence.Parse(f.String()); err != nil || !slices.Equal(again.Claims(), f.Claims()) {
			t.Errorf("%s doesn't come back: %v", f, err)
		}
	}
	if f, err := fence.NewClaims(fence.Claim{"Job", "17", 1}); !fence.IsMalformed(err) {
		t.Errorf("the class Job: %v, %v", f, err)
	}
}

func TestMergeClaims(t *testing.T) {
	given := []fence.Claim{{"job", "2", 5}, {"job", "1", 5}, {"job", "2", 5}}
	batch, err := fence.NewClaims(given...)
	if err != nil {
		t.Fatal(err)
	}
	given[0].Value, batch.Claims()[0].Value = 9, 9
	lease, _ := fence.New(fence.Pair{Resource: "orders", Token: 34})
	all, err := lease.Merge(batch)
	if err != nil || all.String() != "orders=34,job(1)=5,job(2)=5" || all.Token("orders") != 34 || len(all.Pairs()) != 1 || len(all.Claims()) != 2 {
		t.Errorf("merged: %s, %v", all, err)
	}
	if again, err := all.Merge(batch); err != nil || again.String() != all.String() {
		t.Errorf("merged with a part of itself: %s, %v", again, err)
	}
	if rest := all.Without("orders"); rest.String() != batch.String() || all.Token("orders") != 34 || all.Without("other").String() != all.String() {
		t.Errorf("without orders: %s, of %s", rest, all)
	}
	other, _ := fence.NewClaims(fence.Claim{"job", "2", 6})
	if f, err := all.Merge(other); !fence.IsMalformed(err) || !f.IsZero() {
		t.Errorf("two claims for one row: %s, %v", f, err)
	}
	if lease.HasClaims() || !batch.HasClaims() || !all.HasClaims() || batch.IsZero() || (fence.Fence{}).HasClaims() {
		t.Error("HasClaims or IsZero is wrong")
	}
	if f, err := fence.NewClaims(); err != nil || !f.IsZero() {
		t.Errorf("no claims: %s, %v", f, err)
	}
}

// claims makes claims of n rows, whose keys have so many bytes.
func claims(n, bytes int) (all []fence.Claim) {
	for i := range n {
		all = append(all, fence.Claim{"job", fmt.Sprintf("%0*d", bytes, i), math.MinInt64})
	}
	return all
}

func TestAFenceNamesAtMost10000Rows(t *testing.T) {
	full := claims(fence.MaxClaims, 20)
	f, err := fence.NewClaims(append(full, full...)...)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := fence.Parse(f.String()); err != nil || again.String() != f.String() || len(again.Claims()) != fence.MaxClaims {
		t.Errorf("a full fence doesn't come back: %v", err)
	}
	one, _ := fence.NewClaims(fence.Claim{"more", "1", 1})
	if _, err := f.Merge(one); !fence.IsMalformed(err) {
		t.Errorf("10,001 rows: %v", err)
	}
	if _, err := fence.Parse(f.String() + ",more(1)=1"); !fence.IsMalformed(err) {
		t.Errorf("10,001 rows in a text: %v", err)
	}
	resources := "r0=1"
	for i := 1; i < fence.MaxPairs; i++ {
		resources += fmt.Sprintf(",r%d=1", i)
	}
	if both, err := fence.Parse(f.String() + "," + resources); err != nil || len(both.Pairs()) != fence.MaxPairs || len(both.Claims()) != fence.MaxClaims {
		t.Errorf("a full fence with 32 resources: %v", err)
	}
	// 1,000 rows whose text has 1 MiB, and one byte more.
	long := claims(1000, 1022)
	const each = len("job()=-9223372036854775808,") + 1022
	long[0].Key = long[0].Key[:1022-(1000*each-1-fence.MaxTextBytes)]
	f, err = fence.NewClaims(long...)
	if err != nil || len(f.String()) != fence.MaxTextBytes {
		t.Errorf("%d bytes: %v", len(f.String()), err)
	}
	if _, err := fence.Parse(f.String()); err != nil {
		t.Error(err)
	}
	long[0].Key += "0"
	var syntax *fence.SyntaxError
	if _, err := fence.NewClaims(long...); !errors.As(err, &syntax) || !strings.Contains(syntax.Reason, "1048577 bytes") {
		t.Errorf("one byte more: %v", err)
	}
}
