// Package ledger matches a PostgreSQL server's answers to the messages that it was sent.
// Each message with an answer has an entry in the Queue, in order, and its answer removes
// the entry. So the answers to the proxy's own messages can be told from those to the
// client's, however far ahead the client sends (documentation, "Message Flow": Extended
// Query, Pipelining, COPY Operations).
//
// The package does no I/O. A Queue is not safe for concurrent use.
package ledger

// Kind is the kind of message that an entry stands for: its type in the protocol.
type Kind byte

// The kinds. Query, FunctionCall and Sync end in a ReadyForQuery. CopyData and CopyDone
// have no answer; they mark the client's copy data, since a server in copy-in mode swallows
// a Sync without an answer.
const (
	None         Kind = 0
	Parse        Kind = 'P'
	Bind         Kind = 'B'
	Describe     Kind = 'D'
	Execute      Kind = 'E'
	Close        Kind = 'C'
	Sync         Kind = 'S'
	Query        Kind = 'Q'
	FunctionCall Kind = 'F'
	CopyData     Kind = 'd'
	CopyDone     Kind = 'c'
)

func (k Kind) endsReady() bool { return k == Sync || k == Query || k == FunctionCall }

// Entry is one message that was sent to the server.
type Entry[T any] struct {
	Kind Kind
	// doubtful marks a Sync that the server may have swallowed in copy-in mode.
	doubtful bool
	// Note is the sender's own data.
	Note T
}

// Queue holds the entries whose answers are outstanding, oldest first. The zero
// value is empty.
type Queue[T any] struct {
	ring    []Entry[T]
	head, n int
	ready   int // entries that end in a ReadyForQuery
	copyIn  bool
	phantom int // doubtful Syncs that were matched to a ReadyForQuery
}

// Len returns how many entries are outstanding, without marks of copy data at the front.
func (q *Queue[T]) Len() int {
	q.Front()
	return q.n
}

// Ready returns how many ReadyForQuery are outstanding.
func (q *Queue[T]) Ready() int { return q.ready }

// CopyIn reports whether the server waits for copy data.
func (q *Queue[T]) CopyIn() bool { return q.copyIn }

// Push adds an entry and returns it, valid until the next Push.
func (q *Queue[T]) Push(kind Kind) *Entry[T] {
	if q.n == len(q.ring) {
		q.grow()
	}
	e := &q.ring[(q.head+q.n)&(len(q.ring)-1)]
	*e = Entry[T]{Kind: kind}
	q.n++
	if kind.endsReady() {
		q.ready++
	}
	return e
}

// Back returns the newest entry, valid until the next Push. The queue must not be empty.
func (q *Queue[T]) Back() *Entry[T] { return q.at(q.n - 1) }

// MarkCopyData notes that copy data was sent. A run of it leaves one entry.
func (q *Queue[T]) MarkCopyData() {
	if q.n > 0 && q.at(q.n-1).Kind == CopyData {
		return
	}
	if q.n > 0 {
		q.Push(CopyData)
	}
}

// MarkCopyDone notes that a CopyDone or a CopyFail was sent.
func (q *Queue[T]) MarkCopyDone() {
	if q.n > 0 {
		q.Push(CopyDone)
	}
}

func (q *Queue[T]) grow() {
	ring := make([]Entry[T], max(8, 2*len(q.ring)))
	for i := range q.n {
		ring[i] = *q.at(i)
	}
	q.ring, q.head = ring, 0
}

func (q *Queue[T]) at(i int) *Entry[T] { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

// Front returns the entry whose answer is awaited, or nil. Entries that ask for
// no answer are taken out on the way.
func (q *Queue[T]) Front() *Entry[T] {
	for q.n > 0 {
		e := q.at(0)
		if e.Kind != None && e.Kind != CopyData && e.Kind != CopyDone {
			return e
		}
		q.Pop()
	}
	return nil
}

// Pop takes the oldest entry out.
func (q *Queue[T]) Pop() {
	e := q.at(0)
	if e.Kind.endsReady() {
		q.ready--
	}
	*e = Entry[T]{}
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	if q.n == 0 && len(q.ring) > 64 {
		q.ring, q.head = nil, 0 // a burst's memory is not kept by an idle session
	}
}

// Expect returns the front entry if it is one of the kinds, otherwise nil. It drops a
// doubtful Sync at the front: an answer to a later entry proves that copy-in mode has
// swallowed it.
func (q *Queue[T]) Expect(kinds ...Kind) *Entry[T] {
	for {
		e := q.Front()
		if e == nil {
			return nil
		}
		for _, k := range kinds {
			if e.Kind == k {
				return e
			}
		}
		if e.Kind != Sync || !(e.doubtful || q.phantom > 0) {
			return nil
		}
		if !e.doubtful {
			q.phantom--
		}
		q.Pop()
	}
}

// BeginCopyIn notes that the server asked the front entry for copy data.
func (q *Queue[T]) BeginCopyIn() { q.copyIn = true }

// EndCopyIn notes that the front entry's COPY succeeded: the server read all up
// to the client's CopyDone, and swallowed every Sync before it.
func (q *Queue[T]) EndCopyIn() {
	if !q.copyIn {
		return
	}
	q.copyIn = false
	for i := 1; i < q.n; i++ {
		e := q.at(i)
		if e.Kind == CopyDone {
			e.Kind = None
			return
		}
		q.blank(e)
	}
}

// FailCopyIn records that the front entry's COPY failed. Messages that the client sent
// before its first copy data were swallowed; a Sync among the data may have been.
func (q *Queue[T]) FailCopyIn() {
	if !q.copyIn {
		return
	}
	q.copyIn = false
	data := false
	for i := 1; i < q.n; i++ {
		switch e := q.at(i); {
		case e.Kind == CopyDone:
			e.Kind = None
			return
		case e.Kind == CopyData:
			data, e.Kind = true, None
		case e.Kind == Sync && data:
			e.doubtful = true
		case e.Kind == Sync:
			q.blank(e)
		case e.Kind != None:
			return // not allowed in copy-in mode: this message made the COPY fail
		}
	}
}

func (q *Queue[T]) blank(e *Entry[T]) {
	if e.Kind.endsReady() {
		q.ready--
	}
	*e = Entry[T]{}
}

// Skip removes the entries that a server skips after an error in the extended protocol, up
// to the next Sync. It calls dropped for each.
func (q *Queue[T]) Skip(dropped func(*Entry[T])) {
	for q.n > 0 {
		e := q.at(0)
		if e.Kind == Sync {
			return
		}
		if e.Kind != None {
			dropped(e)
		}
		q.Pop()
	}
}

// TakeReady removes and returns the entry that a ReadyForQuery answers. ok is false if none
// is outstanding.
func (q *Queue[T]) TakeReady() (e Entry[T], ok bool) {
	q.copyIn = false
	for q.n > 0 {
		front := q.at(0)
		if front.Kind.endsReady() {
			if front.doubtful {
				q.phantom++
			}
			e = *front
			q.Pop()
			q.Front() // the marks of a COPY that is over don't keep the queue from being empty
			if q.n == 0 {
				q.phantom = 0
			}
			return e, true
		}
		q.Pop()
	}
	return e, false
}
