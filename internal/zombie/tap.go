package zombie

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// tap is a proxy between a run and its servers. It notes the run's messages in the order in which
// they came, and from one of them on it holds all back.
type tap struct {
	Command, Env []string // of the run, which lead to the tap

	locks     []string // keys in Redis
	source    string   // a database, for which
	copied    string   // this one is meant; empty if it is meant itself
	folder    string
	listeners []net.Listener
	serving   sync.WaitGroup

	mu       sync.Mutex
	sessions int        // goroutines of connections
	changed  *sync.Cond // sessions or open
	messages []*Message
	began    time.Time
	conns    int
	open     map[net.Conn]bool
	backends map[uint32]*backend
	hold     hold
	over     bool          // the other connection's statement is awaited no longer
	late     *Message      // is held back
	ahead    *Message      // the last of that statement, if it has come
	shut     bool          // all later messages are held back
	held     chan struct{} // closed when they are
	gate     chan struct{} // closed when what is held back may pass
}

// hold says which message is held back: by its number from 1 on, 0 for none; with a pattern, by its number among
// those of that pattern, or, behind another connection's statement, the first of that pattern from that number on.
type hold struct {
	number  int
	pattern string
	behind  bool
}

// due reports whether the message that is held back is the last that came, or, behind a statement, may come.
func (h hold) due(messages []*Message) bool {
	switch {
	case h.number == 0:
		return false
	case h.pattern == "" || h.behind:
		return len(messages) >= h.number
	}
	return messages[len(messages)-1].pattern() == h.pattern && occurrences(messages, h.pattern) >= h.number
}

// occurrences is how many messages have a pattern.
func occurrences(messages []*Message, pattern string) (n int) {
	for _, m := range messages {
		if m.pattern() == pattern {
			n++
		}
	}
	return n
}

// backend is a server process, with what cancels its statement.
type backend struct {
	pgproto3.CancelRequest
	to *pgx.ConnConfig
}

func newTap(command, env, locks []string, source, copied string) (*tap, error) {
	t := &tap{locks: locks, source: source, copied: copied, open: map[net.Conn]bool{}}
	t.changed = sync.NewCond(&t.mu)
	t.begin(hold{})
	if err := t.lead(command, env); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// begin forgets what was noted.
func (t *tap) begin(h hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.messages, t.began, t.conns, t.backends = nil, time.Now(), 0, map[uint32]*backend{}
	t.hold, t.over, t.late, t.ahead, t.shut = h, false, nil, nil, false
	t.held, t.gate = make(chan struct{}), make(chan struct{})
}

// giveUp waits no longer for another connection's statement.
func (t *tap) giveUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over = true; t.late != nil && !t.shut {
		t.shut = true
		close(t.held)
	}
}

// release lets all messages pass.
func (t *tap) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openGate()
}

func (t *tap) openGate() {
	t.hold, t.shut = hold{}, false
	select {
	case <-t.gate:
	default:
		close(t.gate)
	}
}

// hangUp ends all connections. A message that is held back never comes to the server.
func (t *tap) hangUp() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.sessions > 0 {
		for conn := range t.open {
			_ = conn.Close()
		}
		t.openGate()
		t.changed.Wait()
	}
}

// inSession runs a part of a connection, which hangUp ends.
func (t *tap) inSession(do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions++
	go func() {
		do()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.sessions--
		t.changed.Broadcast()
	}()
}

// keep has hangUp close a connection.
func (t *tap) keep(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[conn] = true
	t.changed.Broadcast()
}

func (t *tap) end(conn net.Conn) {
	_ = conn.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, conn)
}

// serves reports whether a server process serves one of its connections, or has.
func (t *tap) serves(pid uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.backends[pid] != nil
}

// cancel cancels what backends still do for a client that has ended.
func (t *tap) cancel(ctx context.Context, backends []uint32) {
	for _, pid := range backends {
		if conn, err := dial(ctx, t.backends[pid].to); err == nil {
			_ = conn.SetDeadline(time.Now().Add(settleTime))
			sendCancel(conn, &t.backends[pid].CancelRequest)
			_ = conn.Close()
		}
	}
}

// connected is the number of a new connection.
func (t *tap) connected() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conns++
	return t.conns
}

// count is how many messages have come.
func (t *tap) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.messages)
}

// pass notes a message, unless it is nil, and waits until it may pass.
func (t *tap) pass(m *Message) {
	t.mu.Lock()
	gate, waits := t.gate, t.shut
	if m != nil {
		m.at = time.Since(t.began)
		t.messages = append(t.messages, m)
		if !t.shut && t.hold.due(t.messages) {
			waits = t.holdBack(m)
			if t.shut {
				close(t.held)
			}
		}
	}
	t.mu.Unlock()
	if waits {
		<-gate
	}
}

// holdBack reports whether a message is the one that is held back, and shuts the tap when that has come and
// what goes ahead of it has passed.
func (t *tap) holdBack(m *Message) bool {
	switch {
	case t.late == nil && (!t.hold.behind || t.hold.pattern == m.pattern()):
		t.late = m
		t.shut = !t.hold.behind || t.over || t.ahead != nil && t.ahead.Connection != m.Connection
		return true
	case m.ends():
		t.ahead = m
		if t.late != nil { // it comes behind
			at := slices.Index(t.messages, t.late)
			t.messages = append(slices.Delete(t.messages, at, at+1), t.late)
			t.shut = true
		}
	}
	return false
}
