package session

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A Query that is too large gets its refusal once all of it has come, and one.
func TestNoRefusalBeforeTheMessageHasCome(t *testing.T) {
	message := wire.AppendQuery(nil, "SELECT '"+strings.Repeat("x", 4<<10)+"'")
	for _, part := range []int{len(message), len(message) - 1, 700} {
		s := begun(t, "")
		s.cfg.MaxStatement, s.cfg.RequireFence = 1<<10, true
		var sent string
		at := 0
		for end := 0; end < len(message); {
			end = min(end+part, len(message))
			var toServer Out
			at += s.FromClient(message[at:end], &toServer)
			sent += string(toServer.own)
			if refused := !toServer.Empty(); refused != (at == len(message)) {
				t.Errorf("in parts of %d: refused: %v, after %d bytes of %d", part, refused, at, len(message))
			}
		}
		if n := strings.Count(sent, "wirefence refused this statement: WF006"); n != 1 || !s.atMessageStart() {
			t.Errorf("in parts of %d: %d refusals", part, n)
		}
	}
}
