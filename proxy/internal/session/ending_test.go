package session

import (
	"bytes"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A FATAL behind the first half of a row would be read as its second half.
func TestLastWordsOnlyBetweenMessages(t *testing.T) {
	s := begun(t, "")
	var out Out
	s.FromClient(wire.AppendQuery(nil, "SELECT 1"), &out)
	large := row(string(make([]byte, 1000)))
	used, _ := s.FromServer(large[:600], &out)
	if used != 600 || out.Empty() {
		t.Fatalf("%d bytes of a row were forwarded", used)
	}
	s.End(wire.Error{Code: "57P01"})
	if words := s.AppendFatal(nil); len(words) > 0 {
		t.Errorf("in the middle of a row the client is told %q", words)
	}

	s = begun(t, "")
	s.FromClient(wire.AppendQuery(nil, "SELECT 1"), &out)
	s.FromServer(large, &out)
	if s.MayEnd() || !s.Running() {
		t.Error("a query is under way and the session may end")
	}
	if words := s.AppendFatal(nil); len(words) > 0 {
		t.Errorf("while the session goes on the client is told %q", words)
	}
	s.End(wire.Error{Code: "57P01"})
	if words := s.AppendFatal(nil); !bytes.Contains(words, []byte("SFATAL\x00VFATAL\x00C57P01")) {
		t.Errorf("behind a row the client is told %q", words)
	}
}
