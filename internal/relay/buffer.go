package relay

import "io"

// buffer has bytes that were read and not used yet. It begins small and grows for those who send
// much at a time.
type buffer struct {
	data []byte
	used int // the bytes ahead of it were used
	end  int // of what was read

	filled bool // the last read had no more room
}

const (
	smallBuffer = 4 << 10
	largeBuffer = 256 << 10 // beyond that it only grows for what must be held
)

func (b *buffer) bytes() []byte { return b.data[b.used:b.end] }

func (b *buffer) take(n int) {
	if b.used += n; b.used == b.end {
		b.used, b.end = 0, 0
	}
}

// room makes room for a read, more than the last time if that was too little. Earlier results of
// bytes are invalid afterwards.
func (b *buffer) room() []byte {
	free, size := len(b.data)-b.end, len(b.data)
	switch {
	case size == 0:
		b.data = make([]byte, smallBuffer)
	case b.end == 0 && b.filled && size < largeBuffer:
		b.data = make([]byte, 2*size)
	case free > size/2 || free > 0 && b.used == 0:
	case b.used >= size/2:
		b.end = copy(b.data, b.bytes())
		b.used = 0
	default:
		larger := make([]byte, 2*size)
		b.end = copy(larger, b.bytes())
		b.data, b.used = larger, 0
	}
	return b.data[b.end:]
}

// read reads once.
func (b *buffer) read(from io.Reader) error {
	return b.fill(from, b.room())
}

// readBeside reads once, and leaves what bytes has returned where it is.
func (b *buffer) readBeside(from io.Reader) error {
	if b.end == len(b.data) {
		b.data = append(make([]byte, 0, 2*len(b.data)), b.data...)
		b.data = b.data[:cap(b.data)]
	}
	return b.fill(from, b.data[b.end:])
}

func (b *buffer) fill(from io.Reader, space []byte) error {
	n, err := from.Read(space)
	b.end += n
	b.filled = n == len(space)
	if n > 0 {
		return nil
	}
	return err
}
