package session

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// noted remembers refusals.
type noted struct {
	refused []Refusal
	waits   [2][]time.Duration // by what was waited for
	traces  []string           // of the waits
	ran     []time.Duration
}

func (n *noted) Checked()            {}
func (n *noted) Ran(d time.Duration) { n.ran = append(n.ran, d) }
func (n *noted) Refused(r Refusal)   { n.refused = append(n.refused, r) }
func (n *noted) Trouble(err error)   { panic(err) }
func (n *noted) Ended(Ending)        {}

func (n *noted) Waited(by Wait, d time.Duration, traceParent string) {
	n.waits[by], n.traces = append(n.waits[by], d), append(n.traces, traceParent)
}

// talk gives the session what the client sends and what a server answers, and
// returns what either side gets.
func talk(t *testing.T, s *Session, in []byte, answer ...[]byte) (sent, back string) {
	t.Helper()
	var out Out
	if used := s.FromClient(in, &out); used != len(in) {
		t.Fatalf("%d of %d bytes were used", used, len(in))
	}
	sent = string(joined(&out))
	return sent, answered(t, s, answer...)
}

// answered gives the session what a server answers.
func answered(t *testing.T, s *Session, answer ...[]byte) (back string) {
	t.Helper()
	var out Out
	all := bytes.Join(answer, nil)
	if used, _ := s.FromServer(all, &out); used != len(all) {
		t.Fatalf("%d of %d bytes of answers were used", used, len(all))
	}
	if f := s.Fatal(); f != nil {
		t.Fatal(f.Message)
	}
	return string(joined(&out))
}

func done(tag string) []byte     { return message(wire.CommandComplete, tag+"\x00") }
func ready(status string) []byte { return message(wire.ReadyForQuery, status) }
func fails(code string) []byte {
	return message(wire.ErrorResponse, "SERROR\x00VERROR\x00C"+code+"\x00Mfailed\x00P1\x00\x00")
}

// passing is the result of a check that passes.
func passing() []byte {
	return bytes.Join([][]byte{message(wire.RowDescription, "\x00\x00"), noRefusal, done("SELECT 1")}, nil)
}

// ownExchange is the answer to an exchange of the proxy's own, of which run is what
// comes of its Execute.
func ownExchange(status string, run ...[]byte) []byte {
	head := bytes.Join([][]byte{
		message(wire.CloseComplete, ""), message(wire.CloseComplete, ""), message(wire.ParseComplete, ""), message(wire.BindComplete, ""),
	}, nil)
	all := append([][]byte{head}, run...)
	if typ := run[len(run)-1][0]; typ != wire.ErrorResponse {
		all = append(all, message(wire.CloseComplete, ""), message(wire.CloseComplete, ""))
	}
	return bytes.Join(append(all, ready(status)), nil)
}

// libpq's functions for large objects send BEGIN and then a FunctionCall, with nothing between. A
// check of its transaction covers it; a client that has sent one gets that behind BEGIN.
func TestFunctionCallsInATransaction(t *testing.T) {
	s := begun(t, "orders=33")
	call := string(fastCall.bytes)
	talk(t, s, simple("BEGIN"), done("BEGIN"), ready("T"))
	if sent, back := talk(t, s, []byte(call), fails("42601"), ready("E")); strings.Contains(sent, call) || !strings.Contains(back, "WF006") {
		t.Errorf("with nothing checked: sent %q, seen %q", sent, back)
	}
	talk(t, s, simple("ROLLBACK"), done("ROLLBACK"), ready("I"))
	talk(t, s, simple("BEGIN; SELECT 1"), done("BEGIN"), passing(), done("SELECT 1"), ready("T"))
	if sent, _ := talk(t, s, []byte(call), message('V', "\xff\xff\xff\xff"), ready("T")); sent != call {
		t.Errorf("behind a check: sent %q", sent)
	}
	talk(t, s, simple("COMMIT"), done("COMMIT"), ready("I"))
	if sent, back := talk(t, s, simple("BEGIN"), done("BEGIN"), passing(), ready("T")); !strings.Contains(sent, "BEGIN;SELECT wirefence.check(NULL") || back != string(done("BEGIN"))+string(ready("T")) {
		t.Errorf("the next BEGIN: sent %q, seen %q", sent, back)
	}
	if sent, _ := talk(t, s, []byte(call), message('V', "\xff\xff\xff\xff"), ready("T")); sent != call {
		t.Errorf("behind it: sent %q", sent)
	}
}

