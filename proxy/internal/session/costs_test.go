package session

import (
	"runtime"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// The cost of a text grows with its length, not with its square: one goroutine serves many
// sessions.
func TestATextOfManyStatements(t *testing.T) {
	for _, statement := range []string{"set a.wirefence=1;", "insert into t values ('wirefence');"} {
		text := strings.Repeat(statement, 200_000/len(statement))
		s, out := greeted(Config{}, discard{}), Out{}
		for sent := s.TakeToServer(); len(sent) > 0; sent = s.TakeToServer() {
			s.FromServer(answers(sent, nil), &out)
		}
		if !s.LoggedIn() {
			t.Fatal("the login does not end")
		}
		in := message(wire.Query, text+"\x00")
		var before, behind runtime.MemStats
		runtime.ReadMemStats(&before)
		n := s.FromClient(in, &out)
		runtime.ReadMemStats(&behind)
		if n != len(in) {
			t.Errorf("%q: it took in %d of %d bytes", statement, n, len(in))
		}
		if n := behind.TotalAlloc - before.TotalAlloc; n > 200*uint64(len(text)) {
			t.Errorf("%q: %d MB for %d KB", statement, n>>20, len(text)>>10)
		}
	}
}
