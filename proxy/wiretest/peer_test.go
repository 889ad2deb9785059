package wiretest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// patience is how long a message may take that must come.
const patience = 30 * time.Second

// tb is what testing.T and rapid.T have in common.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// message is one message of the server's, as it came.
type message struct {
	typ  byte
	body []byte
}

// peer is a client that speaks raw messages.
type peer struct {
	t     tb
	place *place
	conn  net.Conn
	cut   cut
	text  func(string) string // what becomes of an SQL text before it is sent

	mu   sync.Mutex
	got  []message
	err  error
	news chan struct{}
	seen int // messages that were waited for

	patience time.Duration
	sent     string // what the messages of a failure are to be explained by
}

// dial connects to host:port or to a socket's path.
func dial(t tb, pl *place, addr string) *peer {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	conn, err := net.DialTimeout(network, addr, 10*time.Second)
	if err != nil {
		t.Fatalf("%v", err)
	}
	p := &peer{t: t, place: pl, conn: conn, cut: whole, news: make(chan struct{}, 1), patience: patience}
	if c, ok := t.(testing.TB); ok {
		c.Cleanup(func() { _ = conn.Close() })
	}
	go p.read()
	return p
}

// login opens a session and waits until it may send queries.
func login(t tb, pl *place, addr string, params ...string) *peer {
	t.Helper()
	p := dial(t, pl, addr)
	p.write(startup(pl.db, params...))
	p.ready(1)
	return p
}

// startup is the startup packet of the superuser; params are names and values.
func startup(db string, params ...string) []byte {
	return startupVersion(pgproto3.ProtocolVersion30, db, params...)
}

func startupVersion(version uint32, db string, params ...string) []byte {
	packet := binary.BigEndian.AppendUint32(make([]byte, 4), version)
	for _, text := range append([]string{"user", "postgres", "database", db}, params...) {
		packet = append(append(packet, text...), 0)
	}
	packet = append(packet, 0)
	binary.BigEndian.PutUint32(packet, uint32(len(packet)))
	return packet
}

func (p *peer) read() {
	var head [5]byte
	for {
		_, err := io.ReadFull(p.conn, head[:])
		m := message{typ: head[0]}
		if err == nil {
			size := binary.BigEndian.Uint32(head[1:])
			if size < 4 {
				err = fmt.Errorf("a message of type %q has length %d", head[0], size)
			} else {
				m.body = make([]byte, size-4)
				_, err = io.ReadFull(p.conn, m.body)
			}
		}
		p.mu.Lock()
		if err != nil {
			p.err = err
		} else {
			p.got = append(p.got, m)
		}
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// await waits for a message that fits and returns it.
func (p *peer) await(what string, fits func(message) bool) message {
	p.t.Helper()
	timeout := time.NewTimer(p.patience)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		for p.seen < len(p.got) {
			m := p.got[p.seen]
			p.seen++
			if fits(m) {
				p.mu.Unlock()
				return m
			}
		}
		err := p.err
		p.mu.Unlock()
		if err != nil {
			p.t.Fatalf("waiting for %s: %v\n%s", what, err, p.story())
		}
		select {
		case <-p.news:
		case <-timeout.C:
			p.t.Fatalf("no %s in %s\n%s", what, p.patience, p.story())
		}
	}
}

// until waits for a message of the type.
func (p *peer) until(typ byte) message {
	p.t.Helper()
	return p.await(fmt.Sprintf("message %q", typ), func(m message) bool { return m.typ == typ })
}

// ready waits for n more ReadyForQuery.
func (p *peer) ready(n int) {
	p.t.Helper()
	for range n {
		p.until('Z')
	}
}

// ended waits until the other side has closed the connection.
func (p *peer) ended() {
	p.t.Helper()
	timeout := time.NewTimer(p.patience)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		err := p.err
		p.seen = len(p.got)
		p.mu.Unlock()
		if err != nil {
			return
		}
		select {
		case <-p.news:
		case <-timeout.C:
			p.t.Fatalf("the connection was not closed\n%s", p.story())
		}
	}
}

// story is what to read where a test fails.
func (p *peer) story() string {
	return p.sent + "\ncame back:\n" + strings.Join(p.transcript(), "\n")
}