// A message asks whether the variable holds a fence if nothing else can tell, in a block too.
func TestPrepareTransactionAsks(t *testing.T) {
	for _, held := range []string{"", "orders=33"} {
		s := begun(t, "orders=33")
		talk(t, s, simple("RESET wirefence.token"), done("RESET"), ready("I"))
		talk(t, s, simple("BEGIN"), done("BEGIN"), ready("T"))
		prepare := simple("PREPARE TRANSACTION 'x'")
		var out Out
		if used := s.FromClient(prepare, &out); used != 0 || !strings.Contains(string(joined(&out)), askCarriedSQL) {
			t.Fatalf("%d bytes are used, sent %q", used, joined(&out))
		}
		answered(t, s, ownExchange("T", row(held), done("SELECT 1")))
		s.FromClient(prepare, &out)
		if passes := string(joined(&out)) == string(prepare); passes != (held == "") {
			t.Errorf("the variable is %q: sent %q", held, joined(&out))
		}
	}
}

// A check that finds nothing behind what a pool sends between two users makes the session one
// without a fence again.
func TestASessionThatWasReset(t *testing.T) {
	for reset, again := range map[string]bool{"DISCARD ALL": true, "RESET ALL": true, "CLOSE ALL; RESET ALL": true, "SHOW x": false} {
		s := begun(t, "")
		insert := simple("INSERT INTO t VALUES ('wirefence')")
		none := slices.Concat(message(wire.RowDescription, "\x00\x00"), row("none"), done("SELECT 1"))
		talk(t, s, insert, done("INSERT 0 1"), ready("I"))
		plain := simple("INSERT INTO t VALUES (1)")
		if sent, _ := talk(t, s, plain, none, done("INSERT 0 1"), ready("I")); !strings.Contains(sent, "wirefence.check(") {
			t.Fatalf("behind the word: sent %q", sent)
		}
		talk(t, s, simple(reset), done(reset), ready("I"))
		talk(t, s, plain, none, done("INSERT 0 1"), ready("I"))
		if sent, _ := talk(t, s, plain, done("INSERT 0 1"), ready("I")); (sent == string(plain)) != again {
			t.Errorf("%s: sent %q", reset, sent)
		}
	}
}

// What shadow mode would refuse is told once, also of a message that had to wait.
func TestShadowTellsOnce(t *testing.T) {
	events := &noted{}
	s := begunWith(t, Config{Mode: Shadow}, "", events)
	const sql = `SELECT '\' /*wirefence.token='orders='*/`
	var out Out
	s.FromClient(simple("SELECT 1"), &out)
	for range 3 {
		if used := s.FromClient(simple(sql), &out); used != 0 || !s.InputWaits() {
			t.Fatalf("a text that depends on a setting is used while an answer is outstanding (%d)", used)
		}
	}
	answered(t, s, done("SELECT 1"), ready("I"))
	if sent, _ := talk(t, s, simple(sql), done("SELECT 1"), ready("I")); sent != string(simple(sql)) {
		t.Errorf("sent %q", sent)
	}
	if len(events.refused) != 1 || events.refused[0].State != fence.MalformedToken || !events.refused[0].Shadow {
		t.Errorf("%+v", events.refused)
	}
	events.refused = nil
	talk(t, s, parsedNow("SELECT 1 /*wirefence.token='orders='*/"), message(wire.ParseComplete, ""), message(wire.BindComplete, ""), message(wire.NoData, ""), done("SELECT 1"), ready("I"))
	if len(events.refused) != 1 {
		t.Errorf("of a batch: %+v", events.refused)
	}
}

