package relay

import (
	"bytes"
	"errors"
	"strconv"
)

// Errors that end a connection. Redis ends it for the first, too.
var (
	errProtocol = errors.New("protocol error")
	errTooLarge = errors.New("a command that names a lock's key is too large")
)

// parser finds the commands of one connection in what its client sends (Redis serialization
// protocol specification, "Sending commands to a Redis server"). It looks at names and keys, and
// skips other arguments, so that large values are never held in memory.
type parser struct {
	locks *lockSet
	limit int // bytes of a command that may be held until it can be judged

	args      [][]byte // of a special command, valid until the buffer changes
	spec      spec     // of the last command
	skipArgs  int      // arguments of the present command that nothing looks at
	skipBytes int      // the rest of the first of them, with its end of line
}

// verdict is what the bytes are that parser.next has looked at.
type verdict int

const (
	incomplete verdict = iota // the buffer ends in a command that can't be judged yet
	plain                     // a command, or its begin, on which the relay doesn't act
	rest                      // more of such a command, perhaps of no length
	nothing                   // an empty command, which gets no reply
	special                   // a whole command on which the relay acts: args
)

// next judges the command at the begin of buf, and returns how many bytes of it that concerns.
func (p *parser) next(buf []byte) (v verdict, n int, err error) {
	switch {
	case p.skipArgs > 0:
		n, err = p.skip(buf, 0)
		return rest, n, err
	case len(buf) == 0:
		return incomplete, 0, nil
	case buf[0] != '*':
		return p.inline(buf)
	}
	count, n, err := number(buf, 0)
	if n == 0 || err != nil {
		return incomplete, 0, err
	}
	if count <= 0 {
		return nothing, n, nil
	}
	p.args = p.args[:0]
	for i := range count {
		if i == 1 && p.spec == (spec{}) || i == 2 && p.spec.place == first && !p.locks.has(p.args[1]) {
			return p.pass(buf, n, count-i)
		}
		if n < len(buf) && buf[n] != '$' {
			return incomplete, 0, errProtocol
		}
		size, begin, err := number(buf, n)
		if err != nil || size < 0 {
			return incomplete, 0, errProtocol
		}
		if begin == 0 || size+2 > len(buf)-begin {
			return p.await(buf, n, count-i)
		}
		p.args = append(p.args, buf[begin:begin+size])
		n = begin + size + 2
		if i == 0 {
			p.spec = specOf(p.args[0])
		}
	}
	return p.judge(), n, nil
}

// judge judges a whole command.
func (p *parser) judge() verdict {
	if p.spec.control != 0 && p.spec.place == nowhere || len(p.locks.named(p.spec.place, p.args)) > 0 {
		return special
	}
	return plain
}

// await asks for more of a command whose argument at n is missing. One that is too large to be
// held passes unless it names a lock; no lock's command is that large.
func (p *parser) await(buf []byte, n, args int) (verdict, int, error) {
	switch {
	case len(buf) < p.limit:
		return incomplete, 0, nil
	case len(p.args) == 0:
		return incomplete, 0, errProtocol
	case p.judge() == special:
		return incomplete, 0, errTooLarge
	}
	return p.pass(buf, n, args)
}

// pass passes the rest of a command, from the argument at n on.
func (p *parser) pass(buf []byte, n, args int) (verdict, int, error) {
	p.skipArgs, p.skipBytes = args, 0
	n, err := p.skip(buf, n)
	return plain, n, err
}

func (p *parser) skip(buf []byte, n int) (int, error) {
	for p.skipArgs > 0 {
		if p.skipBytes == 0 {
			if n < len(buf) && buf[n] != '$' {
				return n, errProtocol
			}
			size, begin, err := number(buf, n)
			if err != nil || size < 0 {
				return n, errProtocol
			}
			if begin == 0 {
				return n, nil
			}
			n, p.skipBytes = begin, size+2
		}
		taken := min(p.skipBytes, len(buf)-n)
		n += taken
		if p.skipBytes -= taken; p.skipBytes > 0 {
			return n, nil
		}
		p.skipArgs--
	}
	return n, nil
}

// maxInline is Redis' limit of a command without RESP, as people type it.
const maxInline = 64 << 10

// inline judges a line of words. A quote in one is only taken where Redis and the relay can't
// read it differently.
func (p *parser) inline(buf []byte) (verdict, int, error) {
	end := bytes.IndexByte(buf, '\n')
	if end < 0 {
		if len(buf) > maxInline {
			return incomplete, 0, errProtocol
		}
		return incomplete, 0, nil
	}
	p.args = append(p.args[:0], bytes.Fields(buf[:end])...)
	if len(p.args) == 0 {
		return nothing, end + 1, nil
	}
	p.spec = specOf(p.args[0])
	if bytes.ContainsAny(buf[:end], `"'\`) && p.spec != (spec{}) && p.spec.control != handshake {
		return incomplete, 0, errProtocol
	}
	return p.judge(), end + 1, nil
}

// maxNumber is the most digits of a length: more than Redis takes.
const maxNumber = 18

// number reads the decimal number of the line at n, behind its first byte, and returns where the
// next line begins: 0 if the line isn't whole.
func number(buf []byte, n int) (value, next int, err error) {
	i, negative := n+1, false
	if i < len(buf) && buf[i] == '-' {
		i, negative = i+1, true
	}
	for begin := i; i < len(buf); i++ {
		c := buf[i]
		if c >= '0' && c <= '9' && i-begin < maxNumber {
			value = value*10 + int(c-'0')
			continue
		}
		if c != '\r' || i == begin || i+1 < len(buf) && buf[i+1] != '\n' {
			return 0, 0, errProtocol
		}
		if i+1 == len(buf) {
			return 0, 0, nil
		}
		if negative {
			value = -value
		}
		return value, i + 2, nil
	}
	return 0, 0, nil
}

// appendCommand appends a command.
func appendCommand[A string | []byte](dst []byte, args ...A) []byte {
	dst = appendHeader(dst, '*', len(args))
	for _, arg := range args {
		dst = appendBulk(dst, arg)
	}
	return dst
}

func appendHeader(dst []byte, kind byte, n int) []byte {
	return append(strconv.AppendInt(append(dst, kind), int64(n), 10), '\r', '\n')
}

func appendBulk[A string | []byte](dst []byte, arg A) []byte {
	return append(append(appendHeader(dst, '$', len(arg)), arg...), '\r', '\n')
}
