// Package wire frames the PostgreSQL protocol 3 (documentation, "Message Formats"): it finds
// messages in bytes, and builds the proxy's own messages. It does no I/O and knows nothing
// of sessions.
package wire

import "encoding/binary"

// HeaderSize is the size in bytes of a message's type and length.
const HeaderSize = 5

// MaxMessage is the largest length field that PostgreSQL itself accepts
// (MaxAllocSize).
const MaxMessage = 0x3fffffff

// Types of messages that a client sends.
const (
	Bind         = 'B'
	Close        = 'C'
	CopyData     = 'd'
	CopyDone     = 'c'
	CopyFail     = 'f'
	Describe     = 'D'
	Execute      = 'E'
	Flush        = 'H'
	FunctionCall = 'F'
	Parse        = 'P'
	Password     = 'p'
	Query        = 'Q'
	Sync         = 'S'
	Terminate    = 'X'
)

// Types of messages that a server sends.
const (
	Authentication     = 'R'
	BackendKeyData     = 'K'
	BindComplete       = '2'
	CloseComplete      = '3'
	CommandComplete    = 'C'
	CopyBothResponse   = 'W'
	CopyInResponse     = 'G'
	DataRow            = 'D'
	EmptyQueryResponse = 'I'
	ErrorResponse      = 'E'
	NegotiateProtocol  = 'v'
	NoData             = 'n'
	NoticeResponse     = 'N'
	ParameterStatus    = 'S'
	ParseComplete      = '1'
	PortalSuspended    = 's'
	ReadyForQuery      = 'Z'
	RowDescription     = 'T'
)

// Transaction status of a ReadyForQuery.
const (
	Idle   = 'I'
	Failed = 'E'
)

// Header returns the type and the size, header included, of the message at the start of b.
// ok is false if b has fewer than HeaderSize bytes; size is 0 for an invalid length field.
func Header(b []byte) (typ byte, size int, ok bool) {
	if len(b) < HeaderSize {
		return 0, 0, false
	}
	length := binary.BigEndian.Uint32(b[1:])
	if length < 4 || length > MaxMessage {
		return b[0], 0, true
	}
	return b[0], int(length) + 1, true
}

// CString splits the NUL-terminated string off b. ok is false without a NUL.
func CString(b []byte) (s, rest []byte, ok bool) {
	for i, c := range b {
		if c == 0 {
			return b[:i], b[i+1:], true
		}
	}
	return nil, b, false
}

func begin(dst []byte, typ byte) ([]byte, int) {
	return append(dst, typ, 0, 0, 0, 0), len(dst) + 1
}

func finish(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at))
	return dst
}

func cstring(dst []byte, s string) []byte { return append(append(dst, s...), 0) }

// AppendQuery appends a Query.
func AppendQuery(dst []byte, text string) []byte {
	dst, at := begin(dst, Query)
	return finish(cstring(dst, text), at)
}

// BeginQuery appends the header of a Query. The caller appends the text and calls EndQuery
// with the returned mark.
func BeginQuery(dst []byte) ([]byte, int) { return begin(dst, Query) }

// EndQuery appends the end of the Query that was begun at mark.
func EndQuery(dst []byte, mark int) []byte { return finish(append(dst, 0), mark) }

// AppendParse appends a Parse without parameter types.
func AppendParse(dst []byte, name, text string) []byte {
	dst, at := begin(dst, Parse)
	dst = cstring(cstring(dst, name), text)
	return finish(append(dst, 0, 0), at)
}

// AppendBind appends a Bind with parameters in text format; a nil element is NULL.
func AppendBind(dst []byte, portal, statement string, params ...*string) []byte {
	dst, at := begin(dst, Bind)
	dst = cstring(cstring(dst, portal), statement)
	dst = append(dst, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(params)))
	for _, p := range params {
		if p == nil {
			dst = append(dst, 0xff, 0xff, 0xff, 0xff)
			continue
		}
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(*p)))
		dst = append(dst, *p...)
	}
	return finish(append(dst, 0, 0), at)
}

// AppendExecute appends an Execute without a row limit.
func AppendExecute(dst []byte, portal string) []byte {
	dst, at := begin(dst, Execute)
	return finish(append(cstring(dst, portal), 0, 0, 0, 0), at)
}

// AppendClose appends a Close of a statement ('S') or a portal ('P').
func AppendClose(dst []byte, what byte, name string) []byte {
	dst, at := begin(dst, Close)
	return finish(cstring(append(dst, what), name), at)
}

// AppendSync appends a Sync.
func AppendSync(dst []byte) []byte { return append(dst, Sync, 0, 0, 0, 4) }

// FirstColumn returns the first column of a whole DataRow in text format. null is also true
// for a malformed row.
func FirstColumn(msg []byte) (value []byte, null bool) {
	b := msg[HeaderSize:]
	if len(b) < 6 || binary.BigEndian.Uint16(b) == 0 {
		return nil, true
	}
	n := int32(binary.BigEndian.Uint32(b[2:]))
	if n < 0 || int(n) > len(b)-6 {
		return nil, true
	}
	return b[6 : 6+n], false
}
