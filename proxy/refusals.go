package proxy

import (
	"encoding/binary"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/session"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Refusals is told of each refusal that a client sees, or in shadow mode would
// see. Refused is called while the session waits: it must not block. It is safe for
// concurrent use.
type Refusals interface {
	Refused(Refusal)
}

// Origin is where a session comes from and goes to, in its own words.
type Origin struct {
	User, Database, Application string
	// Address is the client's; not valid for a Unix socket.
	Address netip.Addr
	// PID is the server process's, 0 before the login has ended.
	PID uint32
}

// Refusal is a statement that was refused, or in shadow mode would have been. Its
// texts are in the encoding of the session.
type Refusal struct {
	Origin
	State           fence.SQLState
	Message, Detail string
	// TraceParent is that of the statement's comment (W3C Trace Context), "" without one.
	TraceParent string
	// Shadow says that the statement was let through all the same.
	Shadow bool
	// Raised says that a function of the schema has raised it, and not the proxy, and
	// has counted it, which it can't in a READ ONLY transaction.
	Raised bool
}

// Verdict is what the texts of a refusal say. What they don't is zero.
type Verdict struct {
	Resource fence.Resource
	// Token was presented, while CurrentToken was the last one.
	Token, CurrentToken fence.Token
	// Holder is who was granted CurrentToken, at Since, as the server writes times, and
	// Free that the lease is known to be held no more.
	Holder, Since string
	Free          bool
	// Table is the guarded one that the statement wrote to.
	Table string
}

// The forms that the SQL functions give to DETAIL, which in shadow mode is behind
// the message, and to the message of a guard.
var (
	detail       = regexp.MustCompile(`Resource "((?:[^"]|"")*)": presented token (\d+), current token (\d+)(?:, (granted to|held by|last held by) "((?:[^"]|"")*)"(?: at|,? granted at| since) ([^.]+(?:\.\d+)?[^.]*))?\.`)
	guardsTable  = regexp.MustCompile(`Table ((?:[^ "]|"(?:[^"]|"")*")+) is guarded`)
	guardsDemand = regexp.MustCompile(`for resource "((?:[^"]|"")*)"`)
	undeclared   = regexp.MustCompile(`unknown fenced resource "((?:[^"]|"")*)"`)
)

// legible is how much of a text Verdict reads, in bytes. The forms are shorter; a
// client can raise an error of its own with a text of any length.
const legible = 4096

// Verdict reads the texts of the refusal, of each its first 4,096 bytes.
func (r Refusal) Verdict() Verdict {
	var v Verdict
	r = r.Cut(legible)
	text := r.Message + "\n" + r.Detail
	if m := detail.FindStringSubmatch(text); m != nil {
		presented, _ := strconv.ParseInt(m[2], 10, 64)
		current, _ := strconv.ParseInt(m[3], 10, 64)
		v = Verdict{
			Resource: fence.Resource(unquoted(m[1])), Token: fence.Token(presented), CurrentToken: fence.Token(current), Holder: unquoted(m[5]), Since: m[6],
			Free: m[4] == "last held by",
		}
	}
	if m := guardsTable.FindStringSubmatch(text); m != nil {
		v.Table = m[1]
		if m := guardsDemand.FindStringSubmatch(text); m != nil {
			v.Resource = fence.Resource(unquoted(m[1]))
		}
	}
	switch r.State {
	case fence.ResourceUnknown:
		if m := undeclared.FindStringSubmatch(r.Message); m != nil {
			v.Resource = fence.Resource(unquoted(m[1]))
		}
	case fence.LeaseNotHeld:
		v.Resource = fence.Resource(session.UnheldResource(r.Message))
	}
	return v
}

// Trace returns the ids of the trace and of the span that TraceParent names, "" without
// one.
func (r Refusal) Trace() (traceID, spanID string) {
	parts := strings.Split(r.TraceParent, "-")
	if len(parts) != 4 {
		return "", ""
	}
	return parts[1], parts[2]
}

// Cut returns the refusal with texts of at most so many bytes each, which share no
// memory with its own.
func (r Refusal) Cut(size int) Refusal {
	for _, text := range []*string{&r.User, &r.Database, &r.Application, &r.Message, &r.Detail} {
		*text = cut(*text, size)
	}
	return r
}

// cut returns a copy of the text, or of its first so many bytes to the end of a
// rune.
func cut(text string, size int) string {
	if len(text) <= size {
		return strings.Clone(text)
	}
	for end := size; end > max(0, size-utf8.UTFMax); end-- {
		if utf8.RuneStart(text[end]) {
			return strings.Clone(text[:end])
		}
	}
	return strings.Clone(text[:size]) // which is no UTF-8
}

func unquoted(name string) string { return strings.ReplaceAll(name, `""`, `"`) }

// originOf is the origin of a client that has not logged in yet.
func originOf(startup *wire.Startup, client net.Conn) Origin {
	o := Origin{User: startup.User(), Database: startup.Database(), Application: startup.Params["application_name"]}
	if tcp, ok := client.RemoteAddr().(*net.TCPAddr); ok {
		o.Address = tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return o
}

// pidOf is the process id in a session's BackendKeyData, 0 without.
func pidOf(key string) uint32 {
	if len(key) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32([]byte(key))
}
