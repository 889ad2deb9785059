package proxy

import (
	"io"
	"net"
	"syscall"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// Sizes of a buffer in bytes: of a quiet session, and during a bulk transfer.
const (
	smallBuffer = 4 << 10
	largeBuffer = 64 << 10
)

// buffer holds bytes that were read and not used yet. The zero value is empty.
type buffer struct {
	b    []byte
	r, w int
	full bool // the last read filled the buffer, so more bytes are waiting
}

func (b *buffer) bytes() []byte { return b.b[b.r:b.w] }

// used drops the first n bytes.
func (b *buffer) used(n int) { b.r += n }

// read reads once and appends the bytes. The buffer grows to hold a whole message, or
// to take bulk data in few reads, and shrinks when it is empty.
func (b *buffer) read(from net.Conn) (int, error) {
	b.makeRoom()
	n, err := from.Read(b.b[b.w:])
	b.full = n == len(b.b)-b.w
	b.w += n
	if n > 0 {
		return n, nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}

func (b *buffer) makeRoom() {
	left := b.w - b.r
	size := len(b.b)
	switch {
	case left == 0 && b.full:
		size = largeBuffer
	case left == 0:
		size = smallBuffer
	case left == size:
		size = max(2*size, largeBuffer)
	}
	if size != len(b.b) {
		grown := make([]byte, size)
		copy(grown, b.b[b.r:b.w])
		b.b = grown
	} else if b.r > 0 {
		copy(b.b, b.b[b.r:b.w])
	}
	b.r, b.w = 0, left
}

// room returns memory for at least n bytes behind the unused ones.
func (b *buffer) room(n int) []byte {
	b.makeRoom()
	if len(b.b)-b.w < n {
		grown := make([]byte, max(2*len(b.b), b.w+n))
		copy(grown, b.b[:b.w])
		b.b = grown
	}
	return b.b[b.w:]
}

// writer sends a session's Out to one side.
type writer struct {
	conn    net.Conn
	buffers [][]byte
	bufs    net.Buffers
	join    []byte // the buffers joined, for TLS
	err     error  // of the last flush: the peer may have received a part of it
}

func (w *writer) flush(out *session.Out) error {
	if out.Empty() {
		return nil
	}
	w.buffers = out.Buffers(w.buffers[:0])
	if len(w.buffers) == 1 {
		_, w.err = w.conn.Write(w.buffers[0])
		return w.err
	}
	if _, vectors := w.conn.(syscall.Conn); !vectors {
		return w.flushJoined()
	}
	w.bufs = w.buffers
	_, w.err = w.bufs.WriteTo(w.conn)
	return w.err
}

// flushJoined sends the buffers to a TLS connection in one write: otherwise each would
// become a record of its own.
func (w *writer) flushJoined() error {
	w.join = w.join[:0]
	for _, b := range w.buffers {
		w.join = append(w.join, b...)
	}
	_, w.err = w.conn.Write(w.join)
	if cap(w.join) > largeBuffer {
		w.join = nil
	}
	return w.err
}
