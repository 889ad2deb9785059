package wire

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

func packet(version uint32, body string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(binary.BigEndian.AppendUint32(b, version), body...)
}

func TestStartupPackets(t *testing.T) {
	const v30, v32 = 3 << 16, 3<<16 | 2
	for _, c := range []struct {
		name   string
		packet []byte
		kind   StartupKind
		fails  string
	}{
		{"a session", packet(v30, "user\x00me\x00database\x00db\x00\x00"), StartupSession, ""},
		{"protocol 3.2", packet(v32, "user\x00me\x00_pq_.x\x00y\x00\x00"), StartupSession, ""},
		{"a later minor version", packet(3<<16|9999, "user\x00me\x00\x00"), StartupSession, ""},
		{"no parameters", packet(v30, "\x00"), StartupSession, ""},
		{"TLS", packet(codeSSL, ""), StartupSSL, ""},
		{"GSSAPI", packet(codeGSS, ""), StartupGSS, ""},
		{"TLS with a tail", packet(codeSSL, "x"), 0, "wrong length"},
		{"cancel with a short key", packet(codeCancel, "pid.key."), StartupCancel, ""},
		{"cancel with the longest key", packet(codeCancel, "pid."+strings.Repeat("k", 256)), StartupCancel, ""},
		{"cancel with too long a key", packet(codeCancel, "pid."+strings.Repeat("k", 257)), 0, "wrong length"},
		{"cancel without a key", packet(codeCancel, "pid."), 0, "wrong length"},
		{"protocol 2", packet(2<<16, strings.Repeat("\x00", 288)), 0, "unsupported frontend protocol 2.0"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), 0, "unsupported frontend protocol"},
		{"cut in a name", packet(v30, "user"), 0, "not terminated"},
		{"cut in a value", packet(v30, "user\x00me"), 0, "name without a value"},
		{"no end", packet(v30, "user\x00me\x00"), 0, "not terminated"},
		{"bytes behind the end", packet(v30, "user\x00me\x00\x00more"), 0, "bytes behind its end"},
		{"too short", []byte{0, 0, 0, 4}, 0, "too short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := ParseStartup(c.packet)
			switch {
			case c.fails == "" && err != nil:
				t.Fatal(err)
			case c.fails == "" && s.Kind != c.kind:
				t.Errorf("kind %d, want %d", s.Kind, c.kind)
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("error %v, want one about %q", err, c.fails)
			}
		})
	}
	_, err := ParseStartup(packet(2<<16, "\x00"))
	if version := (*VersionError)(nil); !errors.As(err, &version) {
		t.Errorf("%v is no VersionError", err)
	}
}

func TestNegotiatedVersions(t *testing.T) {
	s, err := ParseStartup(packet(3<<16|9999, "user\x00me\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	agreed := s.Negotiated([]byte("v\x00\x00\x00\x0c\x00\x03\x00\x02\x00\x00\x00\x00"))
	if v := binary.BigEndian.Uint32(agreed.Raw[4:]); v != 3<<16|2 || agreed.User() != "me" || len(agreed.Raw) != len(s.Raw) {
		t.Errorf("%x", agreed.Raw)
	}
	if v := binary.BigEndian.Uint32(s.Raw[4:]); v != 3<<16|9999 {
		t.Errorf("the client's packet is changed to version %x", v)
	}
	if s.Negotiated([]byte("v\x00\x00\x00\x04")) != s {
		t.Error("a message without a version negotiates one")
	}
}

func TestStartupSizeJudgesBeforeWaiting(t *testing.T) {
	for _, c := range []struct {
		bytes []byte
		size  int
		ok    bool
	}{
		{nil, 0, true},
		{[]byte{0, 0, 0}, 0, true},
		{[]byte{0, 0, 0, 8}, 8, true},
		{[]byte{0, 0, 0x27, 0x10}, MaxStartup, true},
		{[]byte{0, 0, 0x27, 0x11}, 0, false},
		{[]byte{0xff, 0xff, 0xff, 0xff}, 0, false},
		{[]byte{0, 0, 0, 7}, 0, false},
		{[]byte("GET "), 0, false},
	} {
		size, err := StartupSize(c.bytes)
		if size != c.size || (err == nil) != c.ok {
			t.Errorf("%q: %d, %v", c.bytes, size, err)
		}
	}
}

func TestReplicationIsABooleanOrDatabase(t *testing.T) {
	for value, want := range map[string]bool{
		"": false, "0": false, "off": false, "of": false, "no": false, "n": false, "false": false, "f": false, "FALSE": false,
		"1": true, "on": true, "true": true, "yes": true, "database": true, "o": true,
	} {
		s := Startup{Params: map[string]string{"replication": value}}
		if s.Replication() != want {
			t.Errorf("replication=%q: %v", value, !want)
		}
	}
}

// FuzzStartup looks for packets that panic, or that are read past their end.
func FuzzStartup(f *testing.F) {
	f.Add(packet(3<<16, "user\x00me\x00database\x00db\x00\x00"))
	f.Add(packet(codeCancel, "pid.key."))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		size, err := StartupSize(b)
		if err != nil || size == 0 || size > len(b) {
			return
		}
		s, err := ParseStartup(b[:size])
		if err == nil && s.Kind == StartupSession && s.Params == nil {
			t.Error("a session without parameters")
		}
	})
}
