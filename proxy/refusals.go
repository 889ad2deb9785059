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

// Refusals gets each refusal that a client sees, or in shadow mode would see. The session
// waits for Refused: it must not block. It must be safe for concurrent use.
type Refusals interface {
	Refused(Refusal)
}

// Origin identifies a session: by its startup packet, its address and its server process.
type Origin struct {
	User, Database, Application string
	// Address is the client's; the zero Addr for a Unix socket.
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
	// Shadow says that the statement ran all the same.
	Shadow bool
	// Raised says that a function of the schema, not the proxy, has raised and counted
	// the refusal. It can't count one in a READ ONLY transaction.
	Raised bool
}

// Verdict holds the parts of a refusal's texts. A part that they don't have is zero.
type Verdict struct {
	// Resource is class() for a row that judges: there are too many rows to tell them apart in
	// metrics and histories.
	Resource fence.Resource
	// Token is the presented token, CurrentToken the highest one of the resource.
	Token, CurrentToken fence.Token
	// Holder was granted CurrentToken at Since, a time in the server's format. Free says
	// that the holder is known to have lost or released the lease.
	Holder, Since string
	Free          bool
	// Table is the guarded table that the statement wrote to.
	Table string
}

// The formats of the SQL functions' texts: of DETAIL, which stands behind the message in
// shadow mode, and of the messages about guards and unknown resources.
var (
	detail       = regexp.MustCompile(`Resource "((?:[^"]|"")*)": presented token (\d+), current token (\d+)(?:, (granted to|held by|last held by) "((?:[^"]|"")*)"(?: at|,? granted at| since) ([^.]+(?:\.\d+)?[^.]*))?\.`)
	guardsTable  = regexp.MustCompile(`Table ((?:[^ "]|"(?:[^"]|"")*")+) is guarded`)
	guardsDemand = regexp.MustCompile(`for resource "((?:[^"]|"")*)"`)
	undeclared   = regexp.MustCompile(`unknown fenced resource "((?:[^"]|"")*)"`)
	rowsDetail   = regexp.MustCompile(`\bRow (` + rowName.String() + `): `)
)

// rowName is the name of a row, class(key), as in a fence.
var rowName = regexp.MustCompile(`([a-z_][a-z0-9_]{0,62}\()[A-Za-z0-9_./:%-]+\)`)

// ofClass replaces the names of rows in a text by those of their classes.
func ofClass(text string) string { return rowName.ReplaceAllString(text, "$1)") }

// maxParsedText bounds how much of a text Verdict reads, in bytes. The formats are
// shorter; a client can raise an error with a text of any length.
const maxParsedText = 4096

// Verdict parses the texts of the refusal, the first 4,096 bytes of each.
func (r Refusal) Verdict() Verdict {
	var v Verdict
	r = r.Cut(maxParsedText)
	text := r.Message + "\n" + r.Detail
	if m := detail.FindStringSubmatch(text); m != nil {
		presented, _ := strconv.ParseInt(m[2], 10, 64)
		current, _ := strconv.ParseInt(m[3], 10, 64)
		v = Verdict{
			Resource: fence.Resource(unquoted(m[1])), Token: fence.Token(presented), CurrentToken: fence.Token(current), Holder: unquoted(m[5]), Since: m[6],
			Free: m[4] == "last held by",
		}
	} else if m := rowsDetail.FindStringSubmatch(text); m != nil {
		v.Resource = fence.Resource(ofClass(m[1]))
	}
	if m := guardsTable.FindStringSubmatch(text); m != nil {
		v.Table = m[1]
		if m := guardsDemand.FindStringSubmatch(text); m != nil {
			name := unquoted(m[1])
			if rowName.FindString(name) == name {
				name = ofClass(name)
			}
			v.Resource = fence.Resource(name)
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

// WithoutKeys returns the refusal with class() in place of the name of each row in its texts, if
// the verdict is about rows.
func (r Refusal) WithoutKeys() Refusal {
	if strings.HasSuffix(string(r.Verdict().Resource), "()") {
		r.Message, r.Detail = ofClass(r.Message), ofClass(r.Detail)
	}
	return r
}

// Trace returns the trace id and the span id in TraceParent, "" without one.
func (r Refusal) Trace() (traceID, spanID string) {
	parts := strings.Split(r.TraceParent, "-")
	if len(parts) != 4 {
		return "", ""
	}
	return parts[1], parts[2]
}

// Cut returns the refusal with texts of at most size bytes each. They share no memory
// with the original ones.
func (r Refusal) Cut(size int) Refusal {
	for _, text := range []*string{&r.User, &r.Database, &r.Application, &r.Message, &r.Detail} {
		*text = truncate(*text, size)
	}
	return r
}

// truncate returns a copy of the text's first size bytes, without a partial rune.
func truncate(text string, size int) string {
	if len(text) <= size {
		return strings.Clone(text)
	}
	for end := size; end > max(0, size-utf8.UTFMax); end-- {
		if utf8.RuneStart(text[end]) {
			return strings.Clone(text[:end])
		}
	}
	return strings.Clone(text[:size]) // not UTF-8
}

func unquoted(name string) string { return strings.ReplaceAll(name, `""`, `"`) }

// originOf returns the origin of a client by its startup packet; the PID is still 0.
func originOf(startup *wire.Startup, client net.Conn) Origin {
	o := Origin{User: startup.User(), Database: startup.Database(), Application: startup.Params["application_name"]}
	if tcp, ok := client.RemoteAddr().(*net.TCPAddr); ok {
		o.Address = tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return o
}

// pidOf returns the process id in BackendKeyData, 0 if there was none.
func pidOf(key string) uint32 {
	if len(key) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32([]byte(key))
}
