package wire

import (
	"encoding/binary"
	"slices"

	"github.com/jackc/pgx/v5/pgproto3"
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
	left := slices.DeleteFunc(Mechanisms(msg), func(m string) bool { return m == mechanism })
	return Encode(&pgproto3.AuthenticationSASL{AuthMechanisms: left})
}

// Encode returns the bytes of a message; none if it is larger than a message may be.
func Encode(m pgproto3.Message) []byte {
	b, _ := m.Encode(nil)
	return b
}
