package session

import (
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/wire"
)

// A text that is too large is refused once all of it has come, and once.
func TestNoRefusalBeforeTheMessageHasCome(t *testing.T) {
	text := "SELECT '" + strings.Repeat("x", 4<<10) + "'"
	for name, message := range map[string][]byte{"Query": wire.AppendQuery(nil, text), "Parse": wire.AppendParse(nil, "", text)} {
		for _, part := range []int{len(message), len(message) - 1, 700} {
			s := begun(t, "orders=1")
			s.cfg.MaxStatement = 1 << 10
			var sent string
			at := 0
			for end := 0; end < len(message); {
				end = min(end+part, len(message))
				var toServer Out
				at += s.FromClient(message[at:end], &toServer)
				sent += string(toServer.own)
				if early := !toServer.Empty(); early != (at == len(message)) {
					t.Errorf("%s in parts of %d: refused: %v, after %d bytes of %d", name, part, early, at, len(message))
				}
			}
			if n := strings.Count(sent, "wirefence refused this statement: WF006"); n != 1 || !s.atMessageStart() {
				t.Errorf("%s in parts of %d: %d refusals", name, part, n)
			}
		}
	}
}
