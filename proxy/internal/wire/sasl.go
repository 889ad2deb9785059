package wire

import (
	"bytes"
	"encoding/binary"
)

// Kinds of Authentication messages (documentation, "Message Formats").
const (
	AuthOk           = 0
	AuthSASL         = 10
	AuthSASLContinue = 11
	AuthSASLFinal    = 12
)

// AuthKind returns the kind of a whole Authentication message.
func AuthKind(msg []byte) uint32 {
	if len(msg) < HeaderSize+4 {
		return ^uint32(0)
	}
	return binary.BigEndian.Uint32(msg[HeaderSize:])
}

// AuthData returns the data of a whole Authentication message, behind its kind.
func AuthData(msg []byte) []byte { return msg[min(len(msg), HeaderSize+4):] }

// Mechanisms returns the mechanisms in an AuthenticationSASL.
func Mechanisms(msg []byte) []string {
	var names []string
	for rest := AuthData(msg); ; {
		name, after, ok := CString(rest)
		if !ok || len(name) == 0 {
			return names
		}
		names = append(names, string(name))
		rest = after
	}
}

// AppendAuthSASL appends an AuthenticationSASL.
func AppendAuthSASL(dst []byte, mechanisms []string) []byte {
	dst, at := begin(dst, Authentication)
	dst = binary.BigEndian.AppendUint32(dst, AuthSASL)
	for _, m := range mechanisms {
		dst = cstring(dst, m)
	}
	return finish(append(dst, 0), at)
}

// AppendAuthData appends an AuthenticationSASLContinue or -Final.
func AppendAuthData(dst []byte, kind uint32, data string) []byte {
	dst, at := begin(dst, Authentication)
	return finish(append(binary.BigEndian.AppendUint32(dst, kind), data...), at)
}

// AppendSASLInitial appends a SASLInitialResponse.
func AppendSASLInitial(dst []byte, mechanism, data string) []byte {
	dst, at := begin(dst, Password)
	dst = cstring(dst, mechanism)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(data)))
	return finish(append(dst, data...), at)
}

// AppendSASLResponse appends a SASLResponse.
func AppendSASLResponse(dst []byte, data string) []byte {
	dst, at := begin(dst, Password)
	return finish(append(dst, data...), at)
}

// SASLInitial parses a whole SASLInitialResponse. ok is false for another message.
func SASLInitial(msg []byte) (mechanism, data string, ok bool) {
	m, rest, ok := CString(msg[HeaderSize:])
	if !ok || len(rest) < 4 {
		return "", "", false
	}
	n := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	if n == ^uint32(0) && len(rest) == 0 {
		return string(m), "", true
	}
	return string(m), string(rest), uint64(n) == uint64(len(rest))
}

// Parameter parses a whole ParameterStatus.
func Parameter(msg []byte) (name, value string) {
	n, rest, _ := CString(msg[HeaderSize:])
	v, _, _ := CString(rest)
	return string(n), string(v)
}

// WithoutMechanism returns an AuthenticationSASL that doesn't offer one
// mechanism.
func WithoutMechanism(msg []byte, mechanism string) []byte {
	var left []string
	for _, m := range Mechanisms(msg) {
		if m != mechanism {
			left = append(left, m)
		}
	}
	return AppendAuthSASL(nil, left)
}

// IsSASLInitial reports whether a whole Password message begins with the name
// of a mechanism.
func IsSASLInitial(msg []byte, mechanism string) bool {
	return bytes.HasPrefix(msg[HeaderSize:], append([]byte(mechanism), 0))
}
