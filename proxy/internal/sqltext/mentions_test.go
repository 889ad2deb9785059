package sqltext

import (
	"bytes"
	"testing"
)

func mentionsNaively(text []byte) bool {
	folded := make([]byte, len(text))
	for i, c := range text {
		folded[i] = lower[c]
	}
	for _, n := range effectWords.needles {
		if bytes.Contains(folded, []byte(n.word)) {
			return true
		}
	}
	return bytes.Contains(folded, []byte(`u&"`))
}

const carrying = mentionsFence | mentionsSetConfig | mentionsSettings | mentionsUnicode

func TestMentionsFindsEachWordAtEachOffset(t *testing.T) {
	for _, n := range allWords.needles {
		for before := range 12 {
			for after := range 3 {
				text := bytes.Repeat([]byte("s"), before)
				text = append(text, bytes.ToUpper([]byte(n.word))...)
				text = append(text, bytes.Repeat([]byte("n"), after)...)
				if mentioned(text)&n.is == 0 || MayCarry(text) != (n.is&carrying != 0) ||
					Mentions(text) != (n.is&(carrying|mentionsPrepare|mentionsUnlock) != 0) {
					t.Errorf("%q: %b, %v, %v", text, mentioned(text), MayCarry(text), Mentions(text))
				}
			}
		}
	}
	if all := []byte("wirefence set_config pg_settings advisory_unlock transaction_read_only execute prepare U&\""); mentioned(all) != 1<<8-1 {
		t.Errorf("%q: %b", all, mentioned(all))
	}
	for _, text := range []string{"", "s", "select name from wire_fence", "wirefenc", "client-encoding", `u & "x"`, "advisory unlock", "setconfig"} {
		if mentioned([]byte(text)) != 0 || Mentions([]byte(text)) {
			t.Errorf("%q: found", text)
		}
	}
}

var (
	smallSelect = []byte("SELECT id, name, price FROM products WHERE id = $1 AND price > 10")
	insert1KB   = append(append([]byte("INSERT INTO products (id, name, price, description) VALUES "),
		bytes.Repeat([]byte("(123, 'a product', 10.50, lower('TEXT')), "), 23)...), "(1, 'x', 2, '')"...)
	literal1MB = append(append([]byte("INSERT INTO t VALUES ('"), bytes.Repeat([]byte("some text of a user "), 52429)...), "')"...)
)

func benchmarkScan(b *testing.B, text []byte) {
	var s Scanner
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if len(s.Scan(text, Options{}).Statements) != 1 {
			b.Fatal("not one statement")
		}
	}
}

func BenchmarkScanSmallSelect(b *testing.B) { benchmarkScan(b, smallSelect) }
func BenchmarkScanInsert1KB(b *testing.B)   { benchmarkScan(b, insert1KB) }
func BenchmarkScanLiteral1MB(b *testing.B)  { benchmarkScan(b, literal1MB) }
func BenchmarkScanFenced(b *testing.B) {
	benchmarkScan(b, append([]byte("/*wirefence.token='orders=34'*/ "), smallSelect...))
}

func BenchmarkMentions(b *testing.B) {
	for name, text := range map[string][]byte{"SmallSelect": smallSelect, "Insert1KB": insert1KB, "Literal1MB": literal1MB} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if Mentions(text) {
					b.Fatal("found")
				}
			}
		})
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	var s Scanner
	for _, text := range [][]byte{smallSelect, insert1KB, []byte("execute p(1)"), []byte("fetch 100 from c"), append([]byte("/*wirefence.token='orders=34'*/ "), smallSelect...)} {
		s.Scan(text, Options{})
		if n := testing.AllocsPerRun(100, func() { s.Scan(text, Options{}) }); n != 0 {
			t.Errorf("%.40s: %v allocations", text, n)
		}
	}
}
