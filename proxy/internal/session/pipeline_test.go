package session

import (
	"bytes"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A client that sends ahead waits when so many answers are outstanding, and goes on
// once a server has caught up, which answers all but what it keeps back.
func TestAClientThatSendsAheadIsHeld(t *testing.T) {
	const messages = 20_000
	const keptBack = (8 << 10) / 5 // CloseCompletes, by a server that wasn't asked to flush
	s := begun(t, "")
	input := bytes.Repeat(wire.AppendClose(nil, 'S', ""), messages)
	size := len(input) / messages
	var toServer, toClient Out
	atServer, holds := 0, 0
	for len(input) > 0 {
		used := s.FromClient(input, &toServer)
		input = input[used:]
		atServer += len(joined(&toServer)) / size
		if s.q.Len() > maxOutstanding {
			t.Fatalf("%d answers are outstanding", s.q.Len())
		}
		if len(input) == 0 {
			break
		}
		if !s.InputWaits() || s.q.Len() != maxOutstanding {
			t.Fatalf("held %v with %d answers outstanding", s.InputWaits(), s.q.Len())
		}
		holds++
		if _, wake := s.FromServer(message(wire.CloseComplete, ""), &toClient); wake {
			t.Fatal("it goes on after a single answer")
		}
		_, wake := s.FromServer(bytes.Repeat(message(wire.CloseComplete, ""), atServer-1-keptBack), &toClient)
		if !wake {
			t.Fatalf("it does not go on with %d answers outstanding", s.q.Len())
		}
		atServer = keptBack
	}
	if holds < messages/maxOutstanding {
		t.Errorf("it was held %d times", holds)
	}
	s.FromServer(bytes.Repeat(message(wire.CloseComplete, ""), atServer), &toClient)
	if s.q.Len() != 0 {
		t.Errorf("%d entries are left", s.q.Len())
	}
}

// So does one that sends 100,000 groups before its Sync, and each is handled once.
func TestALongBatch(t *testing.T) {
	const groups = 100_000
	for _, variable := range []string{"", "orders=34"} {
		s := begun(t, variable)
		input := bytes.Repeat(wire.AppendExecute(wire.AppendBind(wire.AppendParse(nil, "", benchWrite), "", ""), ""), groups)
		input = wire.AppendSync(input)
		var toServer, toClient Out
		calls, seen := 0, 0
		for len(input) > 0 || s.q.Len() > 0 {
			calls++
			input = input[s.FromClient(input[:min(len(input), 64<<10)], &toServer):]
			back := answers(joined(&toServer), nil)
			if used, _ := s.FromServer(back, &toClient); used != len(back) {
				t.Fatalf("%d of %d bytes of answers were used", used, len(back))
			}
			for _, b := range toClient.Buffers(nil) {
				seen += len(b)
			}
			if pending := s.names.prepared.Pending() + s.names.portals.Pending(); s.q.Len() > maxOutstanding+8 || pending > s.q.Len() || calls > groups {
				t.Fatalf("%d entries, %d names pending, %d calls", s.q.Len(), pending, calls)
			}
		}
		if want := groups*(5+5+len(done("SELECT 1"))) + len(ready("I")); seen != want {
			t.Errorf("the client sees %d bytes, want %d", seen, want)
		}
	}
}

// No answer comes while a server waits for copy data: what else a client sends then
// is an error, not a queue.
func TestMessagesInACopyAreBounded(t *testing.T) {
	s := begun(t, "")
	var out Out
	s.FromClient(simple("COPY t FROM STDIN"), &out)
	s.FromServer(message(wire.CopyInResponse, "\x00\x00\x00"), &out)
	s.FromClient(bytes.Repeat(wire.AppendSync(nil), 2*maxOutstanding), &out)
	if s.Fatal() == nil || s.q.Len() > maxOutstanding {
		t.Errorf("%d entries, farewell %v", s.q.Len(), s.Fatal())
	}
}

// Behind a pooler no batch begins while an answer is outstanding, for the pooler may then
// give the server connection to another client.
func TestABatchWaitsBehindAPooler(t *testing.T) {
	for name, batch := range map[string][]byte{
		"Parse":    parsedNow("SELECT 1"),
		"Bind":     bound(nil, "s"),
		"Describe": wire.AppendSync(message(wire.Describe, "Ss\x00")),
		"Execute":  wire.AppendSync(wire.AppendExecute(nil, "")),
		"Close":    wire.AppendSync(wire.AppendClose(nil, 'S', "s")),
	} {
		for pooling, waits := range map[Pooling]bool{PoolingTransaction: true, PoolingSession: false} {
			s := begunWith(t, Config{Pooling: pooling}, "", discard{})
			var out Out
			s.FromClient(simple("SELECT 1"), &out)
			if used := s.FromClient(batch, &out); (used == 0) != waits || s.InputWaits() != waits {
				t.Errorf("%s, pooling %v: %d of %d bytes are used, input waits %v", name, pooling, used, len(batch), s.InputWaits())
			}
			if _, wake := s.FromServer(append(done("SELECT 1"), ready("I")...), &out); wake != waits {
				t.Errorf("%s, pooling %v: the answer wakes %v", name, pooling, wake)
			}
			if !waits {
				continue
			}
			if used := s.FromClient(batch, &out); used != len(batch) {
				t.Errorf("%s: %d of %d bytes are used behind the answer", name, used, len(batch))
			}
		}
	}
	s := begunWith(t, Config{Pooling: PoolingTransaction}, "", discard{})
	var out Out
	s.FromClient(simple("COPY t FROM STDIN"), &out)
	s.FromServer(message(wire.CopyInResponse, "\x00\x00\x00"), &out)
	if batch := parsedNow("SELECT 1"); s.FromClient(batch, &out) != len(batch) {
		t.Error("a batch waits for a server that waits for copy data")
	}
}
