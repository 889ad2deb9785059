package relay

import (
	"bytes"
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"time"
)

// maxReply is the largest reply to a transaction that names a lock.
const maxReply = 64 << 20

// replies carries what the server sends to one client. It passes bytes as they come, unless
// something of the relay's own is outstanding: then it finds the marker that the relay has asked
// the server to echo, and takes each reply behind it as the next of its wants says.
type replies struct {
	client net.Conn

	mu     sync.Mutex // held while something is written to the client
	framed bool       // replies are taken one by one
	wants  []want     // what is outstanding while they are
	kept   [][]byte   // replies that were asked for
	queued int        // commands of the client's transaction that the server has queued
	ours   []int      // which of them are the relay's
	frame  frame
	out    []byte // for the client

	answered chan struct{} // has an element if nothing is outstanding any more
	dead     chan struct{} // closed when the server has gone
}

// want is what to do with one reply, or with the bytes up to a marker, or with all bytes.
type want struct {
	do     func(r *replies, reply []byte)
	marker []byte
}

// What is done with a reply: pass goes to the client, own is the relay's, as a part of
// the client's transaction, and keep is returned by wait. Behind unframed all bytes pass.
var (
	pass     = want{do: func(r *replies, reply []byte) { r.out = append(r.out, reply...) }}
	own      = want{do: takeOwn}
	keep     = want{do: func(r *replies, reply []byte) { r.kept = append(r.kept, bytes.Clone(reply)) }}
	unframed = want{}
)

// takeOwn takes the server's word that it has queued a command of the relay's.
func takeOwn(r *replies, reply []byte) {
	if bytes.Equal(reply, queuedReply) {
		r.ours = append(r.ours, r.queued-1)
	}
}

// replaced is a reply in whose place the client gets another one.
func replaced(by []byte) want {
	return want{do: func(r *replies, _ []byte) { r.out = append(r.out, by...) }}
}

func (w want) isUnframed() bool { return w.do == nil && w.marker == nil }

// newReplies takes replies one by one until send ends that.
func newReplies(client net.Conn) *replies {
	return &replies{client: client, framed: true, answered: make(chan struct{}, 1), dead: make(chan struct{})}
}

// expect says what to do with the replies to commands that are sent next. It returns what must be
// sent ahead of them.
func (r *replies) expect(wants ...want) (ahead []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.wants); !r.framed || n > 0 && r.wants[n-1].isUnframed() {
		nonce := rand.Text() + rand.Text()
		r.framed, r.wants = true, append(r.wants, want{marker: appendBulk(nil, nonce)})
		ahead = appendCommand(nil, "PING", nonce)
	}
	r.wants = append(r.wants, wants...)
	return ahead
}

// wait waits until nothing is outstanding, and returns the replies to keep.
func (r *replies) wait() ([][]byte, error) {
	for {
		r.mu.Lock()
		if len(r.wants) == 0 {
			kept := r.kept
			r.kept = nil
			r.mu.Unlock()
			return kept, nil
		}
		r.mu.Unlock()
		select {
		case <-r.answered:
		case <-r.dead:
			return nil, errServerGone
		}
	}
}

var errServerGone = errors.New("the server closed the connection")

// send writes a reply of the relay's to the client. Nothing is outstanding. Bytes pass from then
// on, if raw.
func (r *replies) send(reply []byte, raw bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.framed = !raw
	if len(reply) == 0 {
		return nil
	}
	_, err := r.client.Write(reply)
	return err
}

// sendLast sends a reply behind which the connection ends, if the client reads within a second.
func (r *replies) sendLast(reply []byte) {
	_ = r.client.SetWriteDeadline(time.Now().Add(time.Second)) // ends a write that is under way, too
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = r.client.Write(reply)
}

// beginTransaction forgets the transaction before.
func (r *replies) beginTransaction() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued, r.ours = 0, nil
}

// transactionsOwn returns which replies to the client's transaction are the relay's.
func (r *replies) transactionsOwn() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ours
}

// carry reads from the server until that fails.
func (r *replies) carry(server net.Conn) error {
	defer close(r.dead)
	var in buffer
	for {
		if err := in.read(server); err != nil {
			return err
		}
		n, err := r.feed(in.bytes())
		if err != nil {
			return err
		}
		if in.take(n); len(in.bytes()) > maxReply {
			return errTooLarge
		}
	}
}

// feed takes what the server has sent, and returns how much of it was used.
func (r *replies) feed(buf []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for used := 1; n < len(buf) && r.framed && used > 0; n += used {
		if used, err = r.takeNext(buf[n:]); err != nil {
			return n, err
		}
		if len(r.wants) == 0 {
			select {
			case r.answered <- struct{}{}:
			default:
			}
		}
	}
	out := r.out
	if !r.framed {
		if len(out) == 0 {
			out = buf[n:]
		} else {
			out = append(out, buf[n:]...)
		}
		n = len(buf)
	}
	if len(out) > 0 {
		_, err = r.client.Write(out)
	}
	r.out = r.out[:0]
	return n, err
}

// takeNext takes a reply, or what is ahead of a marker, and returns its length: 0 if more must be
// read.
func (r *replies) takeNext(buf []byte) (used int, err error) {
	if len(r.wants) > 0 && r.wants[0].isUnframed() {
		r.wants = r.wants[1:]
		if r.framed = len(r.wants) > 0; !r.framed {
			return 0, nil
		}
	}
	if len(r.wants) > 0 && r.wants[0].marker != nil {
		return r.takeToMarker(buf), nil
	}
	if used, err = r.frame.next(buf); used > 0 {
		r.takeReply(buf[:used])
	}
	return used, err
}

// takeToMarker passes what is ahead of the marker. It leaves what may be the marker's begin.
func (r *replies) takeToMarker(buf []byte) (used int) {
	marker := r.wants[0].marker
	if i := bytes.Index(buf, marker); i >= 0 {
		r.out = append(r.out, buf[:i]...)
		r.wants = r.wants[1:]
		return i + len(marker)
	}
	used = max(0, len(buf)-len(marker)+1)
	for used < len(buf) && !bytes.HasPrefix(marker, buf[used:]) {
		used++
	}
	r.out = append(r.out, buf[:used]...)
	return used
}

func (r *replies) takeReply(reply []byte) {
	if reply[0] == '>' || len(r.wants) == 0 {
		pass.do(r, reply)
		return
	}
	w := r.wants[0]
	r.wants = r.wants[1:]
	if bytes.Equal(reply, queuedReply) {
		r.queued++
	}
	w.do(r, reply)
}
