package session

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/policy"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A session is driven with canned bytes of both sides: one exchange
// is what a client sends up to its Sync or Query, and all answers to it. The
// goal in steady state is 0 allocs/op, but for refusals.

type discard struct{}

func (discard) Checked()                           {}
func (discard) Waited(Wait, time.Duration, string) {}
func (discard) Ran(time.Duration)                  {}
func (discard) Refused(Refusal)                    {}
func (discard) Trouble(error)                      {}
func (discard) Ended(Ending)                       {}

func message(typ byte, body string) []byte {
	msg := append([]byte{typ}, binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))...)
	return append(msg, body...)
}

// row is a DataRow in text format.
func row(columns ...string) []byte {
	body := binary.BigEndian.AppendUint16(nil, uint16(len(columns)))
	for _, c := range columns {
		body = append(binary.BigEndian.AppendUint32(body, uint32(len(c))), c...)
	}
	return message(wire.DataRow, string(body))
}

// noRefusal is the row of a check, and isHeld that of a hold.
var (
	noRefusal = message(wire.DataRow, "\x00\x01\xff\xff\xff\xff")
	isHeld    = row("held 7/00000001 42")
)

// answers gives what a server without a transaction block would send back to whole
// messages; each statement of the client's that is executed brings rows.
func answers(sent []byte, rows []byte) (out []byte) {
	own := noRefusal
	executed := func(rows []byte) {
		out = append(out, rows...)
		out = append(out, message(wire.CommandComplete, "SELECT 1\x00")...)
	}
	for len(sent) > 0 {
		typ, size, ok := wire.Header(sent)
		if !ok || size > len(sent) {
			panic("a message was cut")
		}
		body := sent[wire.HeaderSize:size]
		switch typ {
		case wire.Parse:
			own = noRefusal
			if bytes.Contains(body, []byte("SELECT wirefence.proxy_hold(")) {
				own = isHeld
			}
			out = append(out, message(wire.ParseComplete, "")...)
		case wire.Bind:
			out = append(out, message(wire.BindComplete, "")...)
		case wire.Close:
			out = append(out, message(wire.CloseComplete, "")...)
		case wire.Describe:
			out = append(out, message(wire.RowDescription, "\x00\x00")...)
		case wire.Execute:
			if bytes.HasPrefix(body, []byte(ownPrefix)) && !bytes.HasSuffix(out, message(wire.BindComplete, "")) {
				panic("an Execute of the proxy's own without a Bind")
			} else if bytes.HasPrefix(body, []byte(ownPrefix)) {
				executed(own)
			} else {
				executed(rows)
			}
		case wire.Query:
			for _, sql := range bytes.Split(body, []byte(";")) {
				out = append(out, message(wire.RowDescription, "\x00\x00")...)
				if bytes.HasPrefix(sql, []byte("SELECT wirefence.proxy_hold(")) {
					executed(isHeld)
				} else if bytes.HasPrefix(sql, []byte("SELECT wirefence.")) {
					executed(noRefusal)
				} else {
					executed(rows)
				}
			}
		}
		if typ == wire.Sync || typ == wire.Query {
			out = append(out, message(wire.ReadyForQuery, "I")...)
		}
		sent = sent[size:]
	}
	return out
}

// begun returns a session that has logged in. variable is the value of the
// session variable.
func begun(tb testing.TB, variable string) *Session {
	tb.Helper()
	return begunWith(tb, Config{}, variable, discard{})
}

// begunWith is begun with a configuration and events of the test's own.
func begunWith(tb testing.TB, cfg Config, variable string, events Events) *Session {
	tb.Helper()
	s := greeted(cfg, events)
	var out Out
	for n := 0; !s.LoggedIn(); n++ {
		sent := bytes.Clone(s.TakeToServer())
		if n > 4 || len(sent) == 0 {
			tb.Fatal("the login does not end")
		}
		rows := row(variable, "usable", "7", hexadecimal("at_home"))
		if !bytes.Contains(sent, []byte(trimmed(loginSQL))) {
			rows = row("f")
		}
		s.FromServer(bytes.Replace(answers(sent, nil), noRefusal, rows, 1), &out)
	}
	return s
}

// greeted is a session that the server has let in, and whose questions at login are on
// their way to it.
func greeted(cfg Config, events Events) *Session {
	at := time.Now()
	databases := NewDatabases(func() time.Time { return at })
	return greetedBy(cfg, databases, "app", events)
}

// greetedIn is a session of an application's user in a database.
func greetedIn(databases *Databases, database string) *Session {
	return greetedBy(Config{}, databases, database, discard{})
}

func greetedBy(cfg Config, databases *Databases, database string, events Events) *Session {
	startup := &wire.Startup{Params: map[string]string{"user": "app", "database": database}}
	cfg.MaxStatement = 16 << 20
	s := New(NewConfig(cfg), databases, startup, events)
	var out Out
	hello := bytes.Join([][]byte{
		message(wire.Authentication, "\x00\x00\x00\x00"),
		message(wire.ParameterStatus, "client_encoding\x00UTF8\x00"),
		message(wire.ParameterStatus, "standard_conforming_strings\x00on\x00"),
		message(wire.ParameterStatus, "server_version\x0018.0\x00"),
		message(wire.BackendKeyData, "\x00\x00\x00\x07key!"),
		message(wire.ReadyForQuery, "I"),
	}, nil)
	s.FromServer(hello, &out)
	return s
}

