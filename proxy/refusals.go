package proxy

import (
	"encoding/binary"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/wirefence/wirefence/fence"
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
	// Shadow says that the statement was let through all the same.
	Shadow bool
	// Raised says that a function of the schema has raised it, and not the proxy.
	Raised bool
}

// Verdict is what the texts of a refusal say. What they don't is zero.
type Verdict struct {
	Resource fence.Resource
	// Token was presented, while CurrentToken was the last one.
	Token, CurrentToken fence.Token
	// Holder is who has the resource.
	Holder string
	// Table is the guarded one that the statement wrote to.
	Table string
}

// The forms that the SQL functions give to DETAIL, which in shadow mode is behind
// the message, and to the message of a guard.
var (
	detail       = regexp.MustCompile(`Resource "((?:[^"]|"")*)": presented token (\d+), current token (\d+)(?:, held by "((?:[^"]|"")*)" since ([^.]+(?:\.\d+)?[^.]*))?\.`)
	guardsTable  = regexp.MustCompile(`Table ((?:[^ "]|"(?:[^"]|"")*")+) is guarded`)
	guardsDemand = regexp.MustCompile(`for resource "((?:[^"]|"")*)"`)
)

// Verdict reads the texts of the refusal.
func (r Refusal) Verdict() Verdict {
	var v Verdict
	text := r.Message + "\n" + r.Detail
	if m := detail.FindStringSubmatch(text); m != nil {
		presented, _ := strconv.ParseInt(m[2], 10, 64)
		current, _ := strconv.ParseInt(m[3], 10, 64)
		v = Verdict{Resource: fence.Resource(unquoted(m[1])), Token: fence.Token(presented), CurrentToken: fence.Token(current), Holder: unquoted(m[4])}
	}
	if m := guardsTable.FindStringSubmatch(text); m != nil {
		v.Table = m[1]
		if m := guardsDemand.FindStringSubmatch(text); m != nil {
			v.Resource = fence.Resource(unquoted(m[1]))
		}
	}
	return v
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
