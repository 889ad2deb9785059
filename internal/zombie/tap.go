package zombie

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Message is a message of a run to PostgreSQL that can change or show something there. Those that
// can't are not counted, such as Parse and passwords.
type Message struct {
	Connection int       `json:"connection" says:"the number of the run's connection"`
	Kind       string    `json:"kind" says:"connect, query, bind, execute, sync, call, copied or close"`
	SQL        string    `json:"sql,omitempty" says:"its statement, or that which it belongs to"`
	Parameters []*string `json:"parameters,omitempty" says:"the values of $1, $2, …; those in binary as bytea"`
	Answer     string    `json:"answer,omitempty" says:"how the server answered: command tags, or an error"`
	// starts is true of a statement's first message.
	starts bool
	binary bool          // a parameter is
	at     time.Duration // since the run was started
}

// The kinds of messages.
const (
	connects = "connect"
	queries  = "query"
	binds    = "bind"
	executes = "execute"
	syncs    = "sync"
	calls    = "call"
	copied_  = "copied"
	closes   = "close"
)

// String is a message for people. What is before a Bind is before the statement.
func (m *Message) String() string {
	switch m.Kind {
	case queries, binds:
		return m.Text()
	case connects, calls, closes:
		return map[string]string{connects: "(connects)", calls: "(calls a function)", closes: "(closes the connection)"}[m.Kind]
	}
	return "(" + m.Kind + ") " + m.Text()
}

// Text is the statement in one line, or its beginning.
func (m *Message) Text() string {
	text := strings.Join(strings.Fields(m.SQL), " ")
	if runes := []rune(text); len(runes) > mostText {
		text = string(runes[:mostText-1]) + "…"
	}
	return text
}

// mostText is how many characters of a statement people see.
const mostText = 70

// tap is a proxy between a run and its servers. It notes the run's messages in the order in which
// they came, and from one of them on it holds all back.
type tap struct {
	Command, Env []string // of the run, which lead to the tap

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
	backends map[uint32]cancelling
	hold     int           // the number of the message that is held back, from 1 on; 0: none
	held     chan struct{} // closed when it has come
	gate     chan struct{} // closed when messages may pass
}

// cancelling is what cancels the statement of a backend.
type cancelling struct {
	packet []byte
	to     *pgx.ConnConfig
}

func newTap(command, env []string) (*tap, error) {
	t := &tap{open: map[net.Conn]bool{}}
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
	t.messages, t.began, t.conns, t.backends = nil, time.Now(), 0, map[uint32]cancelling{}
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
		c := t.backends[pid]
		if conn, err := dial(ctx, c.to); err == nil {
			_ = conn.SetDeadline(time.Now().Add(settleTime))
			_, _ = conn.Write(c.packet)
			_, _ = conn.Read(make([]byte, 1)) // the server closes it when it has done so
			_ = conn.Close()
		}
	}
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

// wire is a connection of a run.
type wire struct {
	*tap
	number         int
	client, server net.Conn
	to             *pgx.ConnConfig

	statements, portals map[string]Message // by name; a portal has parameters
	midway              bool               // in a statement's messages before a Sync
	asked               []*Message         // not yet answered; under mu
}

// serve serves one connection. It owns the client's.
func (t *tap) serve(client net.Conn, to *pgx.ConnConfig) {
	t.keep(client)
	defer t.end(client)
	from := bufio.NewReader(client)
	startup, err := readStartup(from, client)
	if err != nil {
		return
	}
	server, err := dial(context.Background(), to)
	if err != nil {
		return
	}
	t.keep(server)
	defer t.end(server)
	if binary.BigEndian.Uint32(startup[4:]) == cancelCode {
		_, _ = server.Write(startup)
		_, _ = server.Read(make([]byte, 1))
		return
	}
	t.mu.Lock()
	t.conns++
	w := &wire{tap: t, number: t.conns, client: client, server: server, to: to, statements: map[string]Message{}, portals: map[string]Message{}}
	t.mu.Unlock()
	t.pass(&Message{Connection: w.number, Kind: connects})
	if _, err := server.Write(startup); err != nil {
		return
	}
	t.inSession(func() {
		w.answer()
		_ = client.Close()
	})
	w.ask(from)
}

// ask forwards what the client sends until it hangs up.
func (w *wire) ask(from *bufio.Reader) {
	for {
		raw, err := readMessage(from)
		if err != nil {
			return
		}
		m := w.read(raw)
		if m != nil {
			m.Connection = w.number
			w.mu.Lock()
			w.asked = append(w.asked, m)
			w.mu.Unlock()
		}
		w.pass(m)
		if _, err := w.server.Write(raw); err != nil {
			return
		}
	}
}