func joined(out *Out) []byte { return bytes.Join(out.Buffers(nil), nil) }

// steady brings a session to where the same exchange comes over and over, and returns
// one. prelude is sent once before. checks is how many checks must be put in.
func steady(tb testing.TB, cfg Config, variable string, prelude, input []byte, checks int) (exchange func()) {
	tb.Helper()
	s := begunWith(tb, cfg, variable, discard{})
	var toServer, toClient Out
	first := func(in []byte) (sent, back []byte) {
		if used := s.FromClient(in, &toServer); used != len(in) {
			tb.Fatalf("%d of %d bytes were used", used, len(in))
		}
		sent = joined(&toServer)
		back = answers(sent, row("1"))
		if used, _ := s.FromServer(back, &toClient); used != len(back) {
			tb.Fatalf("%d of %d bytes of answers were used", used, len(back))
		}
		return sent, back
	}
	if len(prelude) > 0 {
		first(prelude)
	}
	first(input) // prepares the check
	first(input) // takes the hold
	sent, back := first(input)
	if got := bytes.Count(sent, []byte("wirefence.check(")) + bytes.Count(sent, []byte(checkNames[fullCheck]+"\x00")); got != checks {
		tb.Fatalf("%d checks were put in, want %d:\n%q", got, checks, sent)
	}
	if got := s.hold.state == policy.Held; got != (cfg.Hold > 0 && checks == 0 && (variable != "" || bytes.Contains(input, []byte("wirefence.token")) || bytes.Contains(prelude, []byte("wirefence.token")))) {
		tb.Fatalf("held: %v", got)
	}
	return func() {
		s.FromClient(input, &toServer)
		s.FromServer(back, &toClient)
		if f := s.Fatal(); f != nil {
			tb.Fatal(f.Message)
		}
	}
}

const (
	benchRead    = "SELECT abalance FROM pgbench_accounts WHERE aid = $1"
	benchWrite   = "INSERT INTO entries (worker, amount) VALUES ($1, $2)"
	benchFence   = "orders=34"
	benchComment = " /*wirefence.token='" + benchFence + "'*/"
)

func withoutParameters(sql string) string {
	return strings.NewReplacer("$1", "17", "$2", "42").Replace(sql)
}

func simple(sql string) []byte { return wire.AppendQuery(nil, withoutParameters(sql)) }

// bound is what a driver sends for one execution of a statement.
func bound(dst []byte, statement string) []byte {
	value := "17"
	dst = wire.AppendBind(dst, "", statement, &value)
	dst = append(dst, message(wire.Describe, "P\x00")...)
	return wire.AppendSync(wire.AppendExecute(dst, ""))
}

func parsedNow(sql string) []byte { return bound(wire.AppendParse(nil, "", sql), "") }

// way is one in which a statement travels.
type way struct {
	name           string
	cfg            Config
	variable       string
	prelude, input []byte
	checks         int
}

// ways are all of them.
func ways() (all []way) {
	const hold = time.Hour // no exchange comes in the middle
	for _, c := range []struct {
		name, sql, variable string
		cfg                 Config
		checks              int
	}{
		{"unfenced read", benchRead, "", Config{Hold: hold}, 0},
		{"unfenced write", benchWrite, "", Config{Hold: hold}, 0},
		{"comment, held", benchWrite + benchComment, "", Config{Hold: hold}, 0},
		{"comment, checked", benchWrite + benchComment, "", Config{}, 1},
		{"variable, held", benchWrite, benchFence, Config{Hold: hold}, 0},
		{"variable, checked", benchWrite, benchFence, Config{}, 1},
		{"variable, read, checked", benchRead, benchFence, Config{}, 1},
		{"stamp, checked", benchWrite, "", Config{Lease: &settable{fence: benchFence}}, 1},
		{"required, unfenced read", benchRead, "", Config{RequireFence: true, Hold: hold}, 1},
	} {
		for _, w := range []way{
			{name: "simple", input: simple(c.sql)},
			{name: "extended", input: parsedNow(c.sql)},
			{name: "prepared", prelude: wire.AppendSync(wire.AppendParse(nil, "P_0", c.sql)), input: bound(nil, "P_0")},
		} {
			w.name, w.cfg, w.variable, w.checks = c.name+"/"+w.name, c.cfg, c.variable, c.checks
			all = append(all, w)
		}
	}
	return all
}

// No message that is forwarded costs an allocation, once a session is warm.
func TestForwardingAllocatesNothing(t *testing.T) {
	for _, w := range ways() {
		exchange := steady(t, w.cfg, w.variable, w.prelude, w.input, w.checks)
		if n := testing.AllocsPerRun(100, exchange); n != 0 {
			t.Errorf("%s: %v allocations", w.name, n)
		}
	}
}

// settable is a lease that is held or not as a test says.
type settable struct{ fence string }

func (l *settable) Fence() string            { return l.fence }
func (l *settable) Resource() fence.Resource { return "orders" }
func (l *settable) Holder() string           { return "worker-b" }
