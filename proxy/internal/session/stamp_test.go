package session

import (
	"bytes"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// settable is a lease that is held or not as a test says.
type settable struct{ fence string }

func (l *settable) Fence() string            { return l.fence }
func (l *settable) Resource() fence.Resource { return "orders" }
func (l *settable) Holder() string           { return "worker-b" }

// noted remembers refusals.
type noted struct{ refused []Refusal }

func (n *noted) Checked()          {}
func (n *noted) Refused(r Refusal) { n.refused = append(n.refused, r) }
func (n *noted) Trouble(err error) { panic(err) }

const bait007 = "wirefence refused this statement: WF007 lease_not_held"

// exchange gives the session what the client sends and what a server answers, and
// returns what either side gets.
func exchange(t *testing.T, s *Session, in []byte, answer ...[]byte) (sent, back string) {
	t.Helper()
	var out Out
	if used := s.FromClient(in, &out); used != len(in) {
		t.Fatalf("%d of %d bytes were used", used, len(in))
	}
	sent = string(joined(&out))
	all := bytes.Join(answer, nil)
	if used, _ := s.FromServer(all, &out); used != len(all) {
		t.Fatalf("%d of %d bytes of answers were used", used, len(all))
	}
	if f := s.Farewell(); f != nil {
		t.Fatal(f.Message)
	}
	return sent, string(joined(&out))
}

func done(tag string) []byte     { return message(wire.CommandComplete, tag+"\x00") }
func ready(status string) []byte { return message(wire.ReadyForQuery, status) }
func fails(code string) []byte {
	return message(wire.ErrorResponse, "SERROR\x00VERROR\x00C"+code+"\x00Mfailed\x00P1\x00\x00")
}

// A lease that ends in the middle of a transaction stops its next write, in its
// place among the answers, and neither a read nor the COMMIT of what was checked.
func TestWritesStopWithTheLease(t *testing.T) {
	lease, events := &settable{fence: "orders=7"}, &noted{}
	s := begunWith(t, Config{Lease: lease}, "", events)
	const insert = "INSERT INTO t VALUES (1)"
	exchange(t, s, simple("BEGIN"), done("BEGIN"), ready("T"))
	sent, back := exchange(t, s, simple(insert), message(wire.RowDescription, "\x00\x00"), row(""), done("SELECT 1"), done("INSERT 0 1"), ready("T"))
	if !strings.Contains(sent, "SELECT wirefence.check('orders=7', NULL, true);"+insert) || strings.Contains(back, "SELECT") {
		t.Fatalf("sent %q, seen %q", sent, back)
	}
	if sent, _ = exchange(t, s, simple(insert), done("INSERT 0 1"), ready("T")); strings.Contains(sent, "check") {
		t.Fatalf("checked again: %q", sent)
	}
	lease.fence = ""
	if sent, _ = exchange(t, s, simple("SELECT 1"), message(wire.RowDescription, "\x00\x00"), row("1"), done("SELECT 1"), ready("T")); sent != string(simple("SELECT 1")) {
		t.Errorf("a read is sent as %q", sent)
	}
	sent, back = exchange(t, s, parsedNow(insert), message(wire.ParseComplete, ""), message(wire.BindComplete, ""), message(wire.NoData, ""), fails("42601"), ready("E"))
	if !strings.Contains(sent, bait007) || !strings.Contains(back, "SERROR\x00") || !strings.Contains(back, "CWF007\x00") ||
		!strings.Contains(back, `the lease of "orders" is not held here`) || !strings.Contains(back, `held by "worker-b"`) || !strings.HasSuffix(back, string(ready("E"))) {
		t.Errorf("sent %q, seen %q", sent, back)
	}
	if sent, _ = exchange(t, s, simple("ROLLBACK"), done("ROLLBACK"), ready("I")); sent != string(simple("ROLLBACK")) {
		t.Errorf("ROLLBACK is sent as %q", sent)
	}
	if sent, _ = exchange(t, s, simple(insert), fails("42601"), ready("I")); !strings.Contains(sent, bait007) || strings.Contains(sent, insert) {
		t.Errorf("a write on standby is sent as %q", sent)
	}
	if n := len(events.refused); n != 2 || events.refused[0].State != fence.LeaseNotHeld || events.refused[0].Shadow {
		t.Errorf("%+v", events.refused)
	}
	lease.fence = "orders=9"
	if sent, _ = exchange(t, s, simple("BEGIN;"+insert+";COMMIT;"+insert)); strings.Count(sent, "check('orders=9'") != 2 {
		t.Errorf("a text of two transactions is sent as %q", sent)
	}
}

// Where the session may carry a fence of its own, the database decides; if it
// finds none, the client is told why there is none for it.
func TestStandbyAsksTheDatabaseWhereItMust(t *testing.T) {
	lease, events := &settable{}, &noted{}
	s := begunWith(t, Config{Lease: lease}, "orders=3", events)
	sent, back := exchange(t, s, simple("DELETE FROM t"), fails("WF002"), ready("I"))
	if !strings.Contains(sent, "SELECT wirefence.check(NULL, NULL, true);DELETE") || !strings.Contains(back, "CWF007\x00") || len(events.refused) != 1 {
		t.Errorf("sent %q, seen %q, %+v", sent, back, events.refused)
	}
	// A WF002 that the check hasn't raised is somebody else's: a guard's.
	if _, back = exchange(t, s, simple("DELETE FROM t"), message(wire.RowDescription, "\x00\x00"), row(""), done("SELECT 1"), fails("WF002"), ready("I")); !strings.Contains(back, "CWF002\x00") {
		t.Errorf("seen %q", back)
	}
}

// Shadow mode refuses nothing and says all.
func TestShadowsOfAStandby(t *testing.T) {
	lease, events := &settable{}, &noted{}
	s := begunWith(t, Config{Lease: lease, Mode: Shadow}, "", events)
	if sent, _ := exchange(t, s, simple("DELETE FROM t"), done("DELETE 1"), ready("I")); sent != string(simple("DELETE FROM t")) {
		t.Errorf("sent %q", sent)
	}
	if len(events.refused) != 1 || events.refused[0].State != fence.LeaseNotHeld || !events.refused[0].Shadow {
		t.Errorf("%+v", events.refused)
	}
	perhaps := begunWith(t, Config{Lease: lease, Mode: Shadow}, "orders=3", events)
	exchange(t, perhaps, simple("DELETE FROM t"), message(wire.RowDescription, "\x00\x00"), row("WF002: none"), done("SELECT 1"), done("DELETE 1"), ready("I"))
	if len(events.refused) != 2 || events.refused[1].State != fence.LeaseNotHeld || !events.refused[1].Shadow {
		t.Errorf("%+v", events.refused)
	}
}

// Neither a stamp nor the want of one costs an allocation.
func TestStampsAllocateNothing(t *testing.T) {
	for name, cfg := range map[string]Config{"no lease": {}, "a lease": {Lease: &settable{fence: "orders=7"}}} {
		for way, input := range map[string][]byte{"simple": simple(benchWrite), "prepared": bound(nil, "P_0")} {
			s := begunWith(t, cfg, "", discard{})
			var toServer, toClient Out
			run := func(in []byte) {
				s.FromClient(in, &toServer)
				s.FromServer(answers(joined(&toServer), nil), &toClient)
			}
			run(wire.AppendSync(wire.AppendParse(nil, "P_0", benchWrite)))
			run(input)
			run(input)
			s.FromClient(input, &toServer)
			back := answers(joined(&toServer), nil)
			s.FromServer(back, &toClient)
			if n := testing.AllocsPerRun(100, func() {
				s.FromClient(input, &toServer)
				s.FromServer(back, &toClient)
			}); n != 0 {
				t.Errorf("%s, %s: %v allocations", name, way, n)
			}
			if f := s.Farewell(); f != nil {
				t.Fatal(f.Message)
			}
		}
	}
}
