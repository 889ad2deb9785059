package zombie

import (
	"context"
	"errors"
	"net"
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
	hold     int           // the number of the message that is held back, from 1 on; 0: none
	held     chan struct{} // closed when it has come
	gate     chan struct{} // closed when messages may pass
}

// backend is a server process, with what cancels its statement.
type backend struct {
	pgproto3.CancelRequest
	to *pgx.ConnConfig
}

func newTap(command, env, locks []string, source, copied string) (*tap, error) {
	t := &tap{locks: locks, source: source, copied: copied, open: map[net.Conn]bool{}}
	t.changed = sync.NewCond(&t.mu)
	t.begin(0)
	if err := t.lead(command, env); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// begin forgets what was noted. The message that is to be held back is said by its number.
func (t *tap) begin(hold int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.messages, t.began, t.conns, t.backends = nil, time.Now(), 0, map[uint32]*backend{}
	t.hold, t.held, t.gate = hold, make(chan struct{}), make(chan struct{})
	close(t.gate)
}

// release lets all messages pass.
func (t *tap) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openGate()
}

func (t *tap) openGate() {
	t.hold = 0
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

// pass notes a message, unless it is nil, and waits until it may pass.
func (t *tap) pass(m *Message) {
	t.mu.Lock()
	if m != nil {
		m.at = time.Since(t.began)
		t.messages = append(t.messages, m)
		if len(t.messages) == t.hold {
			close(t.held)
			t.gate = make(chan struct{})
		}
	}
	gate := t.gate
	t.mu.Unlock()
	<-gate
}