// A lease that ends stops the next transaction's writes, and no read.
func TestWritesStopWithTheLease(t *testing.T) {
	lease, events := &settable{fence: "orders=7"}, &noted{}
	s := begunWith(t, Config{Lease: lease}, "", events)
	const insert = "INSERT INTO t VALUES (1)"
	sent, back := talk(t, s, simple(insert), passing(), done("INSERT 0 1"), ready("I"))
	if !strings.Contains(sent, "SELECT wirefence.check('orders=7', NULL, true, false);"+insert) || strings.Contains(back, "SELECT") {
		t.Fatalf("sent %q, seen %q", sent, back)
	}
	lease.fence = ""
	unfenced := bytes.Join([][]byte{message(wire.RowDescription, "\x00\x00"), row("unfenced"), done("SELECT 1")}, nil)
	if _, back = talk(t, s, simple("SELECT 1"), unfenced, row("1"), done("SELECT 1"), ready("I")); back != string(row("1"))+string(done("SELECT 1"))+string(ready("I")) {
		t.Errorf("of a read the client sees %q", back)
	}
	sent, back = talk(t, s, simple(insert), unfenced, fails("25006"), ready("I"))
	if !strings.Contains(back, "CWF007\x00") || !strings.Contains(back, `the lease of "orders" is not held here`) || !strings.Contains(back, `held by "worker-b"`) {
		t.Errorf("sent %q, seen %q", sent, back)
	}
	if len(events.refused) != 1 || events.refused[0].State != fence.LeaseNotHeld || events.refused[0].Shadow {
		t.Errorf("%+v", events.refused)
	}
	// What a READ ONLY transaction of the client's own refuses is nobody else's doing.
	lease.fence = "orders=9"
	if _, back = talk(t, s, simple("BEGIN READ ONLY;"+insert), done("BEGIN"), passing(), fails("25006"), ready("E")); !strings.Contains(back, "C25006\x00") {
		t.Errorf("seen %q", back)
	}
}

// An idle session gives its hold back, once its time is over, and not before.
func TestTickGivesBack(t *testing.T) {
	now := time.Unix(1000, 0)
	s := begunWith(t, Config{Hold: 50 * time.Millisecond, Clock: func() time.Time { return now }}, benchFence, discard{})
	insert := simple(benchWrite)
	talk(t, s, insert, passing(), done("INSERT 0 1"), ready("I"))
	held := bytes.Join([][]byte{message(wire.RowDescription, "\x00\x00"), isHeld, done("SELECT 1")}, nil)
	sent, back := talk(t, s, insert, held, done("INSERT 0 1"), ready("I"))
	if !strings.Contains(sent, "NULL, NULL, 'nothing', false, 'group');") || back != string(done("INSERT 0 1"))+string(ready("I")) {
		t.Fatalf("sent %q", sent)
	}
	if send, next := s.ReleaseHold(); send || !next.Equal(now.Add(50*time.Millisecond)) || !s.HoldDeadline().Equal(next) {
		t.Fatalf("at once: %v, %v", send, next)
	}
	now = now.Add(50 * time.Millisecond)
	send, next := s.ReleaseHold()
	if b := string(s.TakeToServer()); !send || !next.IsZero() || !strings.Contains(b, "wirefence.proxy_unhold(") {
		t.Fatalf("%v, %v, sent %q", send, next, b)
	}
	if send, _ = s.ReleaseHold(); send || !s.HoldDeadline().IsZero() || s.Awaited() != AwaitsExchange {
		t.Error("it gives back twice")
	}
	if back := answered(t, s, ownExchange("I", row(""), done("SELECT 1"))); back != "" || !s.Idle() {
		t.Errorf("seen %q", back)
	}
}

// The position of an error in a text that needed no lexing is the client's.
func TestPositionsInPlainTexts(t *testing.T) {
	s := begun(t, "orders=34")
	failure := message(wire.ErrorResponse, "SERROR\x00VERROR\x00C42P01\x00Mmissing\x00P63\x00\x00")
	sent, back := talk(t, s, simple("SELECT * FROM missing;"), passing(), failure, ready("I"))
	if !strings.Contains(sent, "wirefence.check(") || !strings.Contains(back, "P14\x00") {
		t.Errorf("sent %q, seen %q", sent, back)
	}
}

// A hold whose call was cancelled is given back, and the message that waited for it gets the error.
func TestAHoldThatIsCancelled(t *testing.T) {
	s := begunWith(t, Config{Hold: time.Hour}, "orders=33", discard{})
	call, answers := simple("CALL p()"), [][]byte{append(fails("57014"), ready("I")...), ownExchange("I", row("t"), done("SELECT 1")), append(fails("42601"), ready("I")...)}
	var back string
	for i, want := range []string{"wirefence.proxy_hold", "wirefence.proxy_unhold", "wirefence refused this statement"} {
		var out Out
		if s.FromClient(call, &out); !strings.Contains(string(joined(&out)), want) {
			t.Fatalf("step %d: sent %q, want %q", i, joined(&out), want)
		}
		back = answered(t, s, answers[i])
	}
	if !strings.Contains(back, "C57014\x00") {
		t.Errorf("the client sees %q", back)
	}
}
