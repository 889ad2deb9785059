package session

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/weave"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// The benchmarks drive a session with canned bytes of both sides: one operation
// is what a client sends up to its Sync or Query, and all answers to it. The
// goal in steady state is 0 allocs/op, but for refusals.

type discard struct{}

func (discard) Checked()        {}
func (discard) Refused(Refusal) {}
func (discard) Trouble(error)   {}

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

// answers gives what a server without a transaction block would send back to
// whole messages; each statement that is executed brings rows.
func answers(sent []byte, rows []byte) (out []byte) {
	executed := func() {
		out = append(out, rows...)
		out = append(out, message(wire.CommandComplete, "SELECT 1\x00")...)
	}
	for len(sent) > 0 {
		typ, size, ok := wire.Header(sent)
		if !ok || size > len(sent) {
			panic("a message was cut")
		}
		switch typ {
		case wire.Parse:
			out = append(out, message(wire.ParseComplete, "")...)
		case wire.Bind:
			out = append(out, message(wire.BindComplete, "")...)
		case wire.Close:
			out = append(out, message(wire.CloseComplete, "")...)
		case wire.Describe:
			out = append(out, message(wire.RowDescription, "\x00\x00")...)
		case wire.Execute:
			executed()
		case wire.Query:
			for range bytes.Count(sent[:size], []byte(";")) + 1 {
				out = append(out, message(wire.RowDescription, "\x00\x00")...)
				executed()
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
	at := time.Now()
	catalogs := NewCatalogs(func() time.Time { return at })
	startup := &wire.Startup{Params: map[string]string{"user": "app"}}
	cfg.MaxStatement = 16 << 20
	s := New(NewConfig(cfg), catalogs, startup, events)
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
	for n := 0; !s.LoggedIn(); n++ {
		sent := bytes.Clone(s.TakeToServer())
		if n > 4 || len(sent) == 0 {
			tb.Fatal("the login does not end")
		}
		rows := row(variable, "wirefence.check(text,text,boolean)", "7", "at_home")
		if !bytes.Contains(sent, []byte(strings.TrimSpace(loginSQL))) {
			rows = row("sabs\nunextval\nw\n.")
		}
		s.FromServer(answers(sent, rows), &out)
	}
	return s
}

func joined(out *Out) []byte { return bytes.Join(out.Buffers(nil), nil) }

// drive measures the same exchange over and over. prelude is sent once before.
func drive(b *testing.B, variable string, prelude, input []byte, checks int) {
	s := begun(b, variable)
	var toServer, toClient Out
	exchange := func(in []byte) (sent, back []byte) {
		if used := s.FromClient(in, &toServer); used != len(in) {
			b.Fatalf("%d of %d bytes were used", used, len(in))
		}
		sent = joined(&toServer)
		back = answers(sent, row("1"))
		if used, _ := s.FromServer(back, &toClient); used != len(back) {
			b.Fatalf("%d of %d bytes of answers were used", used, len(back))
		}
		return sent, back
	}
	if len(prelude) > 0 {
		exchange(prelude)
	}
	exchange(input) // prepares the check
	exchange(input)
	sent, back := exchange(input)
	if got := bytes.Count(sent, []byte("wirefence.check(")) + bytes.Count(sent, []byte(checkNames[forWrites]+"\x00")); got != checks {
		b.Fatalf("%d checks were put in, want %d:\n%q", got, checks, sent)
	}
	if f := s.Farewell(); f != nil {
		b.Fatal(f.Message)
	}
	b.SetBytes(int64(len(input) + len(back)))
	b.ReportAllocs()
	for b.Loop() {
		s.FromClient(input, &toServer)
		s.FromServer(back, &toClient)
	}
	b.StopTimer()
	if f := s.Farewell(); f != nil {
		b.Fatal(f.Message)
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

// cases are all ways in which a statement travels.
func cases(b *testing.B, sql, variable string, checks int) {
	b.Run("simple", func(b *testing.B) { drive(b, variable, nil, simple(sql), checks) })
	b.Run("extended", func(b *testing.B) { drive(b, variable, nil, parsedNow(sql), checks) })
	b.Run("prepared", func(b *testing.B) {
		drive(b, variable, wire.AppendSync(wire.AppendParse(nil, "P_0", sql)), bound(nil, "P_0"), checks)
	})
}

func BenchmarkUnfenced(b *testing.B) {
	b.Run("read", func(b *testing.B) { cases(b, benchRead, "", 0) })
	b.Run("write", func(b *testing.B) { cases(b, benchWrite, "", 0) })
}

func BenchmarkFencedByComment(b *testing.B) { cases(b, benchWrite+benchComment, "", 1) }

func BenchmarkFencedByVariable(b *testing.B) {
	b.Run("read", func(b *testing.B) { cases(b, benchRead, benchFence, 0) })
	b.Run("write", func(b *testing.B) { cases(b, benchWrite, benchFence, 1) })
}

// A large result passes in buffers of 64 KiB, as the proxy reads it.
func BenchmarkResult(b *testing.B) {
	const size = 64 << 10
	s := begun(b, "")
	var toServer, toClient Out
	input := simple("SELECT * FROM entries")
	line := row("17", strings.Repeat("x", 80), "42")
	back := message(wire.RowDescription, "\x00\x00")
	for len(back)+len(line)+64 < size {
		back = append(back, line...)
	}
	back = append(back, message(wire.CommandComplete, "SELECT 600\x00")...)
	back = append(back, message(wire.ReadyForQuery, "I")...)
	b.SetBytes(int64(len(back)))
	b.ReportAllocs()
	for b.Loop() {
		s.FromClient(input, &toServer)
		s.FromServer(back, &toClient)
	}
}

func BenchmarkWeave(b *testing.B) {
	call := weave.NewCall("", false, false)
	text := []byte(withoutParameters(benchWrite))
	steps := []weave.Step{{Write: true}}
	count := func(b []byte) int { return len(b) }
	for name, by := range map[string]weave.Carrier{"variable": {Variable: true}, "comment": {Comment: benchFence}} {
		b.Run(name, func(b *testing.B) {
			var p weave.Plan
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				p.Query(steps, by, weave.Coverage{}, false)
				dst = p.Rewrite(dst[:0], text, call, count)
			}
			if p.Refuse != fence.SQLState("") || len(p.Inserts) != 1 {
				b.Fatal("no check was put in")
			}
		})
	}
}
