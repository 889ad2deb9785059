package relay

import (
	_ "embed"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed look.lua
	lookLua string
	//go:embed before.lua
	beforeLua string
	//go:embed after.lua
	afterLua string
	//go:embed raise.lua
	raiseLua string
	//go:embed back.lua
	backLua string
	//go:embed free.lua
	freeLua string
	//go:embed probe.lua
	probeLua string
)

// The scripts around a command are sent whole, by EVAL. EVALSHA of a script that Redis has forgotten
// would fail inside the transaction, when the command has already run.
var (
	beforeText, afterText = short(lookLua + beforeLua), short(lookLua + afterLua)

	raiseScript, backScript = goredis.NewScript(lookLua + raiseLua), goredis.NewScript(lookLua + backLua)
	freeScript              = goredis.NewScript(lookLua + freeLua)
)

// short returns a script without its comments and indents.
func short(lua string) string {
	var b strings.Builder
	for line := range strings.Lines(lua) {
		if line = strings.TrimLeft(line, " "); !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}
