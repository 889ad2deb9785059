//go:build !portable

package proxy

import (
	"io"

	"golang.org/x/sys/unix"

	"github.com/wirefence/wirefence/proxy/internal/session"
)

// read reads from a socket once, and decrypts the bytes. They stand directly behind the
// side's unused input, if there is any, in the same memory.
func (l *loop) read(s *side) ([]byte, error) {
	into := l.buf[:loopBuffer]
	switch {
	case s.tls != nil:
		into = l.sealed[:loopBuffer]
	case len(s.unused.bytes()) > 0:
		into = s.unused.room(1)
	}
	n, err := readNow(s.fd, into)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil, nil
	case err != nil:
		return nil, err
	case n == 0:
		return nil, io.EOF
	case s.tls != nil:
		return l.decrypt(s, into[:n]), nil
	}
	return into[:n], nil
}

// decrypt decrypts bytes that were read from a side, and sends what TLS answers.
func (l *loop) decrypt(s *side, received []byte) []byte {
	plain, answer, err := s.tls.Open(l.buf[:0], nil, received)
	l.buf = plain[:cap(plain)]
	s.tlsErr = err
	if len(answer) > 0 {
		l.buffers = append(l.buffers[:0], answer)
		l.flush(s)
	}
	if len(s.unused.bytes()) > 0 && len(plain) > 0 {
		room := s.unused.room(len(plain))
		return room[:copy(room, plain)]
	}
	return plain
}

// send sends an Out to a side. A side whose stream ends gets nothing more: the
// proxy's own messages must not make the client's last bytes fail.
func (l *loop) send(to *side, out *session.Out) {
	if to.closesWrite {
		return
	}
	l.buffers = out.Buffers(l.buffers[:0])
	if len(l.buffers) > 0 && to.tls != nil {
		if err := l.encrypt(to); err != nil {
			to.p.handleWriteError(to)
			return
		}
	}
	l.flush(to)
}

// encrypt encrypts l.buffers. It joins them, since each one would become a record of its
// own.
func (l *loop) encrypt(to *side) error {
	plain := l.buffers[0]
	if len(l.buffers) > 1 {
		l.joined = l.joined[:0]
		for _, b := range l.buffers {
			l.joined = append(l.joined, b...)
		}
		plain = l.joined
	}
	sealed, err := to.tls.Seal(l.sealed[:0], plain)
	l.buffers = append(l.buffers[:0], sealed)
	l.sealed = sealed[:cap(sealed)]
	if len(sealed) > maxSealed {
		l.sealed, l.joined = make([]byte, loopBuffer), nil
	}
	return err
}

// maxSealed bounds the memory that a loop keeps for ciphertext, in bytes.
const maxSealed = 4 * loopBuffer

// flush sends l.buffers to a side, and keeps in unsent what the socket doesn't take.
func (l *loop) flush(to *side) {
	if len(l.buffers) == 0 {
		return
	}
	if len(to.unsent) > 0 {
		for _, b := range l.buffers {
			to.unsent = append(to.unsent, b...)
		}
		return
	}
	n, err := l.write(to.fd)
	if err != nil && err != unix.EAGAIN {
		to.p.handleWriteError(to)
		return
	}
	for _, b := range l.buffers {
		if n >= len(b) {
			n -= len(b)
			continue
		}
		to.unsent = append(to.unsent, b[n:]...)
		n = 0
	}
	if len(to.unsent) > 0 {
		to.p.watchWrite(to, true)
	}
}

func (l *loop) write(fd int) (n int, err error) {
	for {
		if len(l.buffers) == 1 {
			n, err = writeNow(fd, l.buffers[0])
		} else {
			n, err = writevNow(fd, l.buffers, &l.vectors)
		}
		if err != unix.EINTR {
			return n, err
		}
	}
}
