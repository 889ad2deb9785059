package relay

import (
	"bytes"
	"errors"
)

// errReply says that the server sent bytes that are no reply of RESP2 or RESP3.
var errReply = errors.New("the server sent a malformed reply")

// frame finds the end of one reply, however many reads it takes.
type frame struct {
	at   int // how much of the reply was looked at
	left int // values that are still missing; 0 at the begin of a reply
}

// next returns the length of the reply at the begin of buf, 0 if it isn't whole yet. Then buf must
// begin with the same bytes in the next call.
func (f *frame) next(buf []byte) (int, error) {
	if f.left == 0 {
		f.left = 1
	}
	for f.left > 0 {
		end := bytes.IndexByte(buf[min(f.at, len(buf)):], '\n')
		if end < 0 {
			return 0, nil
		}
		begin, values := f.at, 0
		next := begin + end + 1
		switch kind := buf[begin]; kind {
		case '+', '-', ':', '_', '#', ',', '(':
		case '$', '=', '!':
			size, _, err := number(buf, begin)
			if err != nil {
				return 0, errReply
			}
			if size >= 0 {
				next += size + 2
			}
			if next > len(buf) {
				return 0, nil // its length is read again
			}
		case '*', '~', '>', '%', '|':
			n, _, err := number(buf, begin)
			if err != nil {
				return 0, errReply
			}
			values = max(n, 0)
			if kind == '%' {
				values *= 2
			} else if kind == '|' { // stands ahead of the value that it is about
				values = 2*values + 1
			}
		default:
			return 0, errReply
		}
		f.at, f.left = next, f.left-1+values
	}
	n := f.at
	*f = frame{}
	return n, nil
}

// elements returns the values of an array, false if the reply is none.
func elements(reply []byte) (all [][]byte, ok bool) {
	if len(reply) == 0 || reply[0] != '*' {
		return nil, false
	}
	n, at, err := number(reply, 0)
	if err != nil || n < 0 {
		return nil, false
	}
	for range n {
		var f frame
		size, err := f.next(reply[at:])
		if err != nil || size == 0 {
			return nil, false
		}
		all = append(all, reply[at:at+size])
		at += size
	}
	return all, true
}

// bulk returns the text of a bulk string, "" for anything else.
func bulk(reply []byte) string {
	if len(reply) == 0 || reply[0] != '$' {
		return ""
	}
	n, at, err := number(reply, 0)
	if err != nil || n < 0 || at+n > len(reply) {
		return ""
	}
	return string(reply[at : at+n])
}

func isError(reply []byte) bool { return len(reply) > 0 && (reply[0] == '-' || reply[0] == '!') }

var (
	okReply     = []byte("+OK\r\n")
	queuedReply = []byte("+QUEUED\r\n")
)

// refusal is the reply to a command that the relay refuses.
func refusal(reason string) []byte { return []byte("-ERR wirefence: " + reason + "\r\n") }
