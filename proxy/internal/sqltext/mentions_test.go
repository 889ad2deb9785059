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
	for _, m := range effectWords.words {
		if bytes.Contains(folded, []byte(m.word)) {
			return true
		}
	}
	return false
}

func TestMentionsFindsEachWordAtEachOffset(t *testing.T) {
	for i := range mentions {
		m := &mentions[i]
		for before := range 12 {
			for after := range 3 {
				text := bytes.Repeat([]byte("s"), before)
				text = append(text, bytes.ToUpper([]byte(m.word))...)
				text = append(text, bytes.Repeat([]byte("n"), after)...)
				found, at := allWords.next(text, 0)
				if found != m || at != before || Mentions(text) != (i < 4) {
					t.Errorf("%q: %v at %d, %v", text, found, at, Mentions(text))
				}
			}
		}
	}
	for _, text := range []string{"", "s", "select name from wire_fence", "wirefenc", "client-encoding", "advisory unlock", "advisory_xact_lock(1)", "setconfig"} {
		if found, _ := allWords.next([]byte(text), 0); found != nil || Mentions([]byte(text)) {
			t.Errorf("%q: found", text)
		}
	}
}

var (
	smallSelect = []byte("SELECT id, name, price FROM products WHERE id = $1 AND price > 10")
	insert1KB   = append(append([]byte("INSERT INTO products (id, name, price, description) VALUES "),
		bytes.Repeat([]byte("(123, 'a product', 10.50, lower('TEXT')), "), 23)...), "(1, 'x', 2, '')"...)
)

func TestScanDoesNotAllocate(t *testing.T) {
	var s Scanner
	for _, text := range [][]byte{smallSelect, insert1KB, []byte("execute p(1)"), []byte("fetch 100 from c"), []byte("set local wirefence.token = 'orders=34'"),
		[]byte("select set_config('wirefence.token', $1, true)"), []byte("prepare p as select wirefence.check('a=1'), 'create'"), append([]byte("/*wirefence.token='orders=34'*/ "), smallSelect...)} {
		s.Scan(text, Options{})
		if n := testing.AllocsPerRun(100, func() { s.Scan(text, Options{}) }); n != 0 {
			t.Errorf("%.40s: %v allocations", text, n)
		}
	}
}
