package session

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

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

// With a witness a session that is, or was, under a fence ends when the confirmation is over, also
// in the midst of an answer: the client sees no acknowledgment that came later. Without a fence, on
// a standby and in shadow mode nothing ends.
func TestAnUnconfirmedServersAnswersArePassedToNobody(t *testing.T) {
	const unfenced, fenced = "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (1) /*wirefence.token='orders=1'*/"
	done := append(message(wire.CommandComplete, "INSERT 0 1\x00"), ready("I")...)
	for name, c := range map[string]struct {
		sql     string
		cfg     Config
		standby bool
		sent    bool // while the server is confirmed
		ends    bool
	}{
		"a fence":                     {fenced, Config{}, false, false, true},
		"a fence that was sent":       {fenced, Config{}, false, true, true},
		"no fence":                    {unfenced, Config{}, false, false, false},
		"no fence that was sent":      {unfenced, Config{}, false, true, false},
		"a fence on a standby":        {fenced, Config{}, true, false, false},
		"a fence in shadow mode":      {fenced, Config{Mode: Shadow}, false, false, false},
		"a stamp":                     {unfenced, Config{Lease: &settable{"orders=1"}}, false, false, true},
		"READ ONLY, without a fence":  {unfenced, Config{RequireFence: true}, false, true, false},
		"a fence sent in shadow mode": {fenced, Config{Mode: Shadow}, false, true, false},
	} {
		s := begunWith(t, c.cfg, "", discard{})
		s.standby = c.standby
		confirmed := c.sent
		s.RequireLeader(func(time.Time, netip.Addr) bool { return confirmed })
		var toServer, toClient Out
		s.FromClient(wire.AppendQuery(nil, c.sql), &toServer)
		if sent := !toServer.Empty(); sent != (c.sent || !c.ends) {
			t.Errorf("%s: sent to the server: %v", name, sent)
		}
		confirmed = false
		if !toServer.Empty() {
			s.FromServer(done, &toClient)
			if passed := !toClient.Empty(); passed == c.ends {
				t.Errorf("%s: the answer is passed: %v", name, passed)
			}
		}
		if fatal := s.Fatal(); (fatal != nil) != c.ends || fatal != nil && fatal.Code != "57P01" {
			t.Errorf("%s: it ends with %v", name, fatal)
		}
		if s.EndUnconfirmed() {
			t.Errorf("%s: it ends twice, or late", name)
		}
	}
	s := begun(t, "")
	confirmed := true
	s.RequireLeader(func(time.Time, netip.Addr) bool { return confirmed })
	var out Out
	s.FromClient(wire.AppendQuery(nil, fenced), &out)
	s.FromServer(done, &out)
	if confirmed = false; !s.EndUnconfirmed() || s.Fatal() == nil {
		t.Error("an idle session that was under a fence goes on")
	}
}
