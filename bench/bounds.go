package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// state is one in which a session may stay for as long as its client likes.
type state struct {
	name     string
	sessions int
	// enter brings a session there. What it writes may not be taken as a whole.
	enter func(conn net.Conn, backend int) error
	// leave undoes what would outlast the session.
	leave func(backend int)
}

// stuck is how long a write waits to be taken before the session counts as full.
const stuck = time.Second

var states = []state{
	{"asked for 100 MB, which the client doesn't read", 50, func(conn net.Conn, _ int) error {
		return send(conn, message('Q', "SELECT repeat('x', 1000) FROM generate_series(1, 100000)\x00"))
	}, nil},
	{"200 MB of COPY for a server that is stopped", 20, func(conn net.Conn, backend int) error {
		if err := send(conn, message('Q', "COPY copied FROM STDIN\x00")); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // it is in copy-in mode
		if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil {
			return err
		}
		data := message('d', strings.Repeat("x", 64<<10))
		for range 200 << 20 / len(data) {
			if err := send(conn, data); err != nil {
				return full(err)
			}
		}
		return errors.New("all of it was taken")
	}, func(backend int) { _ = syscall.Kill(backend, syscall.SIGCONT) }},
	{"a million Binds and Executes ahead of their answers, which aren't read", 20, func(conn net.Conn, _ int) error {
		if err := send(conn, message('P', "s\x00SELECT 1\x00\x00\x00")); err != nil {
			return err
		}
		one := append(message('B', "\x00s\x00\x00\x00\x00\x00\x00\x00"), message('E', "\x00\x00\x00\x00\x00")...)
		many := []byte(strings.Repeat(string(one), 1000))
		for range 500 {
			if err := send(conn, many); err != nil {
				return full(err)
			}
		}
		return nil
	}, nil},
	{"a statement of 16 MB without its last byte", 4, func(conn net.Conn, _ int) error {
		whole := message('Q', "SELECT '"+strings.Repeat("x", 16<<20-100)+"'\x00")
		return send(conn, whole[:len(whole)-1])
	}, nil},
}

func message(kind byte, body string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4))
	return append(b, body...)
}

func send(conn net.Conn, b []byte) error {
	_ = conn.SetWriteDeadline(time.Now().Add(stuck))
	_, err := conn.Write(b)
	return err
}

// full forgives a write that isn't taken: that is the bound.
func full(err error) error {
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return err
}

// boundKinds are the sessions of which states are looked at.
var boundKinds = []struct {
	name   string
	target target
	tls    bool
}{{"plaintext", wirefence, false}, {"TLS on both sides", encryptedProxy, true}}

// measureBounds returns by how many bytes a session makes the proxy grow, by states and
// kinds.
func (w *world) measureBounds(ctx context.Context) (map[string]map[string]int64, error) {
	all := map[string]map[string]int64{}
	for _, s := range states {
		all[s.name] = map[string]int64{}
		for _, k := range boundKinds {
			bytes, err := w.measureState(ctx, s, k.target, k.tls)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", s.name, k.name, err)
			}
			all[s.name][k.name] = bytes
		}
	}
	return all, nil
}

// measureState brings sessions into a state. The proxy is one of its own: memory that was
// used once is not given back at once.
func (w *world) measureState(ctx context.Context, s state, t target, tls bool) (int64, error) {
	p, err := w.startProxy(ctx, w.postgres.Addr(), w.launches[t])
	if err != nil {
		return 0, err
	}
	defer p.Close()
	conns, err := open(ctx, urlBy(p.Port, tls), s.sessions)
	defer func() {
		for _, conn := range conns {
			_ = conn.Conn().Close()
			if s.leave != nil {
				s.leave(int(conn.PID()))
			}
		}
	}()
	if err != nil {
		return 0, err
	}
	before, err := residentBytes(p.Pid())
	if err != nil {
		return 0, err
	}
	var entering tasks
	for _, conn := range conns {
		entering.run(func() error { return s.enter(conn.Conn(), int(conn.PID())) })
	}
	if err := entering.wait(nil); err != nil {
		return 0, err
	}
	highest := before
	for began := time.Now(); time.Since(began) < settling; time.Sleep(50 * time.Millisecond) {
		now, err := residentBytes(p.Pid())
		if err != nil {
			return 0, err
		}
		highest = max(highest, now)
	}
	return (highest - before) / int64(len(conns)), nil
}
