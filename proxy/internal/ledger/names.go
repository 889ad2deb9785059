package ledger

// Names maps the names of prepared statements, or of portals, to their meanings at the
// server, also for messages that are not answered yet. A Parse or Bind gives a name its
// meaning once the server has confirmed it; until then the meaning depends on the outcome.
// The zero value is empty. It is not safe for concurrent use.
type Names[T any] struct {
	unnamed meaning[T]
	named   map[string]*meaning[T]
	pending int
}

type meaning[T any] struct {
	known  T
	exists bool
	sent   []assignment[T] // not answered, oldest at head
	head   int
}

type assignment[T any] struct {
	batch uint32
	what  T
}

// maxName is how many bytes PostgreSQL keeps of a name (NAMEDATALEN - 1). Names with the
// same first maxName bytes are equal.
const maxName = 63

func truncate[S ~string | ~[]byte](name S) S {
	if len(name) > maxName {
		return name[:maxName]
	}
	return name
}

func (n *Names[T]) find(name []byte) *meaning[T] {
	if len(name) == 0 {
		return &n.unnamed
	}
	return n.named[string(truncate(name))]
}

// Sent records a message that gives a name a meaning. batch is equal for the messages
// between two Syncs.
func (n *Names[T]) Sent(name []byte, batch uint32, what T) {
	m := n.find(name)
	if m == nil {
		if n.named == nil {
			n.named = map[string]*meaning[T]{}
		}
		m = &meaning[T]{}
		n.named[string(truncate(name))] = m
	}
	if m.head > len(m.sent)/2 && len(m.sent) == cap(m.sent) {
		m.sent = append(m.sent[:0], m.sent[m.head:]...)
		m.head = 0
	}
	m.sent = append(m.sent, assignment[T]{batch, what})
	n.pending++
}

// Knows reports whether it has a meaning of a name, confirmed or not.
func (n *Names[T]) Knows(name []byte) bool { return n.find(name) != nil }

// Latest returns the meaning of a name that a message of the batch has given, or nil.
func (n *Names[T]) Latest(name []byte) *T {
	if m := n.find(name); m != nil && m.head < len(m.sent) {
		return &m.sent[len(m.sent)-1].what
	}
	return nil
}

// Pending returns how many messages that give a name are not answered.
func (n *Names[T]) Pending() int { return n.pending }

// Find returns the meaning of a name for a message of this batch. ok is false if the name
// has none. sure is false if the meaning depends on the outcome of a message in an earlier
// batch.
func (n *Names[T]) Find(name []byte, batch uint32) (what T, ok, sure bool) {
	m := n.find(name)
	switch {
	case m == nil:
		return what, false, true
	case m.head == len(m.sent):
		return m.known, m.exists, true
	}
	// A message of this batch counts as successful: if it fails, the server skips the rest.
	last := m.sent[len(m.sent)-1]
	// For a named one that fails, there may be an earlier meaning.
	return last.what, true, last.batch == batch || len(name) == 0 && !m.exists && len(m.sent)-m.head == 1
}

// Answered records the outcome of the oldest unanswered message that gives this name.
func (n *Names[T]) Answered(name string, succeeded bool) {
	m := n.find([]byte(name))
	if m == nil || m.head == len(m.sent) {
		return
	}
	if succeeded {
		m.known, m.exists = m.sent[m.head].what, true
	}
	m.sent[m.head] = assignment[T]{}
	m.head++
	n.pending--
	if m.head == len(m.sent) {
		m.sent, m.head = m.sent[:0], 0
		if cap(m.sent) > 64 {
			m.sent = nil
		}
	}
	n.forget(name, m)
}

// Closed records that the server has dropped the statement or portal of this name.
func (n *Names[T]) Closed(name string) {
	if m := n.find([]byte(name)); m != nil {
		m.exists = false
		n.forget(name, m)
	}
}

// Cleared records that the server has dropped all confirmed statements or portals. It makes a
// new map, since going through one that was large once takes as long as it did then.
func (n *Names[T]) Cleared() {
	n.unnamed.exists = false
	var kept map[string]*meaning[T]
	for name, m := range n.named {
		if m.exists = false; m.head == len(m.sent) {
			continue
		}
		if kept == nil {
			kept = map[string]*meaning[T]{}
		}
		kept[name] = m
	}
	n.named = kept
}

func (n *Names[T]) forget(name string, m *meaning[T]) {
	if !m.exists && m.head == len(m.sent) && name != "" {
		delete(n.named, truncate(name))
	}
}
