package wiretest

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/wirefence/wirefence/internal/stack"
)

const v30 = pgproto3.ProtocolVersion30

// peer is a client whose transcript a test compares with another's.
type peer struct {
	*stack.Client
	place *place
	sent  string // what the messages of a failure are to be explained by
}

func newPeer(pl *place, c *stack.Client) *peer {
	p := &peer{Client: c, place: pl}
	c.Explain = p.story
	return p
}

// dial connects to host:port or to a socket's path.
func dial(t testing.TB, pl *place, addr string) *peer {
	t.Helper()
	return newPeer(pl, stack.Dial(t, addr))
}

// login opens a session and waits until it may send queries.
func login(t testing.TB, pl *place, addr string, params ...string) *peer {
	t.Helper()
	return newPeer(pl, stack.Login(t, addr, pl.Name, params...))
}

// query runs a simple query and returns the messages up to its ReadyForQuery.
func (p *peer) query(sql string) []string {
	p.T.Helper()
	from := p.Taken()
	p.Exchange(1, q(sql))
	return p.transcript()[from:p.Taken()]
}

// story is what to read where a test fails.
func (p *peer) story() string {
	return p.sent + "\ncame back:\n" + strings.Join(p.transcript(), "\n")
}

// transcript returns the messages as text, with what differs from session to
// session made equal.
func (p *peer) transcript() (lines []string) {
	own, _ := p.Key()
	for _, m := range p.All() {
		lines = append(lines, normal(m, own))
	}
	if p.CutOff() {
		lines = append(lines, "a message that is cut off")
	}
	return lines
}

func normal(m stack.Message, own uint32) string {
	body := m.Body
	switch m.Type {
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
		return string(m.Type) + " " + strings.ReplaceAll(strings.TrimRight(string(body), "\x00"), "\x00", " | ")
	}
	if len(body) > 400 {
		sum := fnv.New64a()
		sum.Write(body)
		return fmt.Sprintf("%c %d bytes, hash %x", m.Type, len(body), sum.Sum64())
	}
	return fmt.Sprintf("%c %q", m.Type, body)
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
type cut = func(conn net.Conn, b []byte) error

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
