package ledger

// Names knows what the names of prepared statements, or of portals, mean to the
// server, as far ahead as the client sends. What one means is told by the message
// that gave it (Parse or Bind), once the server has confirmed it; until then it
// depends on whether that message will succeed. The zero value knows none. It is not
// safe for concurrent use.
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

// maxName is how many bytes PostgreSQL keeps of a name (NAMEDATALEN): names that
// agree in these are one.
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

// Sent notes a message that gives a name a meaning. batch tells the messages
// between two Syncs from others.
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

// Pending is how many messages that give a name are not answered.
func (n *Names[T]) Pending() int { return n.pending }

// Find returns what a name means to a message of this batch. ok is false if nothing
// is known of it. sure is false if its meaning depends on the outcome of a message in an
// earlier batch, which may have replaced another meaning, or not.
func (n *Names[T]) Find(name []byte, batch uint32) (what T, ok, sure bool) {
	m := n.find(name)
	switch {
	case m == nil:
		return what, false, true
	case m.head == len(m.sent):
		return m.known, m.exists, true
	}
	// If the message of this batch fails, the server skips what follows in it.
	last := m.sent[len(m.sent)-1]
	// Where it fails, SQL's PREPARE or DECLARE may have given the name before.
	return last.what, true, last.batch == batch || len(name) == 0 && !m.exists && len(m.sent)-m.head == 1
}

// Answered notes the outcome of the oldest message that gave this name.
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

// Change gives a name, or all with nil, another meaning wherever it has one.
func (n *Names[T]) Change(name []byte, change func(*T)) {
	if name != nil {
		if m := n.find(name); m != nil {
			m.change(change)
		}
		return
	}
	for _, m := range n.named {
		m.change(change)
	}
}

func (m *meaning[T]) change(change func(*T)) {
	change(&m.known)
	for i := m.head; i < len(m.sent); i++ {
		change(&m.sent[i].what)
	}
}

// Closed notes that the server has dropped what has this name.
func (n *Names[T]) Closed(name string) {
	if m := n.find([]byte(name)); m != nil {
		m.exists = false
		n.forget(name, m)
	}
}

// Cleared notes that the server has dropped all that it had confirmed.
func (n *Names[T]) Cleared() {
	n.unnamed.exists = false
	for name, m := range n.named {
		m.exists = false
		n.forget(name, m)
	}
}

func (n *Names[T]) forget(name string, m *meaning[T]) {
	if !m.exists && m.head == len(m.sent) && name != "" {
		delete(n.named, truncate(name))
	}
}
