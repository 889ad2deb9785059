package migrations_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/wirefence/wirefence/fence"
)

// parsed returns how the server parses a fence: its pairs and claims in the form of
// fence.Fence.String, or the SQLSTATE.
func parsed(t interface{ Fatal(...any) }, conn *pgx.Conn, text, def string) (string, string) {
	var resources []string
	var tokens []int64
	var sources []*fence.Source
	var names []string
	var values []int64
	err := conn.QueryRow(context.Background(), "SELECT f.*, r.names, r.claims FROM wirefence.read_fence($1, $2) AS f, wirefence.split_rows(CASE WHEN strpos($1, '(') > 0 THEN $1 END) AS r", text, def).Scan(&resources, &tokens, &sources, &names, &values)
	if err != nil {
		return "", code(err)
	}
	if !slices.IsSorted(names) {
		t.Fatal("not sorted: ", names)
	}
	rows := make([]fence.Claim, len(names))
	for i, name := range names {
		class, key, _ := strings.Cut(strings.TrimSuffix(name, ")"), "(")
		rows[i] = fence.Claim{Class: class, Key: key, Value: values[i]}
	}
	pairs := make([]fence.Pair, len(resources))
	for i := range resources {
		pairs[i] = fence.Pair{Resource: fence.Resource(resources[i]), Token: fence.Token(tokens[i])}
		if sources[i] != nil {
			pairs[i].Source = *sources[i]
		}
		if i > 0 && resources[i-1] >= resources[i] {
			t.Fatal("not sorted: ", resources)
		}
	}
	var claims, f fence.Fence
	if len(rows) > 0 {
		if claims, err = fence.NewClaims(rows...); err != nil {
			t.Fatal(err)
		}
	}
	if f, err = fence.New(pairs...); err == nil || len(pairs) == 0 {
		f, err = f.Merge(claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f.String(), ""
}

// agree compares the results of Go and SQL for one text.
func agree(t interface {
	Fatal(...any)
	Errorf(string, ...any)
}, conn *pgx.Conn, text, def string) {
	want, wantState := "", ""
	if f, err := fence.ParseWithDefault(text, fence.Resource(def)); err != nil {
		wantState = string(fence.MalformedToken)
	} else {
		want = f.String()
	}
	if got, state := parsed(t, conn, text, def); got != want || state != wantState {
		t.Errorf("%q with default %q: SQL says %q %s, Go says %q %s", text, def, got, state, want, wantState)
	}
}

func repeated(n int, pair func(i int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = pair(i)
	}
	return strings.Join(all, ",")
}

func TestGrammarAgreesWithGoAtTheLimits(t *testing.T) {
	name := func(i int) string { return "r" + strings.Repeat("x", i) }
	texts := []string{
		"", ",", "=", "=1", "a=", "a=1", "a=1,", ",a=1", "a=1,,b=2", "a==1", "a=1=2", "a= 1", " a=1", "a=1 ", "a=1\n", "a=+1", "a=-1",
		"a=0", "a=01", "a=1.0", "a=1e3", "a=0x1", "a=9223372036854775807", "a=9223372036854775808", "a=10000000000000000000",
		"a=99999999999999999999999", "a=999999999999999999", "a=١", "é=1", "%C3%A9=1", "%c3%a9=1", "%C3=1", "%FF=1", "%00=1", "a%00b=1",
		"%ED%A0%80=1", "%C0%80=1", "%F4%90%80%80=1", "%F4%8F%BF%BF=1", "%41=1,A=1", "%41=1,A=2", "a%=1", "a%4=1", "a%4g=1", "%%41=1",
		"a'b=1", "a\"b=1", `a\b=1`, "a%27b=1", "a%22b=1", "a%5Cb=1", "a%2Cb=1,a%3Db=2", "a*=1", "a%2A=1", "a b=1", "a%20b=1", "a%0Ab=1",
		"1", "34", "0", "034", "9223372036854775807", "9223372036854775808", "34,a=1", "34,34", "34,35", "a", "-", "ünï=1",
		"a=1@x", "1@x", "@x", "a=@x", "a@x=1", "a%40x=1", "a=1@", "a=1@@x", "a=1@x@y", "a=1@x=2", "a=1@X", "a=1@9x", "a=1@_x", "a=1@x9_.-", "a=1@é",
		"a=1@x ", "a=1@x\n", "a=1@%78", "a=1@x/y", "a=1,a=1@x", "a=1@x,a=1", "a=1@x,a=1@x", "a=1@x,a=1@y", "a=1@x,a=1,a=1@y", "a=1@x,a=2@x",
		"1@x,orders=1", "1,orders=1@x", "1@x,orders=1@y", "a=1@z,b=2@y,c=3", "a=1@a-b,a=1@a.b", "a=1@" + strings.Repeat("z", 32), "a=1@" + strings.Repeat("z", 33),
		strings.Repeat("a", 255) + "=1", strings.Repeat("a", 256) + "=1",
		strings.Repeat("%41", 255) + "=1", strings.Repeat("%41", 256) + "=1",
		strings.Repeat("%C3%A9", 127) + "=1", strings.Repeat("%C3%A9", 128) + "=1",
		repeated(32, func(i int) string { return name(i) + "=1" }), repeated(33, func(i int) string { return name(i) + "=1" }),
		repeated(100, func(int) string { return "a=1" }), repeated(100, func(i int) string { return name(i%32) + "=1" }),
		repeated(32, func(i int) string {
			return strings.Repeat("%41", 254) + "%" + string("0123456789ABCDEF"[2+i/16]) + string("0123456789ABCDEF"[i%16]) + "=9223372036854775807@" + strings.Repeat("z", 32)
		}),
		repeated(6552, func(int) string { return "a=1" }), strings.Repeat("a", fence.MaxTextBytes+1), "a=" + strings.Repeat("1", fence.MaxTextBytes),
		repeated(2000, func(int) string { return "a=123456789" }) + strings.Repeat(",", 3153),
	}
	claims, err := os.ReadFile("../fence/testdata/claims.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Text string }
	if err := json.Unmarshal(claims, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		texts = append(texts, c.Text)
	}
	texts = append(texts,
		repeated(10000, func(i int) string { return fmt.Sprintf("job(%d)=%d", i, i) }), repeated(10001, func(i int) string { return fmt.Sprintf("job(%d)=%d", i, i) }),
		"job("+strings.Repeat("a", fence.MaxKeyBytes)+")=1", "job("+strings.Repeat("a", fence.MaxKeyBytes+1)+")=1",
		repeated(1100, func(i int) string { return fmt.Sprintf("job(%d%s)=1", i, strings.Repeat("a", 1000)) }))
	onEach(t, func(t *testing.T, db database) {
		conn := db.admin(t)
		for _, text := range texts {
			agree(t, conn, text, "")
			agree(t, conn, text, "orders")
			agree(t, conn, text, `odd "name"`)
		}
	})
}

func TestGrammarAgreesWithGo(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		conn := db.admin(t)
		rapid.Check(t, func(t *rapid.T) {
			agree(t, conn, mutated(t, validFence(t)), rapid.SampledFrom([]string{"", "orders", "A"}).Draw(t, "default"))
		})
	})
}

// validFence draws the text of a fence. The names share a few letters, so some of them
// are equal.
func validFence(t *rapid.T) string {
	pairs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
		name := fence.Resource(rapid.OneOf(
			rapid.StringMatching(`[A-Ca-c/:._-]{1,3}`),
			rapid.StringN(1, 6, 255),
		).Draw(t, "name"))
		token := rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Min(1)).Draw(t, "token")
		if rapid.IntRange(0, 3).Draw(t, "row") == 0 {
			claim := rapid.OneOf(rapid.Int64Range(-2, 2), rapid.Int64()).Draw(t, "claim")
			part := rapid.OneOf(rapid.StringMatching(`[0-9a-c]{1,2}`), rapid.StringN(1, 4, 40))
			key := fence.Key(part.Draw(t, "part"))
			if rapid.Bool().Draw(t, "two") {
				key += ":" + fence.Key(part.Draw(t, "part"))
			}
			return fmt.Sprintf("%s(%s)=%d", rapid.SampledFrom([]string{"job", "a", "_9"}).Draw(t, "class"), key, claim)
		}
		source := rapid.SampledFrom([]string{"", "", "@x", "@y-1"}).Draw(t, "source")
		return name.Encode() + "=" + fence.Token(token).String() + source
	}), 1, 5).Draw(t, "pairs")
	return strings.Join(pairs, ",")
}

