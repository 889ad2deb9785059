package session

import "github.com/jackc/pgx/v5/pgproto3"

// Out collects the bytes for one side: unchanged parts of the input, which are not copied,
// and bytes of the proxy's own between them.
type Out struct {
	in  []byte
	own []byte
	seg []segment
}

type segment struct {
	own      bool
	from, to int
}

// reset empties the Out for a new input.
func (o *Out) reset(in []byte) {
	o.in, o.own, o.seg = in, o.own[:0], o.seg[:0]
	if cap(o.own) > maxScratch {
		o.own = nil
	}
}

// pass adds in[from:to].
func (o *Out) pass(from, to int) {
	if n := len(o.seg); n > 0 && !o.seg[n-1].own && o.seg[n-1].to == from {
		o.seg[n-1].to = to
		return
	}
	o.seg = append(o.seg, segment{false, from, to})
}

// put adds the bytes that were appended to o.own since mark.
func (o *Out) put(mark int) {
	if len(o.own) == mark {
		return
	}
	if n := len(o.seg); n > 0 && o.seg[n-1].own && o.seg[n-1].to == mark {
		o.seg[n-1].to = len(o.own)
		return
	}
	o.seg = append(o.seg, segment{true, mark, len(o.own)})
}

// encode adds a message of the server, and reports whether it could: it may be too large.
func (o *Out) encode(m pgproto3.BackendMessage) bool {
	own, err := m.Encode(o.own)
	if err != nil {
		return false
	}
	mark := len(o.own)
	o.own = own
	o.put(mark)
	return true
}

// insert adds a copy of b.
func (o *Out) insert(b []byte) {
	mark := len(o.own)
	o.own = append(o.own, b...)
	o.put(mark)
}

// Empty reports whether there is nothing to send.
func (o *Out) Empty() bool { return len(o.seg) == 0 }

// Buffers appends the collected bytes to dst, in order. The buffers are valid until the
// input or the Out is used again.
func (o *Out) Buffers(dst [][]byte) [][]byte {
	for _, s := range o.seg {
		if s.own {
			dst = append(dst, o.own[s.from:s.to])
		} else {
			dst = append(dst, o.in[s.from:s.to])
		}
	}
	return dst
}

// maxScratch is the most scratch memory that a session keeps between messages.
const maxScratch = 16 << 10
