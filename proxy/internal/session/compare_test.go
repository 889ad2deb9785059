package session

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// What the client sees is compared with what it would see directly, from the first
// byte to the last. Where the proxy has refused something, the model refuses the same
// at the same place, so what comes behind a refusal is compared, too.

// told is a refusal: its SQLSTATE, and how many messages came before it.
type told struct {
	at   int
	code string
}

// lockTimeout is the SQLSTATE with which a hold fails that waits for too long.
const lockTimeout = "55P03"

// refused reports whether an ErrorResponse is a refusal, or the error of an exchange that
// was cancelled.
func refused(msg []byte) bool {
	code := wire.ErrorCode(msg)
	return strings.HasPrefix(code, "WF") || code == lockTimeout || code == queryCanceled && wire.ErrorField(msg, 'R') != copyFailed
}

// refusals finds what was refused in what the client saw.
func refusals(seen []byte) (all []told) {
	for at := 0; len(seen) > 0; at++ {
		typ, size, ok := wire.Header(seen)
		if !ok || size == 0 || size > len(seen) {
			return all
		}
		if typ == wire.ErrorResponse && refused(seen[:size]) {
			all = append(all, told{at, wire.ErrorCode(seen[:size])})
		}
		seen = seen[size:]
	}
	return all
}

// refuses fails what comes if the proxy has refused it. sql is its first statement.
func (b *backend) refuses(sql string) bool {
	if len(b.refusals) == 0 || b.refusals[0].at != b.emitted {
		return false
	}
	code := b.refusals[0].code
	b.refusals = b.refusals[1:]
	b.begin()
	if strings.HasPrefix(sql, "PREPARE TRANSACTION") && b.tx.block == 'T' {
		b.rollback()
	}
	if strings.HasPrefix(sql, "COMMIT") && (code == string(fence.TokenRequired) || code == string(fence.LeaseNotHeld)) {
		b.rollback() // a cursor WITH HOLD has failed at the end of its transaction
		delete(b.cursors, "h")
	}
	b.fail(code)
	return true
}

// firstOf is the first statement that a message runs.
func (b *backend) firstOf(typ byte, body string) string {
	name, _, _ := strings.Cut(body, "\x00")
	if padding.MatchString(body) {
		return "" // it isn't read
	}
	switch typ {
	case wire.Query:
		statements, _ := b.split(name)
		if i := slices.Index(statements, "PREPARE TRANSACTION 'x'"); i >= 0 {
			return statements[i]
		} else if len(statements) > 0 {
			return statements[0]
		}
	case wire.Parse:
		_, text, _ := strings.Cut(body, "\x00")
		return text
	case wire.Execute:
		if p := b.portals[name]; p != nil {
			return p.text
		}
	}
	return ""
}

// compare says where a session's client saw something else than it would directly.
func (s *setup) compare(proxied *traffic) string {
	direct := newTraffic(s, true)
	direct.server.policy.enforced = false
	direct.server.refusals = refusals(proxied.seen)
	direct.run()
	want, got := bare(direct.seen), bare(proxied.seen)
	if proxied.server.dead || s.leaves() || proxied.session.Fatal() != nil { // a refusal needs not all of a message
		n := min(len(want), len(got))
		want, got = want[:n], got[:n]
	}
	if direct.server.unlike {
		return ""
	}
	if s.mode == Shadow || s.mayCarry() {
		// A transaction that has failed may say so before anything else is missed.
		want, got = anyCode.ReplaceAll(want, []byte("C25P02\x00")), anyCode.ReplaceAll(got, []byte("C25P02\x00"))
	}
	if bytes.Equal(want, got) {
		return ""
	}
	want, got = differing(want, got)
	return fmt.Sprintf("the client sees\n%s\nand directly\n%s", readable(got), readable(want)) + proxied.server.tale()
}

// bare leaves of a refusal but its SQLSTATE.
func bare(seen []byte) (kept []byte) {
	for len(seen) > 0 {
		typ, size, ok := wire.Header(seen)
		if !ok || size == 0 || size > len(seen) {
			return append(kept, seen...)
		}
		if typ == wire.ErrorResponse && refused(seen[:size]) {
			kept = append(kept, message(wire.ErrorResponse, "C"+wire.ErrorCode(seen[:size])+"\x00\x00")...)
		} else {
			kept = append(kept, seen[:size]...)
		}
		seen = seen[size:]
	}
	return kept
}

var anyCode = regexp.MustCompile(`C(34000|25P02|26000|42601|42P05|42P03)\x00`)

// differing cuts off what two streams have in common at their beginning.
func differing(want, got []byte) ([]byte, []byte) {
	for {
		_, size, ok := wire.Header(want)
		if !ok || size == 0 || size > len(want) || size > len(got) || !bytes.Equal(want[:size], got[:size]) {
			return want, got
		}
		want, got = want[size:], got[size:]
	}
}

// readable is a stream of messages as a text.
func readable(seen []byte) string {
	var text []string
	for len(seen) > 0 {
		_, size, ok := wire.Header(seen)
		if !ok || size == 0 || size > len(seen) {
			size = len(seen)
		}
		line := fmt.Sprintf("%q", seen[:1])
		if size > wire.HeaderSize {
			line = fmt.Sprintf("%q %.60q", seen[:1], seen[wire.HeaderSize:size])
		}
		text = append(text, line)
		seen = seen[size:]
	}
	return "\t" + strings.Join(text, "\n\t")
}
