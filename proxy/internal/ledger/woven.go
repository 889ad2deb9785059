package ledger

import "sort"

// Woven records the statements that the proxy has inserted into the text of a Query. It
// tells which results are the client's, and translates an error's position to the client's
// text. The zero value is that of an unchanged text.
type Woven struct {
	puts    []put
	results int // that have come
	passed  int // of puts, whose results have come
}

type put struct {
	result int // its number among the results of the woven text
	at     int // in characters of the client's text
	start  int // in characters of the woven text
	width  int // in characters
}

// Reset empties it for another text.
func (w *Woven) Reset() { *w = Woven{puts: w.puts[:0]} }

// Put records an inserted statement of width characters, ahead of the client's statement
// with this index, at an offset in characters of the client's text. The offsets must not go
// back.
func (w *Woven) Put(statement, at, width int) {
	start := at
	if n := len(w.puts); n > 0 {
		last := &w.puts[n-1]
		start += last.start + last.width - last.at
	}
	w.puts = append(w.puts, put{statement + len(w.puts), at, start, width})
}

// Ours reports whether the result that comes next is the proxy's.
func (w *Woven) Ours() bool {
	return w.passed < len(w.puts) && w.puts[w.passed].result == w.results
}

// NextResult records that a result is complete.
func (w *Woven) NextResult() {
	if w.Ours() {
		w.passed++
	}
	w.results++
}

// Position translates an error's position in the woven text to the client's text, both in
// characters from 1. It returns 0 for a position in an inserted statement.
func (w *Woven) Position(woven int) int {
	n := sort.Search(len(w.puts), func(i int) bool { return w.puts[i].start >= woven })
	if n == 0 {
		return woven
	}
	last := &w.puts[n-1]
	client := woven - last.start - last.width + last.at
	if client <= last.at {
		return 0
	}
	return client
}
