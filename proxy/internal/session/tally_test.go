package session

import (
	"slices"
	"testing"
	"time"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// Groups are counted by what they run under.
func TestGroupsAreCounted(t *testing.T) {
	now := time.Unix(1e9, 0)
	events := &noted{}
	s := begunWith(t, Config{Hold: time.Second, Clock: func() time.Time { return now }}, "", events)
	const fenced = "SELECT 1 /*wirefence.token='orders=33'*/"
	selected := [][]byte{done("SELECT 1"), ready("I")}
	want := func(what string, unfenced, held, checked uint64) {
		t.Helper()
		tally := s.Tally()
		if tally.Unfenced() != unfenced || tally.Held() != held || tally.Checked() != checked {
			t.Fatalf("behind %s %d groups ran under nothing, %d under a hold, %d under a check", what, tally.Unfenced(), tally.Held(), tally.Checked())
		}
	}
	want("the login", 0, 0, 0)
	talk(t, s, simple("SELECT 1"), selected...)
	want("a simple query", 1, 0, 0)
	talk(t, s, simple(fenced), append([][]byte{passing()}, selected...)...)
	want("a fenced one", 1, 0, 1)
	talk(t, s, simple(fenced), append([][]byte{message(wire.RowDescription, "\x00\x00"), isHeld, done("SELECT 1")}, selected...)...)
	want("one that asks for the hold", 1, 0, 2)
	talk(t, s, simple(fenced), selected...)
	want("one under the hold", 1, 1, 2)
	talk(t, s, simple("BEGIN /*wirefence.token='orders=33'*/"), done("BEGIN"), ready("T"))
	want("a BEGIN under the hold", 1, 2, 2)
}

// A group of the extended protocol is counted once, at its Sync, and not at all where it
// executes nothing.
func TestExtendedGroupsAreCounted(t *testing.T) {
	events := &noted{}
	s := begunWith(t, Config{}, "", events)
	var parts []byte
	for range 2 {
		parts = append(parts, message(wire.Parse, "\x00SELECT 1\x00\x00\x00")...)
		parts = append(parts, message(wire.Bind, "\x00\x00\x00\x00\x00\x00\x00\x00")...)
		parts = append(parts, message(wire.Execute, "\x00\x00\x00\x00\x00")...)
	}
	var out Out
	s.FromClient(parts, &out)
	if tally := s.Tally(); tally.Unfenced() != 0 {
		t.Errorf("%d groups are counted before the Sync", tally.Unfenced())
	}
	s.FromClient(message(wire.Sync, ""), &out)
	s.FromClient(append(message(wire.Parse, "\x00SELECT 1\x00\x00\x00"), message(wire.Sync, "")...), &out)
	if tally := s.Tally(); tally.Unfenced() != 1 || tally.Held() != 0 || tally.Checked() != 0 {
		t.Errorf("counted %v", tally)
	}
}

// The first of 16 groups and checks is timed, and each exchange that a message causes.
func TestWaitsAreTimed(t *testing.T) {
	now := time.Unix(1e9, 0)
	events := &noted{}
	s := begunWith(t, Config{Clock: func() time.Time { return now }}, "", events)
	var out Out
	for range 17 {
		s.FromClient(simple("SELECT 1 /*wirefence.token='orders=33'*/"), &out)
		now = now.Add(time.Millisecond)
		answered(t, s, passing())
		now = now.Add(time.Second)
		answered(t, s, done("SELECT 1"), ready("I"))
	}
	if waits := events.waits[WaitCheck]; len(waits) != 2 || waits[0] != time.Millisecond || waits[1] != time.Millisecond {
		t.Errorf("checks took %v", waits)
	}
	if ran := events.ran; len(ran) != 2 || ran[0] != time.Second+time.Millisecond || ran[1] != ran[0] {
		t.Errorf("groups took %v", ran)
	}
	if waits := events.waits[WaitExchange]; len(waits) != 0 {
		t.Errorf("exchanges took %v", waits)
	}

	armed := begunWith(t, Config{Clock: func() time.Time { return now }}, "orders=33", events)
	talk(t, armed, simple("BEGIN"), done("BEGIN"), ready("T"))
	armed.FromClient(simple("PREPARE TRANSACTION 'x'"), &out)
	now = now.Add(time.Minute)
	answered(t, armed, ownExchange("T", row("orders=33"), done("SELECT 1")))
	if waits := events.waits[WaitExchange]; len(waits) != 1 || waits[0] != time.Minute {
		t.Errorf("the exchange took %v", waits)
	}
}

// A refusal ends the sample of its check, and a sample whose answer the server skips is
// given up: later ones are taken.
func TestSamplesOfFailuresEnd(t *testing.T) {
	now := time.Unix(1e9, 0)
	events := &noted{}
	s := begunWith(t, Config{Clock: func() time.Time { return now }}, "", events)
	var out Out
	s.FromClient(simple("SELECT 1 /*wirefence.token='orders=33'*/"), &out)
	now = now.Add(time.Second)
	answered(t, s, fails("WF001"), ready("I"))
	if waits, ran := events.waits[WaitCheck], events.ran; len(waits) != 1 || waits[0] != time.Second || len(ran) != 1 || ran[0] != time.Second {
		t.Errorf("the check took %v, the group %v", waits, ran)
	}
	if s.timing.check.open || s.timing.group.open {
		t.Error("a sample is still under way")
	}
}

// With Traces every wait of a message of a recorded trace is told, with its traceparent, and
// no other trace.
func TestWaitsOfRecordedTracesAreTold(t *testing.T) {
	const id = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
	for _, c := range []struct {
		traces bool
		flags  string
		told   bool
	}{{true, "01", true}, {true, "00", false}, {true, "0b", true}, {true, "0a", false}, {false, "01", false}} {
		events := &noted{}
		s := begunWith(t, Config{Traces: c.traces}, "", events)
		var out Out
		for range 3 {
			s.FromClient(simple("SELECT 1 /*wirefence.token='orders=33',traceparent='"+id+c.flags+"'*/"), &out)
			answered(t, s, passing(), done("SELECT 1"), ready("I"))
		}
		want := []string{""} // the sample
		if c.told {
			want = []string{id + c.flags, id + c.flags, id + c.flags}
		}
		if !slices.Equal(events.traces, want) {
			t.Errorf("traces %v, flags %s: told %q, not %q", c.traces, c.flags, events.traces, want)
		}
	}
}
