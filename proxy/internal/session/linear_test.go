package session

import (
	"bytes"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/fence"
	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A text with many checks costs a number of steps, bytes and allocations that its length decides.
// With steps for each pair of a check and an answer this would take minutes.
func TestATextWithManyChecks(t *testing.T) {
	const times = 150_000
	text := strings.Repeat("commit;select 1;", times)
	for _, c := range []struct{ name, variable, text string }{
		{"variable", benchFence, text},
		{"comment", "", text + benchComment},
	} {
		s := begun(t, c.variable)
		var toServer, toClient Out
		query := wire.AppendQuery(nil, c.text)
		if used := s.FromClient(query, &toServer); used != len(query) {
			t.Fatalf("%s: %d of %d bytes were used", c.name, used, len(query))
		}
		sent := joined(&toServer)
		if n := bytes.Count(sent, []byte("SELECT wirefence.check(")); n != times || len(sent) > 8*len(query) {
			t.Errorf("%s: %d checks, %d bytes became %d", c.name, n, len(query), len(sent))
		}
		mine := message(wire.CommandComplete, "SELECT 1\x00")
		ours := append(append(message(wire.RowDescription, "\x00\x00"), noRefusal...), mine...)
		answers := bytes.Repeat(append(append(bytes.Clone(mine), ours...), mine...), times)
		answers = append(answers, message(wire.ReadyForQuery, "I")...)
		allocs := testing.AllocsPerRun(1, func() {
			used, _ := s.FromServer(answers, &toClient)
			if got := len(joined(&toClient)); used != len(answers) || got != 2*times*len(mine)+6 || !s.Idle() {
				t.Fatalf("%s: %d of %d bytes, %d for the client", c.name, used, len(answers), got)
			}
			s.FromClient(query, &toServer)
		})
		if allocs > 500 {
			t.Errorf("%s: %v allocations", c.name, allocs)
		}
	}
}

// What sets own locks' fences takes its place among the checks in as few steps.
func TestATextWithManyChecksBehindAPooler(t *testing.T) {
	const times = 100_000
	s := begunWith(t, Config{Pooling: PoolingTransaction, Guarded: func() string { return "jobs=7" }}, "", discard{})
	var toServer Out
	query := wire.AppendQuery(nil, strings.Repeat("commit;select 1;", times)+benchComment)
	if used := s.FromClient(query, &toServer); used != len(query) {
		t.Fatalf("%d of %d bytes were used", used, len(query))
	}
	sent := joined(&toServer)
	for part, want := range map[string]int{"SELECT wirefence.check(": times, "SET LOCAL wirefence.lease = 'jobs=7'": times} {
		if n := bytes.Count(sent, []byte(part)); n != want {
			t.Errorf("%s is there %d times, want %d", part, n, want)
		}
	}
}

// Each check has the whole fence, so a long fence and many short statements would multiply.
func TestChecksMayNotMultiplyAText(t *testing.T) {
	var pairs []string
	for len(pairs) < fence.MaxPairs {
		pairs = append(pairs, strings.Repeat("r", 100+len(pairs))+"=1")
	}
	s := begun(t, "")
	var toServer Out
	query := wire.AppendQuery(nil, strings.Repeat("commit;select 1;", 100_000)+"/*wirefence.token='"+strings.Join(pairs, ",")+"'*/")
	if used := s.FromClient(query, &toServer); used != len(query) {
		t.Fatalf("%d of %d bytes were used", used, len(query))
	}
	if sent := joined(&toServer); !bytes.Contains(sent, []byte("wirefence refused this statement: WF006")) || len(sent) > 1<<10 {
		t.Errorf("%d bytes became %d", len(query), len(sent))
	}
}