// mutated changes a few characters of a text, or none.
func mutated(t *rapid.T, text string) string {
	runes := []rune(text)
	for range rapid.IntRange(0, 3).Draw(t, "mutations") {
		at := rapid.IntRange(0, len(runes)).Draw(t, "at")
		char := rapid.SampledFrom([]rune("=,%@():-0123456789aAfFgG. '\"\\*é\n")).Draw(t, "char")
		switch drop := rapid.IntRange(0, 1).Draw(t, "drop"); {
		case at+drop <= len(runes):
			runes = append(append(append([]rune{}, runes[:at]...), char), runes[at+drop:]...)
		default:
			runes = append(runes, char)
		}
	}
	return string(runes)
}

// In a database with another encoding a name in a fence is still UTF-8, and check and
// seal read the same resource.
func TestDatabasesInOtherEncodings(t *testing.T) {
	onEach(t, func(t *testing.T, db database) {
		for encoding, beyond := range map[string]string{"SQL_ASCII": "", "LATIN1": "WF004", "EUC_JP": "WF004"} {
			other := create(t, db.Postgres, "TEMPLATE template0 ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C'")
			conn := other.admin(t)
			apply(t, conn)
			mustExec(t, conn, "SET client_encoding = 'UTF8'")
			mustExec(t, conn, "SELECT wirefence.seal('caf%', 34)")
			wantCode(t, exec(conn, "SELECT wirefence.check('caf%25=33')"), "WF001")
			for fence, state := range map[string]string{
				"a=1": "", "%FF=1": "WF004", "%C3=1": "WF004", "%00=1": "WF004", "%F0%9F%94%92=1": beyond,
			} {
				if got := code(exec(conn, "SELECT wirefence.check($1)", fence)); got != state {
					t.Errorf("%s, %s: got %q, want %q", encoding, fence, got, state)
				}
			}
			mustExec(t, conn, "SELECT wirefence.seal('café', 34)")
			wantCode(t, exec(conn, "SELECT wirefence.check('caf%C3%A9=33')"), "WF001")
			mustExec(t, conn, "SELECT wirefence.check('caf%C3%A9=34')")
			// Bytes that are no text at all.
			if encoding == "SQL_ASCII" {
				wantCode(t, exec(conn, "SELECT wirefence.check(convert_from('\\xff3d31', 'SQL_ASCII'))"), "WF004")
			}
		}
	})
}