// write sends bytes, cut as the peer cuts. An error shows in what comes back.
func (p *peer) write(b []byte) {
	p.t.Helper()
	if err := p.cut(p.conn, b); err != nil && !errors.Is(err, net.ErrClosed) {
		p.t.Logf("writing: %v", err)
	}
}

// send sends messages in one go.
func (p *peer) send(messages ...pgproto3.FrontendMessage) {
	p.t.Helper()
	p.write(p.encode(messages))
}

func (p *peer) encode(messages []pgproto3.FrontendMessage) (all []byte) {
	p.t.Helper()
	for _, m := range messages {
		if p.text != nil {
			switch sql := m.(type) {
			case *pgproto3.Query:
				m = &pgproto3.Query{String: p.text(sql.String)}
			case *pgproto3.Parse:
				m = &pgproto3.Parse{Name: sql.Name, Query: p.text(sql.Query), ParameterOIDs: sql.ParameterOIDs}
			}
		}
		var err error
		if all, err = m.Encode(all); err != nil {
			p.t.Fatalf("%v", err)
		}
	}
	return all
}

// query runs a simple query and returns the messages up to its ReadyForQuery.
func (p *peer) query(sql string) []string {
	p.t.Helper()
	from := p.seen
	p.send(q(sql))
	p.ready(1)
	return p.transcript()[from:p.seen]
}

// key returns the process id and the cancel key of the session.
func (p *peer) key() (pid uint32, secret []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.got {
		if m.typ == 'K' {
			return binary.BigEndian.Uint32(m.body), m.body[4:]
		}
	}
	return 0, nil
}

// transcript returns the messages as text, with what differs from session to
// session made equal.
func (p *peer) transcript() []string {
	own, _ := p.key()
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := make([]string, 0, len(p.got)+1)
	for _, m := range p.got {
		lines = append(lines, m.normal(own))
	}
	if errors.Is(p.err, io.ErrUnexpectedEOF) {
		lines = append(lines, "a message that is cut off")
	}
	return lines
}

func (m message) normal(own uint32) string {
	body := m.body
	switch m.typ {
	case 'K':
		return fmt.Sprintf("K with a key of %d bytes", len(body)-4)
	case 'A':
		from := "another"
		if binary.BigEndian.Uint32(body) == own {
			from = "itself"
		}
		return fmt.Sprintf("A from %s %q", from, body[4:])
	case 'T':
		body = withoutOIDs(body)
	case 'E', 'N':
		return string(m.typ) + " " + strings.ReplaceAll(strings.TrimRight(string(body), "\x00"), "\x00", " | ")
	}
	if len(body) > 400 {
		sum := fnv.New64a()
		sum.Write(body)
		return fmt.Sprintf("%c %d bytes, hash %x", m.typ, len(body), sum.Sum64())
	}
	return fmt.Sprintf("%c %q", m.typ, body)
}

// withoutOIDs blanks the tables' OIDs in a RowDescription: a table that the
// session makes has another each time.
func withoutOIDs(body []byte) []byte {
	body = append([]byte(nil), body...)
	at := 2
	for range int(binary.BigEndian.Uint16(body)) {
		at += strings.IndexByte(string(body[at:]), 0) + 1
		if binary.BigEndian.Uint32(body[at:]) >= 16384 {
			copy(body[at:], "\xff\xff\xff\xff")
		}
		at += 18
	}
	return body
}

// A cut writes bytes in pieces.
type cut func(conn net.Conn, b []byte) error

func whole(conn net.Conn, b []byte) error {
	_, err := conn.Write(b)
	return err
}

// careful bounds the bytes of one write that are cut small.
const careful = 1500

// bytewise writes byte by byte. Over a Unix socket it waits until each was read.
func bytewise(conn net.Conn, b []byte) error {
	return pieces(conn, b, func() int { return 1 })
}

// random writes pieces of random sizes.
func random(seed uint64) cut {
	r := rand.New(rand.NewPCG(seed, seed))
	return func(conn net.Conn, b []byte) error {
		return pieces(conn, b, func() int { return 1 + r.IntN(1+r.IntN(60)) })
	}
}

func pieces(conn net.Conn, b []byte, size func() int) error {
	for at := 0; at < len(b); {
		n := len(b) - at
		if at < careful {
			n = min(n, size())
		}
		if _, err := conn.Write(b[at : at+n]); err != nil {
			return err
		}
		at += n
		untilRead(conn)
	}
	return nil
}
