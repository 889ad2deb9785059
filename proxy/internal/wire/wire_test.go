package wire

import (
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// TestWhatIsBuiltIsWhatPgproto3Reads holds our builders against the library's
// decoders.
func TestWhatIsBuiltIsWhatPgproto3Reads(t *testing.T) {
	fence := "orders=34"
	b := AppendQuery(nil, "select 1")
	b = AppendParse(b, "name", "select $1")
	b = AppendBind(b, "portal", "name", &fence)
	b = AppendBind(b, "", "", nil)
	b = AppendExecute(b, "portal")
	b = AppendClose(b, 'S', "name")
	b = AppendSync(b)
	var types []byte
	for len(b) > 0 {
		typ, size, ok := Header(b)
		if !ok || size == 0 || size > len(b) {
			t.Fatalf("no message at %q", b)
		}
		types = append(types, typ)
		body := b[HeaderSize:size]
		var err error
		switch typ {
		case Query:
			m := pgproto3.Query{}
			if err = m.Decode(body); m.String != "select 1" {
				t.Errorf("%+v", m)
			}
		case Parse:
			m := pgproto3.Parse{}
			if err = m.Decode(body); m.Name != "name" || m.Query != "select $1" || len(m.ParameterOIDs) != 0 {
				t.Errorf("%+v", m)
			}
		case Bind:
			m := pgproto3.Bind{}
			err = m.Decode(body)
			if m.DestinationPortal == "portal" && (m.PreparedStatement != "name" || string(m.Parameters[0]) != fence) {
				t.Errorf("%+v", m)
			}
			if m.DestinationPortal == "" && m.Parameters[0] != nil {
				t.Errorf("%+v", m)
			}
		case Execute:
			m := pgproto3.Execute{}
			if err = m.Decode(body); m.Portal != "portal" || m.MaxRows != 0 {
				t.Errorf("%+v", m)
			}
		case Close:
			m := pgproto3.Close{}
			if err = m.Decode(body); m.ObjectType != 'S' || m.Name != "name" {
				t.Errorf("%+v", m)
			}
		}
		if err != nil {
			t.Error(err)
		}
		b = b[size:]
	}
	if string(types) != "QPBBECS" {
		t.Errorf("built %q", types)
	}
}

func TestHeaderRefusesImpossibleLengths(t *testing.T) {
	for _, c := range []struct {
		bytes []byte
		size  int
		ok    bool
	}{
		{[]byte{'Q', 0, 0, 0}, 0, false},
		{[]byte{'Q', 0, 0, 0, 4}, 5, true},
		{[]byte{'Q', 0, 0, 0, 3}, 0, true},
		{[]byte{'Q', 0x3f, 0xff, 0xff, 0xff}, MaxMessage + 1, true},
		{[]byte{'Q', 0x40, 0, 0, 0}, 0, true},
		{[]byte{'Q', 0xff, 0xff, 0xff, 0xff}, 0, true},
	} {
		if _, size, ok := Header(c.bytes); size != c.size || ok != c.ok {
			t.Errorf("% x: %d %v", c.bytes, size, ok)
		}
	}
}

func TestFirstColumns(t *testing.T) {
	row := func(b ...byte) []byte { return append([]byte{'D', 0, 0, 0, byte(4 + len(b))}, b...) }
	for _, c := range []struct {
		row  []byte
		want string // "<null>" for NULL, also if the row can't be read
	}{
		{row(0, 2, 0, 0, 0, 1, 'a', 0xff, 0xff, 0xff, 0xff), "a"},
		{row(0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 'a'), "<null>"},
		{row(0, 1, 0, 0, 0, 0), ""},
		{row(0, 1, 0, 0, 0, 9, 'a'), "<null>"},
		{row(0, 1), "<null>"},
		{row(), "<null>"},
	} {
		value, null := FirstColumn(c.row)
		if null != (c.want == "<null>") || !null && string(value) != c.want {
			t.Errorf("% x: first column %q, null %v", c.row, value, null)
		}
	}
}

func TestErrorsAreReadable(t *testing.T) {
	msg := Error{Severity: "FATAL", Code: "57P01", Message: "m", Detail: "d", Hint: "h"}.Append(nil)
	if ErrorCode(msg) != "57P01" {
		t.Errorf("code %q", ErrorCode(msg))
	}
	e, err := DecodeError(msg)
	if err != nil || e.Severity != "FATAL" || e.SeverityUnlocalized != "FATAL" || e.Message != "m" || e.Detail != "d" || e.Hint != "h" {
		t.Errorf("%+v, %v", e, err)
	}
	if ErrorCode([]byte{'E', 0, 0, 0, 6, 'C', '4'}) != "" {
		t.Error("a code without an end was read")
	}
}

// FuzzMessages reads whatever a server or a client may send: a header says how
// far its message goes or that it can't be, and what is in the message is read
// within it.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{'D', 0, 0, 0, 17, 0, 2, 0, 0, 0, 1, 'a', 0xff, 0xff, 0xff, 0xff, 0, 'Z', 0, 0, 0, 5, 'I'})
	f.Add(Error{Severity: "ERROR", Code: "WF001", Message: "m", Detail: "d", Hint: "h"}.Append(nil))
	f.Add(AppendSync(AppendExecute(AppendBind(AppendParse(nil, "s", "select $1"), "p", "s", nil), "p")))
	f.Add([]byte{'E', 0, 0, 0, 12, 'S', 'E', 0, 'C', '4', 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			_, size, ok := Header(b)
			if ok != (len(b) >= HeaderSize) || size != 0 && (size < HeaderSize || size > MaxMessage+1) {
				t.Fatalf("% x: size %d, %v", b[:min(len(b), 8)], size, ok)
			}
			if !ok || size == 0 || size > len(b) {
				return
			}
			msg := b[:size:size]
			var row pgproto3.DataRow
			if err := row.Decode(msg[HeaderSize:]); err == nil && len(row.Values) > 0 {
				if value, null := FirstColumn(msg); null != (row.Values[0] == nil) || !null && string(value) != string(row.Values[0]) {
					t.Fatalf("% x: first column %q, %v of %q", msg, value, null, row.Values)
				}
			}
			if code := ErrorCode(msg); len(code) > size {
				t.Fatalf("% x: code %q", msg, code)
			}
			if e, err := DecodeError(msg); err == nil {
				if _, err := e.Encode(nil); err != nil {
					t.Fatalf("% x: %v", msg, err)
				}
			}
			if name, rest, ok := CString(msg[HeaderSize:]); ok && len(name)+len(rest)+1 != size-HeaderSize {
				t.Fatalf("% x: %q and %q", msg, name, rest)
			}
			b = b[size:]
		}
	})
}
