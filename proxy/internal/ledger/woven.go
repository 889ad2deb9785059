package ledger

// Woven records the statements that the proxy has inserted into the text of a Query. It
// tells which results are the client's, and translates an error's position to the client's
// text. The zero value is that of an unchanged text.
type Woven struct {
	puts    []put
	ends    []int // of the client's statements in their own text, in characters
	results int   // that have come
}

type put struct {
	result    int // its number among the results of the woven text
	at, width int // in characters of the client's text, and of its own
}

// Reset empties it for another text.
func (w *Woven) Reset() { *w = Woven{puts: w.puts[:0], ends: w.ends[:0]} }

// Put records an inserted statement of width characters, ahead of the client's statement
// with this index, at an offset in characters of the client's text.
func (w *Woven) Put(statement, at, width int) {
	w.puts = append(w.puts, put{statement + len(w.puts), at, width})
}

// Ends records the end of the client's next statement, in characters of the client's text.
func (w *Woven) Ends(at int) { w.ends = append(w.ends, at) }

// Ours reports whether the result that comes next is the proxy's.
func (w *Woven) Ours() bool {
	for _, p := range w.puts {
		if p.result >= w.results {
			return p.result == w.results
		}
	}
	return false
}

// NextResult records that a result is complete.
func (w *Woven) NextResult() { w.results++ }

// Position translates an error's position in the woven text to the client's text, both in
// characters from 1. It returns 0 for a position in an inserted statement. After the first
// result, a position outside of the current statement is in the text of a prepared
// statement, and stays unchanged.
func (w *Woven) Position(woven int) int {
	client := woven
	for _, p := range w.puts {
		if client <= p.at {
			break
		}
		if client <= p.at+p.width {
			client = 0
			break
		}
		client -= p.width
	}
	if w.results == 0 || client == 0 && w.Ours() {
		return client
	}
	current := w.results
	for _, p := range w.puts {
		if p.result < w.results {
			current--
		}
	}
	begin := 0
	if current > 0 && current <= len(w.ends) {
		begin = w.ends[current-1]
	}
	if client <= begin || current < len(w.ends) && client > w.ends[current]+1 {
		return woven
	}
	return client
}