// read is a message for the list, or nil.
func (w *wire) read(raw []byte) *Message {
	body, starts := raw[5:], !w.midway
	switch raw[0] {
	case 'Q':
		return &Message{Kind: queries, SQL: cString(body), starts: true}
	case 'P':
		p := pgproto3.Parse{}
		if p.Decode(body) == nil {
			w.statements[p.Name] = Message{SQL: p.Query}
		}
	case 'B':
		b := pgproto3.Bind{}
		if b.Decode(body) != nil {
			return nil
		}
		portal := w.statements[b.PreparedStatement]
		portal.Parameters, portal.binary = parameters(b), slices.Contains(b.ParameterFormatCodes, 1)
		w.portals[b.DestinationPortal], w.midway = portal, true
		return &Message{Kind: binds, SQL: portal.SQL, Parameters: portal.Parameters, starts: starts}
	case 'E':
		portal := w.portals[cString(body)]
		return &Message{Kind: executes, SQL: portal.SQL, Parameters: portal.Parameters, binary: portal.binary}
	case 'S':
		if w.midway = false; !starts {
			return &Message{Kind: syncs, SQL: w.portals[""].SQL}
		}
	case 'F':
		return &Message{Kind: calls, starts: true}
	case 'c', 'f':
		return &Message{Kind: copied_}
	case 'X':
		return &Message{Kind: closes}
	}
	return nil
}

// answer forwards what the server sends, and notes how it has answered.
func (w *wire) answer() {
	from, to := bufio.NewReader(w.server), bufio.NewWriter(w.client)
	for {
		raw, err := readMessage(from)
		if err != nil {
			return
		}
		w.note(raw)
		if _, err := to.Write(raw); err != nil {
			return
		}
		if from.Buffered() == 0 && to.Flush() != nil {
			return
		}
	}
}

func (w *wire) note(raw []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := ""
	switch raw[0] {
	case 'K':
		packet := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(len(raw)+3)), cancelCode)
		w.backends[binary.BigEndian.Uint32(raw[5:])] = cancelling{append(packet, raw[5:]...), w.to}
	case 'C':
		text = cString(raw[5:])
	case 'E':
		e := pgproto3.ErrorResponse{}
		if e.Decode(raw[5:]) == nil {
			text = e.Severity + ": " + e.Message
		}
	case 'Z':
		for len(w.asked) > 0 { // answered, up to the Query or Sync
			kind := w.asked[0].Kind
			if w.asked = w.asked[1:]; kind == queries || kind == syncs || kind == calls {
				break
			}
		}
	}
	for i, m := range w.asked {
		if text == "" || m.Kind != queries && m.Kind != executes && m.Kind != calls {
			continue
		}
		m.Answer = strings.TrimPrefix(m.Answer+", "+text, ", ")
		if m.Kind == executes {
			w.asked = slices.Delete(w.asked, i, i+1)
		}
		return
	}
}

// Codes of first packets (documentation, "Message Formats").
const (
	cancelCode = 80877102
	sslCode    = 80877103
	gssCode    = 80877104
)

// readStartup reads a client's first packet, and refuses to encrypt.
func readStartup(from *bufio.Reader, client net.Conn) ([]byte, error) {
	for {
		head, err := from.Peek(8)
		if err != nil {
			return nil, err
		}
		size, code := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:])
		if size < 8 || size > 1<<16 {
			return nil, errors.New("this is no startup packet")
		}
		packet := make([]byte, size)
		if _, err := io.ReadFull(from, packet); err != nil || code != sslCode && code != gssCode {
			return packet, err
		}
		if _, err := client.Write([]byte{'N'}); err != nil {
			return nil, err
		}
	}
}

func readMessage(from *bufio.Reader) ([]byte, error) {
	head, err := from.Peek(5)
	if err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<30 {
		return nil, errors.New("this is no message")
	}
	raw := make([]byte, 1+size)
	_, err = io.ReadFull(from, raw)
	return raw, err
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

func parameters(b pgproto3.Bind) (all []*string) {
	for i, value := range b.Parameters {
		text := string(value)
		if n := len(b.ParameterFormatCodes); n == 1 && b.ParameterFormatCodes[0] == 1 || n > 1 && b.ParameterFormatCodes[i] == 1 {
			text = `\x` + hex.EncodeToString(value)
		}
		all = append(all, &text)
		if value == nil {
			all[i] = nil
		}
	}
	return all
}
