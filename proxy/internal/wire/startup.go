package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// MaxStartup is the largest startup packet that PostgreSQL accepts, in bytes.
const MaxStartup = 10000

// Codes in place of a protocol version.
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
)

// StartupKind is the kind of a client's first packet.
type StartupKind uint8

// The kinds of first packets (documentation, "Message Flow", Start-up, SSL
// Session Encryption, GSSAPI Session Encryption, Canceling Requests).
const (
	StartupSession StartupKind = iota
	StartupSSL
	StartupGSS
	StartupCancel
)

// Startup is a client's first packet.
type Startup struct {
	Kind StartupKind
	// Raw is the whole packet, unchanged.
	Raw []byte
	// Params are the parameters of a session: user, database, options and
	// settings by name.
	Params map[string]string
}

// StartupSize returns the size of the startup packet at the start of b, or 0 if b doesn't
// have its whole length field. It returns an error for an invalid length, so that the
// caller doesn't wait for such a packet.
func StartupSize(b []byte) (int, error) {
	if len(b) < 4 {
		return 0, nil
	}
	size := binary.BigEndian.Uint32(b)
	if size < 8 || size > MaxStartup {
		return 0, fmt.Errorf("invalid length of startup packet: %d", size)
	}
	return int(size), nil
}

// ParseStartup parses a whole startup packet. It takes ownership of packet.
func ParseStartup(packet []byte) (*Startup, error) {
	if len(packet) < 8 {
		return nil, errors.New("startup packet is too short")
	}
	s := &Startup{Raw: packet}
	version := binary.BigEndian.Uint32(packet[4:])
	switch version {
	case codeSSL, codeGSS:
		if len(packet) != 8 {
			return nil, errors.New("encryption request has a wrong length")
		}
		s.Kind = StartupSSL
		if version == codeGSS {
			s.Kind = StartupGSS
		}
		return s, nil
	case codeCancel:
		// Process id, and a key of 4 to 256 bytes (protocol 3.2).
		if len(packet) < 16 || len(packet) > 12+256 {
			return nil, errors.New("cancel request has a wrong length")
		}
		s.Kind = StartupCancel
		return s, nil
	}
	if version>>16 != 3 {
		return nil, &VersionError{Major: version >> 16, Minor: version & 0xffff}
	}
	s.Params = map[string]string{}
	for rest := packet[8:]; ; {
		name, after, ok := CString(rest)
		if !ok {
			return nil, errors.New("startup packet is not terminated")
		}
		if len(name) == 0 {
			if len(after) != 0 {
				return nil, errors.New("startup packet has bytes behind its end")
			}
			return s, nil
		}
		value, after, ok := CString(after)
		if !ok {
			return nil, errors.New("startup packet has a name without a value")
		}
		if old, twice := s.Params[string(name)]; twice && string(name) == "replication" && strings.EqualFold(old, "database") {
			value = []byte(old) // to PostgreSQL it stays a connection to a database
		}
		s.Params[string(name)] = string(value)
		rest = after
	}
}

// VersionError says that a client demands another protocol version than 3.
type VersionError struct{ Major, Minor uint32 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("unsupported frontend protocol %d.%d: server supports 3.0 to 3.2", e.Major, e.Minor)
}

// Negotiated returns the packet for another server, with the version of msg, a whole
// NegotiateProtocolVersion that the client has got from the first server.
func (s *Startup) Negotiated(msg []byte) *Startup {
	if len(msg) < HeaderSize+4 {
		return s
	}
	agreed := *s
	agreed.Raw = append([]byte(nil), s.Raw...)
	// The lower half has the minor version.
	copy(agreed.Raw[6:8], msg[HeaderSize+2:])
	return &agreed
}

// User returns the session's role.
func (s *Startup) User() string { return s.Params["user"] }

// Database returns the session's database; its default is the user's name.
func (s *Startup) Database() string {
	if db := s.Params["database"]; db != "" {
		return db
	}
	return s.User()
}

// Replication reports whether the session is a replication connection.
func (s *Startup) Replication() bool {
	v := strings.ToLower(s.Params["replication"])
	no := strings.HasPrefix("false", v) || strings.HasPrefix("no", v) || strings.HasPrefix("off", v) && v != "o"
	return v != "0" && !no // of which "" is a prefix
}

// AppendCancel appends a CancelRequest. key is the process id and the secret
// key, as they came in BackendKeyData.
func AppendCancel(dst []byte, key string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(8+len(key)))
	return append(binary.BigEndian.AppendUint32(dst, codeCancel), key...)
}
